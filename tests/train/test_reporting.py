"""Reports: a line each in the file that jobsdk names, and nothing without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from jobsdk.train import TrainError, get_metrics, report, reporting


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has reported nothing, in a folder of its own, and that nobody has launched."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("RANK", "WORLD_SIZE", "JOBSDK_R", "JOBSDK_STORAGE", "TORCHELASTIC_", "OMPI_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(reporting, "_state", reporting._State())


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What has been written so far."""
    path = tmp_path / "reports.log"
    monkeypatch.setenv("JOBSDK_REPORTS", str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.framework("torch")
def test_numbers_of_all_kinds_and_the_rest_as_text(lines: Any) -> None:
    import torch

    report(
        {
            "loss": 0.5, "count": 3, "is_best": True, "numpy": numpy.float32(0.25), "integer": numpy.int64(7),
            "tensor": torch.tensor(1.5), "one": torch.tensor([[2.0]]), "graph": torch.tensor(3.0, requires_grad=True),
            "eval": {"accuracy": 0.9, "deep": {"er": 1}}, "nan": float("nan"), "inf": -numpy.inf, 5: 6,
            "name": "resnet", "none": None, "several": numpy.arange(3), "long": "x" * 5000,
        }
    )  # fmt: skip
    (line,) = lines()
    assert (line["rank"], line["step"], line["checkpoint"]) == (0, 0, None)
    assert len(line["metrics"].pop("long")) == 1000
    assert line["metrics"] == {
        "loss": 0.5, "count": 3, "is_best": True, "numpy": 0.25, "integer": 7, "tensor": 1.5, "one": 2.0, "graph": 3.0,
        "eval/accuracy": 0.9, "eval/deep/er": 1, "nan": "nan", "inf": "-inf", "5": 6, "name": "resnet", "none": "None",
        "several": "[0 1 2]",
    }  # fmt: skip


def test_steps_count_up_by_themselves(lines: Any) -> None:
    for step in (None, None, 10, None, numpy.int64(3)):
        report({"a": 1}, step=step)
    assert [line["step"] for line in lines()] == [0, 1, 10, 11, 3]


@pytest.mark.parametrize(
    ("metrics", "more", "said"),
    [
        ([("a", 1)], {}, r"takes a mapping of names to values, not list. Fix: report\({'loss': loss}\)"),
        ({}, {"step": 1.5}, "must be a whole number, not 1.5"),
        ({}, {"step": True}, "must be a whole number, not True"),
        ({}, {"checkpoint": "no/such"}, "no/such is no folder. Fix: "),
        ({}, {"checkpoint": {"model": 1}}, "checkpoint of type dict is no folder. Fix: write it into a folder"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(lines: Any, metrics: Any, more: Any, said: str) -> None:
    with pytest.raises(TrainError, match=said):
        report(metrics, **more)
    report({"good": 1})
    assert [line["metrics"] for line in lines()] == [{"good": 1}]


def test_alone_it_remembers_and_prints_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report({"loss": 2.0, "x": "y"})
    report({"loss": 1.0})
    assert get_metrics() == {"loss": 1.0, "x": "y"}
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_azure_mls_own_processes_leave_them_among_the_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AZUREML_RUN_ID": "keen_hill", "RANK": "3", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("JOBSDK_REPORTS", raising=False)
    report({"loss": 2.0})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    report({"loss": 1.0})
    said = (tmp_path / "outputs/jobsdk/rank-3.reports.log").read_text().splitlines()
    assert [json.loads(line)["metrics"] for line in said] == [{"loss": 2.0}, {"loss": 1.0}]


def test_where_it_cannot_be_written_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOBSDK_REPORTS", "/no/such/folder/x.log")
    report({"loss": 1})
    report({"loss": 2})
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "/no/such/folder/x.log cannot be written: No such file or directory" in said


def test_many_processes_at_once_lose_nothing(lines: Any) -> None:
    code = "from jobsdk.train import report\nfor step in range(300): report({'value': step, 'text': 'x' * 900})"
    started = [
        subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "4"})
        for rank in range(4)
    ]
    assert [process.wait(200) for process in started] == [0] * 4
    assert sorted((line["rank"], line["step"]) for line in lines()) == [(r, s) for r in range(4) for s in range(300)]


def test_a_forked_process_has_reported_nothing_yet(lines: Any) -> None:
    report({"loss": 1.0}, step=5)
    pid = os.fork()
    if pid == 0:
        is_fresh = get_metrics() == {}
        report({"other": 1})
        os._exit(0 if is_fresh and get_metrics() == {"other": 1} else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert [line["step"] for line in lines()] == [5, 0]

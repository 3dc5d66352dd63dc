"""Each tutorial is followed from its first block to its last, and prints what the page shows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bootstrap.runs import wait_for
from tests.compute.slurm.cluster import SlurmCluster
from tests.docs import tutorials

_MARKS = {"slurm": [pytest.mark.engine("slurm")], "hang": [pytest.mark.framework("torch")]}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder that a reader starts in, below a home of its own."""
    folder = tmp_path / "me/first"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    return folder


@contextlib.contextmanager
def cluster(name: str, folder: Path) -> Iterator[dict[str, str]]:
    """What the page needs beside jobsdk, as variables."""
    if name != "slurm":
        yield {}
        return
    folder.mkdir()
    with SlurmCluster(folder, 2) as running:
        yield running.environ


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=_MARKS.get(name, [])) for name in tutorials.NAMES])
def test_a_tutorial_prints_what_it_shows(name: str, reader: Path, tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    with cluster(name, tmp_path / "slurm") as variables:
        environ = {**os.environ, **variables}
        for block, shown in tutorials.steps(name):
            if "logs stuck" in block.text:  # "after a few seconds"
                logs = Path(os.environ["JOBSDK_HOME"]) / "runs/stuck/logs/node-0"
                wait_for(lambda logs=logs: [one.read_text().count("step 2") for one in logs.glob("rank-*")] == [1] * 4)
            if block.language == "sh":
                printed = tutorials.run_shell(block, reader, environ)
            else:
                printed = tutorials.run_python(block, names)
            if shown is not None:
                missing = tutorials.lines(shown.text) - tutorials.lines(tutorials.plain(printed, reader))
                assert not missing, f"{shown} shows what is not printed: {missing}\n{printed}"


def test_there_are_tutorials_with_output() -> None:
    assert len(tutorials.NAMES) >= 5
    assert all(sum(step.shown is not None for step in tutorials.steps(name)) >= 2 for name in tutorials.NAMES)


def test_an_output_that_differs_is_found() -> None:
    printed = tutorials.lines("[rank 0] loss 0.25\nname  calm_fern_a1b2c3d4e5\n")
    assert tutorials.lines("...\n[rank 1] loss 0.5\nname calm_oak_0123456789\n") <= printed
    assert not tutorials.lines("[rank 1] accuracy 0.5\n") <= printed

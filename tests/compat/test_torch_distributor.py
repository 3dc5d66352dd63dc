"""TorchDistributor without Spark: which compute is meant, and how many nodes and processes that are. What it has in
common with PySpark's is in tests/spark_parity."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from jobsdk import JobsdkError, MLClient, TorchDistributor
from jobsdk.errors import ComputeError
from tests.bootstrap.runs import wait_for


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def computes(folder: Path, text: str) -> None:
    (folder / "computes.yml").write_text(text)


LAKES = """computes:
  lake: {type: spark, master: "spark://127.0.0.1:1"}
"""
TWO_LAKES = LAKES + '  pond: {type: spark, master: "spark://127.0.0.1:2"}\n'
GRID = """computes:
  grid: {type: slurm, gpus_per_node: "a100:4"}
  plain: {type: slurm}
"""


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (LAKES, "lake"),
        (LAKES + "  grid: {type: slurm}\ndefault: grid\n", "lake"),
        (TWO_LAKES + "default: pond\n", "pond"),
        (GRID + "default: grid\n", "grid"),
    ],
)
def test_the_cluster_that_is_meant(project: Path, text: str, meant: str) -> None:
    computes(project, text)
    assert TorchDistributor(2, local_mode=False, use_gpu=False)._compute.name == meant


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "no compute of type spark"), (GRID, "no compute of type"), (TWO_LAKES, "several.*lake, pond")],
)
def test_no_cluster_is_meant(project: Path, text: str, told: str) -> None:
    computes(project, text)
    with pytest.raises(ComputeError, match=told):
        TorchDistributor(2, local_mode=False, use_gpu=False)


def plan_of(distributor: TorchDistributor) -> dict[str, Any]:
    job = distributor._job(print, (), {})
    return MLClient().jobs.compile(job, compute=distributor._compute, in_place=distributor.local_mode).plan


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"compute": "grid", "use_gpu": True}, (2, 4, None)),
        ({"compute": "grid", "use_gpu": True, "num_processes": 3}, (1, 3, None)),
        ({"compute": "plain", "use_gpu": True}, (8, 1, 1)),
        ({"compute": "plain", "use_gpu": False}, (1, 8, None)),
        ({"compute": "lake", "use_gpu": True}, (8, 1, 1)),
        ({"compute": "lake", "use_gpu": False}, (8, 1, None)),
        ({"compute": "rich", "use_gpu": True}, (4, 2, None)),
    ],
)
def test_nodes_and_processes(project: Path, options: dict[str, Any], size: tuple[Any, ...]) -> None:
    rich = '  rich: {type: spark, master: "spark://127.0.0.1:1", conf: {spark.task.resource.gpu.amount: 2}}\n'
    computes(project, GRID + LAKES.partition("\n")[2] + rich)
    distributor = TorchDistributor(**{"num_processes": 8, "local_mode": False, **options})
    plan = plan_of(distributor)
    assert (plan["nodes"], plan["distribution"]["processes"], plan["gpus_per_process"]) == size


def test_gpus_by_any_name(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1a,MIG-2b,GPU-3c")
    assert TorchDistributor(2).run(os.getenv, "CUDA_VISIBLE_DEVICES") == "GPU-1a,MIG-2b"
    assert TorchDistributor(4).num_processes == 3
    assert "it becomes 3" in caplog.text


def test_the_function_may_be_named_as_in_pyspark() -> None:
    assert TorchDistributor(use_gpu=False).run(main=os.getenv, key="RANK") == "0"


def test_what_does_not_go_together(project: Path) -> None:
    with pytest.raises(ValueError, match="local_mode"):
        TorchDistributor(2, compute="grid", use_gpu=False)
    with pytest.raises(ValueError, match="local_mode"):
        TorchDistributor(2, local_mode=False, compute="local")
    with pytest.raises(TypeError, match="function or the path"):
        TorchDistributor(use_gpu=False).run(5)  # type: ignore[arg-type]
    with pytest.raises(JobsdkError, match=r"no script.*train\.py"):
        TorchDistributor(use_gpu=False).run("train.py")
    with pytest.raises(JobsdkError, match=r"is a folder, no script. Fix: "):
        TorchDistributor(use_gpu=False).run(".")
    with pytest.raises(TypeError, match=r"'key'. Fix: pass the arguments of getenv\(key, default=None\)$"):
        TorchDistributor(use_gpu=False).run(os.getenv)
    with pytest.raises(TypeError, match="not a NoneType"):
        TorchDistributor(use_gpu=False).run()
    for wrong in ({"num_processes": 0}, {"num_processes": "2"}, {"use_gpu": 1}):
        with pytest.raises((TypeError, ValueError), match="Fix: "):
            TorchDistributor(**wrong)  # type: ignore[arg-type]


def test_a_script_goes_with_its_folder(project: Path) -> None:
    folder = project / "code"
    folder.mkdir()
    (folder / "helper.py").write_text("def words():\n    return 'from beside'\n")
    (folder / "train.py").write_text("import sys\nfrom helper import words\nprint(words(), sys.argv[1:])\n")
    distributor = TorchDistributor(2, local_mode=False, use_gpu=False, compute="local")
    assert distributor.run("code/train.py", "--epochs=${{inputs.epochs}}") is None
    (run,) = MLClient().jobs.list()
    log = (run.folder.logs / "node-0" / "rank-0.log").read_text()
    assert log == "from beside ['--epochs=${{inputs.epochs}}']\n"


@pytest.mark.parametrize("when", ["while it is shown", "while it is being submitted"])
def test_what_the_ranks_say_to_an_interrupt_is_shown(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    (project / "polite.py").write_text(
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit()))\n"
        "open('up', 'w').close()\n"
        "while True: signal.pause()\n"
    )

    def interrupt(*_: object) -> None:
        wait_for((project / "up").exists)
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    if when == "while it is shown":
        helper.start()
    else:  # the ranks run by then
        monkeypatch.setattr("jobsdk.client.records.note", interrupt)
    with pytest.raises(KeyboardInterrupt):
        TorchDistributor(num_processes=1, use_gpu=False).run("polite.py")
    if when == "while it is shown":
        helper.join()
    (run,) = MLClient().jobs.list()
    said = capfd.readouterr()
    assert said.out == "[rank 0] saved\n"
    assert said.err == f"the run {run.name} was interrupted: Canceled\n"

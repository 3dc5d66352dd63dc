"""What Spark and Ray have in common: the nodes in an engine's processes, and who drives a run."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from jobsdk import JobFailed, MLClient, PyTorchDistribution, command
from jobsdk import compute as computes
from jobsdk.bootstrap.system import processes
from jobsdk.client.run import Run
from jobsdk.compute import engine
from jobsdk.runs.folder import RunFolder
from tests.bootstrap.runs import wait_for
from tests.compute.collectives import job

LONG = 200.0  # seconds that nothing takes, but for a machine that stands still now and then
CONFIGURATION = """
computes:
  threads: {type: machine, session: true}
  driver: {type: machine}
"""


@pytest.fixture(autouse=True)
def _configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBSDK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "computes.yml").write_text(CONFIGURATION)
    # The driver process finds the type by it, too.
    where = "tests.compute.engine.machine:MachineCompute"
    monkeypatch.setitem(computes._BUILT_IN, "machine", where)
    hook = tmp_path / "hook"
    hook.mkdir()
    root = Path(__file__).parents[3]
    (hook / "sitecustomize.py").write_text(
        f"import sys; sys.path.append({str(root)!r})\n"
        f"from jobsdk import compute; compute._BUILT_IN['machine'] = {where!r}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(hook))


def submit(text: str, compute: str = "threads", nodes: int = 2, **fields: object) -> Run:
    one = command(
        command=text,
        compute=compute,
        instance_count=nodes,
        distribution=PyTorchDistribution(process_count_per_instance=2),
        **fields,  # type: ignore[arg-type]
    )
    return MLClient().jobs.create_or_update(one)


@pytest.mark.parametrize("compute", ["threads", "driver"])
def test_a_collective_runs(compute: str) -> None:
    run = MLClient().jobs.create_or_update(job("sockets", 2, compute))
    run.result(LONG)
    for rank in range(4):
        log = run.folder.logs / f"node-{rank // 2}/rank-{rank}.log"
        assert f"rank {rank} of 4 total 10" in log.read_text()


@pytest.mark.parametrize("compute", ["threads", "driver"])
def test_the_culprits_code_is_the_runs(compute: str) -> None:
    run = submit('[ "$RANK" != 2 ] || exit 7; exec sleep 600', compute)
    with pytest.raises(JobFailed, match="rank 2"):
        run.result(LONG)
    assert (run.status, run.exit_code) == ("Failed", 7)


@pytest.mark.parametrize("compute", ["threads", "driver"])
def test_a_run_is_cancelled(compute: str) -> None:
    run = submit("exec sleep 600", compute)
    wait_for(lambda: run.status == "Running")
    run.cancel()
    run.wait(LONG)
    assert (run.status, run.folder.recorded_state().exit_code) == ("Canceled", 130)
    assert not list(Path(tempfile.gettempdir()).glob(f"jobsdk-{run.name}-*"))


def test_ranks_say_where_they_are() -> None:
    run = submit('exec python -c "import time; time.sleep(600)"')
    wait_for(lambda: run.status == "Running")
    wait_for(lambda: len(run.stacks(LONG)["groups"]) > 0)
    run.cancel().wait(LONG)


def test_what_a_job_leaves_comes_here() -> None:
    run = submit('echo $RANK > outputs/$RANK.txt; echo $RANK >> "${{outputs.model}}/all"', outputs={"model": {}})
    run.result(LONG)
    assert {path.name for path in (run.folder.path / "outputs/default").iterdir()} == {
        "0.txt",
        "1.txt",
        "2.txt",
        "3.txt",
    }
    assert set(Path(run.outputs["model"].path, "all").read_text().split()) <= {"0", "1"}


def test_a_killed_driver_takes_its_nodes_with_it() -> None:
    run = submit("echo $FOLDER; exec sleep 600", "driver")
    wait_for(lambda: run.status == "Running")
    owner = run.folder.living_owner()
    assert owner is not None
    os.kill(owner, signal.SIGKILL)
    run.wait(LONG)
    assert run.status == "Lost"
    wait_for(lambda: not list(Path(tempfile.gettempdir()).glob(f"jobsdk-{run.name}-*")))
    assert not processes.kill_run(str(run.folder.path))


def test_a_driver_that_dies_before_it_is_noted_is_a_lost_run(monkeypatch: pytest.MonkeyPatch) -> None:
    own = engine._own

    def late(run: RunFolder, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: processes.start_time(pid) is None)
        own(run, pid)

    monkeypatch.setattr(engine, "_own", late)
    assert submit("true", "driver").wait(LONG).status == "Lost"


def test_a_fault_of_the_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "driver")
    run = submit("exec sleep 600")
    with pytest.raises(JobFailed, match="no more of this"):
        run.result(LONG)

"""What node 0 notes of the nodes and their Python while a job runs, and what the ranks' world looked like."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from jobsdk.bootstrap.agent import inventory
from tests.bootstrap.runs import LocalRun, plan

#: As Horovod's own module answers; Horovod has no wheel that installs here.
HOROVOD = """
def is_initialized(): return True
def size(): return {size}
"""


def test_packages_are_those_that_python_itself_finds() -> None:
    found = inventory.packages(sys.path)
    expected = {
        one.metadata["Name"].replace("_", "-").replace(".", "-").lower(): one.version
        for one in metadata.distributions()
    }
    assert len(found) > 50
    for name, version in found.items():
        assert expected[name.replace(".", "-")] == version


def test_the_first_python_of_a_rank_says_where_it_is(tmp_path: Path) -> None:
    note = tmp_path / "python"
    assert inventory.python(str(note)) is None
    note.write_bytes("\0".join(["/x/bin/python", "3.11.7", "", str(tmp_path)]).encode())
    (tmp_path / "torch_geometric-2.6.1.dist-info").mkdir()
    (tmp_path / "old-1.0-py3.11.egg-info").mkdir()
    expected = {"old": "1.0", "torch-geometric": "2.6.1"}
    assert inventory.python(str(note)) == {"executable": "/x/bin/python", "version": "3.11.7", "packages": expected}


def test_each_node_is_noted_once_and_node_0_with_its_python(tmp_path: Path) -> None:
    """Also of a job that ends before anybody has looked, and of one that is started again."""
    script = f"[ $RANK != 0 ] || {sys.executable} -c pass; [ $JOBSDK_RESTART_COUNT = 1 ]"
    restarts = {"max": 1, "max_preemptions": None, "delay_s": 0.0, "retry_on": [], "never_retry_on": []}
    run = LocalRun(tmp_path, plan(script, restarts=restarts))
    assert run.wait() == 0
    noted = {event["node"]: event for event in run.events("inventory")}
    assert sorted(event["node"] for event in run.events("inventory")) == [0, 1]
    assert noted[0]["cores"] >= 1
    assert noted[0]["memory"] > 1 << 28
    assert noted[0]["python"]["executable"] == sys.executable
    assert noted[0]["python"]["packages"]["pytest"] == metadata.version("pytest")
    assert "python" not in noted[1]


def test_a_job_without_python_is_noted_without_one(tmp_path: Path) -> None:
    run = LocalRun(tmp_path, plan("true", nodes=1))
    assert run.wait() == 0
    (event,) = run.events("inventory")
    assert event["python"] is None


@pytest.mark.framework("mpi")
def test_ranks_that_each_saw_a_world_of_one_get_a_warning(tmp_path: Path) -> None:
    run = LocalRun(tmp_path, plan(f"{sys.executable} -c 'from mpi4py import MPI'", nodes=1))
    assert run.wait() == 0
    (warning,) = run.events("warning")
    assert warning["message"].startswith("mpi4py saw a world of 1 process in each of the 2 ranks")
    assert run.events()[-1]["event"] == "ended"


@pytest.mark.parametrize(("size", "processes", "told"), [(1, 2, 1), (2, 2, 0), (1, 1, 0)])
def test_horovod_is_asked_too(size: int, processes: int, told: int, tmp_path: Path) -> None:
    package = tmp_path / "modules" / "horovod"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "torch.py").write_text(HOROVOD.format(size=size))
    distribution = {"type": "pytorch", "processes": processes, "launcher": "direct"}
    command = f"PYTHONPATH=$PYTHONPATH:{package.parent} {sys.executable} -c 'import horovod.torch'"
    run = LocalRun(tmp_path / "run", plan(command, nodes=1, distribution=distribution))
    assert run.wait() == 0
    assert len(run.events("warning")) == told


@pytest.mark.framework("mpi")
def test_one_rank_with_a_world_of_its_own_is_no_mistake(tmp_path: Path) -> None:
    run = LocalRun(tmp_path, plan(f"[ $RANK = 1 ] || {sys.executable} -c 'from mpi4py import MPI'", nodes=1))
    assert run.wait() == 0
    assert run.events("warning") == []

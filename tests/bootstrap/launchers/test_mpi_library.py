"""Which MPI library a process has loaded, and a job whose library and mpirun do not belong together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobsdk.bootstrap.control.loop import Loop
from jobsdk.bootstrap.launchers import mpi_library, mpirun
from tests.bootstrap.runs import LocalRun, plan, processes_of
from tests.conftest import Mpi

#: Loads the library and goes on without initialising it, as a program does that has yet to begin.
LOAD = "import mpi4py, sys; mpi4py.rc.initialize = False; from mpi4py import MPI"
#: Says how large the world is, and ends well in any.
SIZE = "from mpi4py import MPI; print('world of', MPI.COMM_WORLD.size, flush=True)"


class Clock:
    """In place of the loop: what is to be called later, and when."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.waiting.append((seconds, callback))


def distribution(launcher: str) -> dict[str, object]:
    return {"type": "mpi", "processes": 2, "launcher": launcher}


def start(python: str, code: str, **variables: str) -> subprocess.Popen[bytes]:
    """A process that has run `code` and now waits for its stdin's end."""
    text = f"{code}; print('ready', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [python, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **variables}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_the_library_of_each_mpi_is_of_the_family_of_its_mpirun(mpi: Mpi) -> None:
    with start(mpi.python, LOAD, **mpi.variables) as process:
        library = mpi_library.loaded(process.pid)
        assert process.stdin is not None
        process.stdin.close()
    launcher = mpirun.find(mpi.launcher, mpi.folder)
    assert library is not None
    assert launcher is not None
    assert library.family == launcher.family
    expected = mpi.variables.get("MPI4PY_LIBMPI") or f"{Path(mpi.folder).parent}/lib/libmpi"
    assert os.path.realpath(library.path).startswith(os.path.realpath(expected))


def test_most_processes_have_none() -> None:
    with start(sys.executable, "import sys, numpy") as process:
        assert mpi_library.loaded(process.pid) is None
        assert process.stdin is not None
        process.stdin.close()
    assert mpi_library.loaded(process.pid) is None  # it has ended


def test_a_library_is_found_anywhere_below_the_command(openmpi: Mpi) -> None:
    loop, found = Loop(), []

    def take(library: mpi_library.Library) -> None:
        found.append(library)
        loop.stop()

    # The shell stays, and so does a first Python that loads nothing.
    inner = f"import subprocess; subprocess.run(['{openmpi.python}', '-c', '{LOAD}; sys.stdin.read()'])"
    command = ["bash", "-c", f'{openmpi.python} -c "{inner}"; true']
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        mpi_library.Watch(loop, process.pid, take)
        loop.run()
        assert process.stdin is not None
        process.stdin.close()
    assert [library.family for library in found] == ["openmpi"]


def test_looks_come_ever_more_seldom_and_end_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = Clock(), 1000.0
    monkeypatch.setattr(mpi_library.time, "monotonic", lambda: now)
    with start(sys.executable, "import sys") as process:
        mpi_library.Watch(clock, process.pid, lambda library: pytest.fail("there is none"))  # type: ignore[arg-type]
        pauses = []
        for _ in range(2000):
            ((pause, look),) = clock.waiting
            clock.waiting.clear()
            pauses.append(pause)
            now += pause
            look()
        assert process.stdin is not None
        process.stdin.close()
    assert (pauses[0], pauses[-1]) == (0.025, 5.0)
    assert pauses == sorted(pauses)
    ((_, look),) = clock.waiting
    clock.waiting.clear()
    look()
    assert clock.waiting == []


def test_open_mpi_under_hydra_would_be_four_worlds_of_one(tmp_path: Path, mpich: Mpi, openmpi: Mpi) -> None:
    # A shell that stays, as in `python train.py | tee log`; what has ended is not looked at.
    stays = f"{SIZE}; import time; time.sleep(600)"
    job = plan(f'{openmpi.python} -c "{stays}"; sleep 600', distribution=distribution("hydra"))
    run = LocalRun(tmp_path / "r", job, PATH=os.pathsep.join([mpich.folder, os.environ["PATH"]]))
    assert run.wait() == 1
    message = run.report()["message"]
    assert "does not see the other ranks" in message
    assert f"{Path(openmpi.folder).parent}/lib/libmpi.so.40" in message
    assert f"{mpich.folder}/" in message
    assert "world of size 1" in message
    assert "set launcher: openmpi, or MPI4PY_LIBMPI to" in message
    assert processes_of(run.folder) == []


def test_mpich_under_open_mpi(tmp_path: Path, mpich: Mpi, openmpi: Mpi) -> None:
    # The releases of MPICH that know of PMIx abort in MPI_Init, others make worlds of one: here none gets so far.
    job = plan(f'exec {mpich.python} -c "{LOAD}; import time; time.sleep(600)"', distribution=distribution("mpirun"))
    run = LocalRun(tmp_path / "r", job, PATH=os.pathsep.join([openmpi.folder, os.environ["PATH"]]))
    assert run.wait() == 1
    message = run.report()["message"]
    assert f"{Path(mpich.folder).parent}/lib/libmpi.so.12" in message
    assert f"{openmpi.folder}/mpirun (mpirun (Open MPI)" in message
    assert "set launcher: hydra" in message
    assert processes_of(run.folder) == []


def test_the_advice_helps(tmp_path: Path, mpich: Mpi) -> None:
    """One mpi4py serves both families: told which library to load, the same Python sees the world under Hydra."""
    library = f"{Path(mpich.folder).parent}/lib/libmpi.so.12"
    job = plan(f'{sys.executable} -c "{SIZE}"', distribution=distribution("hydra"),
               environment={"MPI4PY_LIBMPI": library})  # fmt: skip
    run = LocalRun(tmp_path / "r", job, PATH=os.pathsep.join([mpich.folder, os.environ["PATH"]]))
    assert run.wait() == 0
    assert [run.log(rank) for rank in range(4)] == ["world of 4\n"] * 4


def test_without_mpirun_it_is_a_warning(tmp_path: Path, openmpi: Mpi) -> None:
    wait = "import os, time\nwhile b'warning' not in open(os.environ['JOBSDK_RUN_DIR'] + '/events.jsonl', 'rb').read():"
    (tmp_path / "size.py").write_text(f"{SIZE}\n{wait}\n    time.sleep(0.05)\n")  # what has ended is not looked at
    run = LocalRun(tmp_path / "r", plan(f"{openmpi.python} {tmp_path}/size.py", distribution=distribution("direct")))
    assert run.wait() == 0
    warning, alone = run.events("warning")
    assert alone["message"].endswith("did the whole work alone. Fix: set the distribution's launcher to mpirun")
    assert warning["message"].startswith(f"rank 0 has loaded {Path(openmpi.folder).parent}/lib/libmpi.so.40, but")
    assert "set launcher: mpirun" in warning["message"]
    assert [run.log(rank) for rank in range(4)] == ["world of 1\n"] * 4


def test_one_process_needs_no_world(tmp_path: Path, openmpi: Mpi) -> None:
    alone = {"type": "mpi", "processes": 1, "launcher": "direct"}
    run = LocalRun(tmp_path / "r", plan(f'{openmpi.python} -c "{SIZE}"', nodes=1, distribution=alone))
    assert run.wait() == 0
    assert run.events("warning") == []

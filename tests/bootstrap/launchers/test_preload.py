"""Ranks that are forked from one Python are as ranks that were started each by itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk.bootstrap.archive import build
from jobsdk.bootstrap.launchers import preload
from tests.bootstrap.runs import PYTORCH, LocalRun, plan, processes_of

#: Notes in a file that it was imported, and by how many.
HEAVY = "import os\nwith open(os.environ['IMPORTS'], 'a') as file:\n    file.write('%d\\n' % os.getpid())\n"


class Preloaded(LocalRun):
    """Some ranks of a command in a folder with the given files, with `heavy` imported first."""

    def __init__(
        self,
        folder: Path,
        command: str,
        files: dict[str, str],
        modules: list[str],
        nodes: int = 1,
        ranks: int = 2,
        argv: list[str] | None = None,
        restarts: int = 0,
        grace_s: float = 5.0,
        **env: str,
    ) -> None:
        work = folder / "files"
        for name, text in {"heavy.py": HEAVY, **files}.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        the_plan = plan(
            command, nodes=nodes, distribution=dict(PYTORCH, processes=ranks), preload=modules, grace_s=grace_s
        )
        the_plan["restarts"] = {**the_plan["restarts"], "max": restarts, "delay_s": 0.0}
        self.imports = folder / "imports"
        super().__init__(folder, the_plan, argv, work, IMPORTS=str(self.imports), **env)

    @property
    def warnings(self) -> list[str]:
        return [event["message"] for event in self.events("warning")]


def both(
    tmp_path: Path, command: str, files: dict[str, str], modules: list[str], ranks: int = 1
) -> tuple[Preloaded, Preloaded]:
    """The run as usual and the run with a preload, both ended."""
    usual = Preloaded(tmp_path / "usual", command, files, [], ranks=ranks)
    usual.wait()
    forked = Preloaded(tmp_path / "forked", command, files, modules, ranks=ranks)
    forked.wait()
    assert forked.warnings == []
    return usual, forked


def outcome(run: Preloaded) -> list[Any]:
    """How the first rank ended, and what it wrote."""
    report = run.report()
    text = run.log(0).replace(str(run.folder), "FOLDER")
    return [report["status"], report["exit_code"], report["ranks"][0]["signal"], text]


LOOK = """
import inspect, json, multiprocessing, os, signal, sys, threading
own = {"JOBSDK_RUN_DIR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "IMPORTS"}
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "executable": sys.executable, "path": sys.path,
    "flags": str(sys.flags), "cmdline": open("/proc/self/cmdline").read(), "main": sorted(vars(main)),
    "name": __name__, "file": __file__, "package": __package__, "spec": getattr(__spec__, "name", None),
    "environment": {key: value for key, value in os.environ.items() if key not in own},
    "files": sorted(os.listdir("/proc/self/fd")), "stdin": sys.stdin.read(), "folder": os.getcwd(),
    "stdout": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through],
    "stderr": [sys.stderr.line_buffering, sys.stderr.write_through], "umask": os.umask(0o22),
    "signals": {s.name: str(signal.getsignal(s)) for s in signal.valid_signals() if isinstance(s, signal.Signals)},
    "mask": [str(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "own group": os.getpgid(0) == os.getpid(), "threads": threading.active_count(), "stack": len(inspect.stack()),
    "thread": threading.current_thread() is threading.main_thread(), "hook": sys.excepthook is sys.__excepthook__,
    "process": multiprocessing.current_process().name, "parent": str(multiprocessing.parent_process()),
    "finders": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
    "customised": "sitecustomize" in sys.modules,
}, indent=1, sort_keys=True).replace(os.environ["JOBSDK_RUN_DIR"], "RUN"))
"""
PLACES = {
    "script": ("python train.py --name 'a  b' \"c; d\" -x=1", {"train.py": LOOK}),
    "script in a folder": ("python -u sub/train.py", {"sub/train.py": LOOK, "sub/heavy.py": HEAVY}),
    "module": ("python -m package.inner --x", {"package/__init__.py": "", "package/inner.py": LOOK}),
    "package": ("python -m package", {"package/__init__.py": "", "package/__main__.py": LOOK}),
    "folder": ("python package a", {"package/__main__.py": LOOK, "package/heavy.py": HEAVY}),
    "path of python": (f"{sys.executable} ./train.py", {"train.py": LOOK}),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_forked_rank_finds_what_a_fresh_one_finds(place: str, tmp_path: Path) -> None:
    command, files = PLACES[place]
    usual, forked = both(tmp_path, command, files, ["heavy", "json"], ranks=2)
    assert outcome(forked)[:3] == outcome(usual)[:3] == ["Completed", 0, None]
    found, expected = (json.loads(run.log(1).replace(str(run.folder), "FOLDER")) for run in (forked, usual))
    assert found.pop("environment") == expected.pop("environment")
    assert found == expected
    assert len(forked.imports.read_text().split()) == 1


ENDS = {
    "runs out": "print('done')",
    "unflushed": "import sys; sys.stdout.write('no newline'); sys.stderr.write('words')",
    "sys.exit": "import sys; sys.exit(3)",
    "words": "import sys; sys.exit('cannot go on')",
    "os._exit": "import os; print('lost or not'); os._exit(5)",
    "exception": "def inner():\n    raise ValueError('x')\ndef outer():\n    inner()\nouter()",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('y') from error",
    "group": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "hook": "import sys\nsys.excepthook = lambda *of: print('mine', of[0].__name__)\nraise ValueError",
    "interrupt": "raise KeyboardInterrupt",
    "SIGINT": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "syntax": "print('never'\nx = = 1",
    "atexit": "import atexit; atexit.register(print, 'first in'); atexit.register(print, 'last in'); 1 / 0",
    "thread": "import threading\ndef last():\n    threading.main_thread().join()\n    print('after main')\n"
    "threading.Thread(target=last).start()\nprint('main')",
    "error in thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()",
    "stack": "import traceback; traceback.print_stack()",
    "warning": "import warnings; warnings.warn('careful', stacklevel=1)",
    "pickle of main": "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A())).__class__)",
    "null stdin": "print(input())",
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="ExceptionGroup came with 3.11")
@pytest.mark.parametrize("end", ENDS)
def test_a_forked_rank_ends_as_a_fresh_one(end: str, tmp_path: Path) -> None:
    usual, forked = both(tmp_path, "python train.py", {"train.py": ENDS[end]}, ["heavy"])
    if end == "error in thread":  # its text names the thread by a number of the process
        assert outcome(forked)[:3] == outcome(usual)[:3]
        assert "ZeroDivisionError" in forked.log(0)
    else:
        assert outcome(forked) == outcome(usual)


@pytest.mark.parametrize("command", ["python nosuch.py", "python -m nosuch", "python -m package.nosuch"])
def test_what_is_not_there_is_said_by_python_itself(command: str, tmp_path: Path) -> None:
    usual, forked = both(tmp_path, command, {"package/__init__.py": ""}, ["heavy"])
    assert outcome(forked) == outcome(usual)
    assert forked.report()["exit_code"] != 0


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works(method: str, tmp_path: Path) -> None:
    script = f"""
import multiprocessing as mp, os
def square(x):
    return x * x
def main():
    context = mp.get_context({method!r})
    with context.Pool(2) as pool:
        print(pool.map(square, [1, 2, 3]))
    child, parent = context.Pipe()
    process = context.Process(target=child.send, args=(mp.current_process().name,))
    process.start()
    print(parent.recv())
    process.join()
    print(process.exitcode)
if __name__ == "__main__":
    main()
"""
    usual, forked = both(tmp_path, "python train.py", {"train.py": script}, ["heavy", "multiprocessing"])
    assert outcome(forked) == outcome(usual)
    assert forked.log(0).splitlines() == ["[1, 4, 9]", "MainProcess", "0"]


def test_ranks_draw_randomness_of_their_own(tmp_path: Path) -> None:
    script = (
        "import json, multiprocessing, random, tempfile, uuid, numpy\n"
        "key = multiprocessing.current_process().authkey.hex()\n"
        "print(json.dumps([random.random(), numpy.random.random(), uuid.uuid4().hex, key, tempfile.mktemp()]))\n"
    )
    modules = ["random", "numpy", "uuid", "tempfile", "multiprocessing"]
    run = Preloaded(tmp_path, "python train.py", {"train.py": script}, modules)
    assert (run.wait(), run.warnings) == (0, [])
    drawn = [json.loads(run.log(rank)) for rank in (0, 1)]
    assert not set(map(str, drawn[0])) & set(map(str, drawn[1]))


@pytest.mark.framework("torch")
def test_torch_draws_randomness_of_its_own_in_each_rank(tmp_path: Path) -> None:
    script = "import torch\nprint(torch.initial_seed(), torch.rand(2).tolist())"
    run = Preloaded(tmp_path, "python train.py", {"train.py": script}, ["torch"])
    assert (run.wait(), run.warnings) == (0, [])
    assert run.log(0) != run.log(1)


def test_what_imports_do_to_the_environment_stays(tmp_path: Path) -> None:
    files = {
        "sets.py": "import os\nos.environ['SET'] = 'é'\nos.environ.pop('HOME', None)\nos.environ['PATH'] += ':/x'\n",
        "train.py": "import os, sets\nprint(os.environ['SET'], os.environ.get('HOME'), os.environ['PATH'][-3:])\n"
        "print(os.environb[b'SET'], os.environ['RANK'])",
    }
    usual, forked = both(tmp_path, "python train.py", files, ["sets"], ranks=2)
    assert outcome(forked) == outcome(usual)
    assert "None" in forked.log(1)


def test_a_python_of_another_encoding_finds_the_same_bytes(tmp_path: Path) -> None:
    script = "import os, sys\nprint(sys.getfilesystemencoding(), os.environb[b'NAME'], os.environ['RANK'])"
    settings = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "NAME": "ü"}
    run = Preloaded(tmp_path, "python train.py", {"train.py": script}, ["heavy"], **settings)
    assert (run.wait(), run.warnings) == (0, [])
    assert run.log(1).split() == ["ascii", r"b'\xc3\xbc'", "1"]


def test_the_parent_of_a_rank_stays_the_same(tmp_path: Path) -> None:
    script = "import os, time\nfirst = os.getppid()\ntime.sleep(0.2)\nprint(first == os.getppid())"
    run = Preloaded(tmp_path, "python train.py", {"train.py": script}, ["heavy"], ranks=6)
    assert run.wait() == 0
    assert [run.log(rank) for rank in range(6)] == ["True\n"] * 6


@pytest.mark.parametrize("text", ["raise ValueError('x')", "import no_such_module", "import sys; sys.path.clear()"])
def test_the_script_never_runs_without_a_rank(text: str, tmp_path: Path) -> None:
    files = {"site/sitecustomize.py": text, "train.py": "import os\nopen('ran', 'a').write(os.environ['RANK'] + ' ')"}
    (tmp_path / "files/site").mkdir(parents=True)
    run = Preloaded(tmp_path, "python train.py", files, ["json"], PYTHONPATH=str(tmp_path / "files/site"))
    run.wait()
    assert sorted((tmp_path / "files/ran").read_text().split()) == ["0", "1"]


def test_what_bash_would_do_first_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export FROM_BASH=1\n")
    script = "import os\nprint(os.environ['FROM_BASH'])"
    bash_env = str(tmp_path / "env.sh")
    run = Preloaded(tmp_path / "run", "python train.py", {"train.py": script}, ["json"], BASH_ENV=bash_env)
    assert (run.wait(), run.log(0)) == (0, "1\n")
    assert "BASH_ENV" in run.warnings[0]


def test_a_sitecustomize_of_the_users_own_has_its_turn(tmp_path: Path) -> None:
    files = {
        "site/sitecustomize.py": "import os, sys\nsys.mine = os.getpid()\n",
        "train.py": "import sys, sitecustomize\nprint(sys.mine > 0, sitecustomize.__file__, sys.path)",
    }
    path = str(tmp_path / "shared")
    shutil.copytree(Path(__file__).parents[1], path)  # any folder that is there
    for name in ("usual", "forked"):
        (tmp_path / name).mkdir()
    usual = Preloaded(tmp_path / "usual", "python train.py", files, [], PYTHONPATH=f"{path}:site")
    forked = Preloaded(tmp_path / "forked", "python train.py", files, ["heavy"], PYTHONPATH=f"{path}:site")
    assert (usual.wait(), forked.wait(), forked.warnings) == (0, 0, [])
    assert outcome(forked) == outcome(usual)
    assert "True" in forked.log(0)


def test_each_node_imports_once(tmp_path: Path) -> None:
    script = "import os, heavy\nprint(os.environ['RANK'], os.environ['LOCAL_RANK'], os.environ['NODE_RANK'])"
    run = Preloaded(tmp_path, "python train.py", {"train.py": script}, ["heavy"], nodes=2)
    assert (run.wait(), run.warnings) == (0, [])
    assert [run.log(rank) for rank in range(4)] == ["0 0 0\n", "1 1 0\n", "2 0 1\n", "3 1 1\n"]
    assert len(run.imports.read_text().split()) == 2
    assert [event["rank"] for event in sorted(run.events("rank_started"), key=lambda e: e["rank"])] == [0, 1, 2, 3]


def test_it_works_from_the_archive(tmp_path: Path) -> None:
    archive = tmp_path / "job.pyz"
    archive.write_bytes(build())
    run = Preloaded(
        tmp_path / "run", "python train.py", {"train.py": "import sys\nprint('heavy' in sys.modules)"}, ["heavy"],
        argv=[sys.executable, "-S", "-E", str(archive), "local", str(tmp_path / "run")],
    )  # fmt: skip
    assert (run.wait(), run.warnings, run.log(1)) == (0, [], "True\n")


def test_the_ranks_share_memory(tmp_path: Path) -> None:
    files = {
        "big.py": "content = b'x' * (64 << 20)",
        "train.py": "import big, os, time\nfor line in open('/proc/self/smaps_rollup'):\n"
        "    if line.startswith('Private_Dirty'):\n        print(line.split()[1])\n"
        "open('looked' + os.environ['RANK'], 'w').close()\n"
        "while not (os.path.exists('looked0') and os.path.exists('looked1')):  # shared while both are there\n"
        "    time.sleep(0.01)",
    }
    usual, forked = both(tmp_path, "python train.py", files, ["big"], ranks=2)
    assert int(usual.log(0)) > 64 << 10  # kB
    assert int(forked.log(0)) < 16 << 10


REFUSED = {
    "a missing module": ("nosuch", "", "cannot import nosuch: ModuleNotFoundError: No module named 'nosuch'"),
    "an import that fails": ("bad", "1 / 0", "cannot import bad: ZeroDivisionError: division by zero"),
    "an import that exits": ("bad", "import sys; sys.exit(4)", "cannot import bad: SystemExit: 4"),
    "an import that ends": ("bad", "import os; print('bye'); os._exit(4)",
                            "the process that imports exited with code 4: bye"),
    "an import that crashes": ("bad", "import ctypes; ctypes.string_at(0)",
                               "the process that imports was killed by SIGSEGV"),
    "a thread": ("bad", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), name='beat', "
                 "daemon=True).start()", "bad leaves threads running: beat"),
    "a rank": ("bad", "import os\nos.environ.get('RANK')", "bad reads RANK while it is imported"),
    "a local rank": ("bad", "import os\nx = 'LOCAL_RANK' in os.environ\nos.getenv('TF_CONFIG')",
                     "bad reads LOCAL_RANK while it is imported"),
    # No GPU is needed to have torch say that it has begun to use one.
    "CUDA": ("bad", "import torch\ntorch.cuda._initialized = True\ntorch.cuda._is_in_bad_fork = lambda: False",
             "bad initializes the GPU while it is imported"),
    "an open file": ("bad", "DATA = open('train.py')", "an import leaves open what the ranks would share"),
    "an event loop": ("bad", "import asyncio\nLOOP = asyncio.new_event_loop()",
                      "an import leaves open what the ranks would share"),
    "shared memory": ("bad", "import mmap\nMAP = mmap.mmap(-1, 4096)", "an import leaves open what the ranks would"),
    "a process": ("bad", "import subprocess\nP = subprocess.Popen(['sleep', '600'])",
                  "an import leaves a process running"),
    "no stdout": ("bad", "import os, sys\nsys.stdout = 3\nos.dup = os.fork = None", "TypeError"),
    "no files": ("bad", "import os\nos.closerange(3, 50)", "the process that imports exited with code 1"),
}  # fmt: skip


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.framework("torch")] if what == "CUDA" else []) for what in REFUSED]
)
def test_where_a_fork_is_not_safe_the_ranks_start_as_usual(what: str, tmp_path: Path) -> None:
    module, code, why = REFUSED[what]
    script = "import os, sys\nprint(os.environ['RANK'], 'heavy' in sys.modules)"
    run = Preloaded(tmp_path, "python train.py", {"bad.py": code, "train.py": script}, ["heavy", module])
    assert run.wait() == 0
    (warning,) = run.warnings
    assert warning.startswith(f"preload: {why}")
    assert warning.endswith("; the ranks of node 0 are started as usual")
    assert [run.log(0), run.log(1)] == ["0 False\n", "1 False\n"]


def test_native_threads_that_know_of_forks_are_no_hindrance(tmp_path: Path) -> None:
    """OpenBLAS starts its threads when numpy is imported."""
    script = "import numpy\na = numpy.ones((300, 300))\nprint((a @ a).sum())"
    run = Preloaded(tmp_path, "python train.py", {"train.py": script}, ["numpy"], OMP_NUM_THREADS="2")
    assert (run.wait(), run.warnings) == (0, [])
    assert run.log(0) == run.log(1) == "27000000.0\n"


def test_a_python_that_hides_our_module_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I "$@"\n')
    python.chmod(0o755)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    run = Preloaded(tmp_path / "run", "python train.py", {"train.py": "print('ran')"}, ["json"], PATH=path)
    assert (run.wait(), run.log(0)) == (0, "ran\n")
    assert "does not import sitecustomize" in run.warnings[0]


def test_a_job_that_is_stopped_while_it_imports_starts_no_rank(tmp_path: Path) -> None:
    files = {"slow.py": "import os, time\nopen('importing', 'w').close()\ntime.sleep(600)", "train.py": "print('ran')"}
    run = Preloaded(tmp_path, "python train.py", files, ["slow"])
    run.until((run.folder / "files/importing").exists)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 130
    assert run.report()["status"] == "Canceled"
    assert (run.events("rank_started"), run.warnings, processes_of(run.folder)) == ([], [], [])


def test_the_importing_process_killed(tmp_path: Path) -> None:
    files = {
        "slow.py": "import os, time\nif not os.path.exists('pid'):\n    open('pid.new', 'w').write(str(os.getpid()))\n"
        "    os.rename('pid.new', 'pid')\n    time.sleep(600)",
        "train.py": "import slow\nprint('ran')",
    }
    run = Preloaded(tmp_path, "python train.py", files, ["slow"])
    run.until((run.folder / "files/pid").exists)
    os.kill(int((run.folder / "files/pid").read_text()), signal.SIGKILL)
    assert (run.wait(), run.log(0), run.log(1)) == (0, "ran\n", "ran\n")
    assert "the process that imports was killed by SIGKILL" in run.warnings[0]


#: Fails in each attempt but the last of three, in the way that FAIL says; each rank notes what it is like.
RESTARTED = """
import json, os, random, signal, socket, sys, threading, time
import heavy
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(json.dumps({
    "attempt": attempt, "files": sorted(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")),
    "port": os.environ["MASTER_PORT"], "number": random.random(), "names": sorted(os.environ), "path": sys.path,
    "argv": sys.argv, "cmdline": open("/proc/self/cmdline").read(), "mask": str(signal.pthread_sigmask(0, [])),
    "heavy": sorted(vars(heavy)), "left": getattr(heavy, "left", None), "parent": os.getppid(),
}), flush=True)
if attempt < 2:
    heavy.left = attempt
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    open("opened-%s" % os.environ["RANK"], "w").close()
    while not os.path.exists("opened-0"):  # this rank's other half is as far
        time.sleep(0.01)
    if os.environ["RANK"] == "0":
        FAIL
    time.sleep(600)
"""
FAILURES = {
    "exception": "raise ValueError('x')",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSEGV": "os.kill(os.getpid(), signal.SIGSEGV)",
    "exit": "os._exit(7)",
}


def attempts(run: Preloaded, rank: int) -> list[dict[str, Any]]:
    """What a rank has printed of itself in each attempt."""
    logs = sorted(run.folder.glob(f"logs/node-0/rank-{rank}*.log"), key=lambda path: path.stat().st_mtime_ns)
    found = [json.loads(line) for log in logs for line in log.read_text().splitlines() if line.startswith("{")]
    return sorted(found, key=lambda one: int(one["attempt"]))


@pytest.mark.parametrize("failure", FAILURES)
def test_a_restart_forks_from_what_was_imported(failure: str, tmp_path: Path) -> None:
    files = {"train.py": RESTARTED.replace("FAIL", FAILURES[failure])}
    run = Preloaded(tmp_path / "forked", "python train.py a", files, ["heavy", "random"], restarts=2)
    usual = Preloaded(tmp_path / "usual", "python train.py a", files, [], restarts=2)
    assert (run.wait(), run.warnings, usual.wait()) == (0, [], 0)
    assert len(run.imports.read_text().split()) == 1
    mine, theirs = attempts(run, 0), attempts(usual, 0)
    assert len(mine) == len(theirs) == 3
    for forked, fresh in zip(mine, theirs, strict=True):
        assert forked.pop("parent") == run.bootstrap_pid(0)
        for varying in ("parent", "port", "number", "path"):
            fresh.pop(varying, None)
        kept = {key: value for key, value in forked.items() if key not in ("port", "number", "path")}
        assert kept == fresh
    assert len({one["number"] for one in mine}) == 3
    assert processes_of(run.folder) == []


def test_what_stays_outlives_ranks_that_ignore_sigterm(tmp_path: Path) -> None:
    ignore = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + RESTARTED
    files = {"train.py": ignore.replace("FAIL", "time.sleep(0.5); os._exit(7)")}
    run = Preloaded(tmp_path, "python train.py", files, ["heavy"], restarts=2, grace_s=0.3)
    assert (run.wait(), run.warnings) == (0, [])
    assert len(run.imports.read_text().split()) == 1


def test_what_stays_may_die(tmp_path: Path) -> None:
    """A kernel short of memory may take it, at any time."""
    kill = "os.kill(int(open(os.environ['IMPORTS']).read().split()[-1]), signal.SIGKILL); os._exit(7)"
    run = Preloaded(tmp_path, "python train.py", {"train.py": RESTARTED.replace("FAIL", kill)}, ["heavy"], restarts=2)
    assert (run.wait(), run.warnings) == (0, [])
    assert len(run.imports.read_text().split()) == 3


STALE = {
    "a variable that an import reads": (
        "import os\nATTEMPT = os.environ['TORCHELASTIC_RESTART_COUNT']\n",
        "os._exit(7)",
    ),
    "a file of the user's": ("", "open('heavy.py', 'a').write('\\n'); os._exit(7)"),
}


@pytest.mark.parametrize("what", STALE)
def test_an_import_that_would_differ_now_is_done_again(what: str, tmp_path: Path) -> None:
    head, fail = STALE[what]
    files = {"heavy.py": head + HEAVY, "train.py": RESTARTED.replace("FAIL", fail)}
    run = Preloaded(tmp_path, "python train.py", files, ["heavy"], restarts=2)
    assert (run.wait(), run.warnings) == (0, [])
    assert len(run.imports.read_text().split()) == 3


def test_nothing_stays_without_restarts(tmp_path: Path) -> None:
    look = (
        "import os, time\nimporting = open(os.environ['IMPORTS']).read().strip()\n"
        "while os.path.exists('/proc/' + importing):\n    time.sleep(0.01)"
    )
    run = Preloaded(tmp_path, "python train.py", {"train.py": look}, ["heavy"])
    assert run.wait() == 0  # the ranks wait for its end


FIT = {
    "python train.py": ["python", "train.py"],
    "python3.11 -u train.py --a=b": ["python3.11", "-u", "train.py", "--a=b"],
    " /usr/bin/python3 -m a.b 'x y' \"z\" \n": ["/usr/bin/python3", "-m", "a.b", "x y", "z"],
    "python train.py \\\n  --lr 0.1 ''": ["python", "train.py", "--lr", "0.1", ""],
    "python train.py a'b c'\"d\"": ["python", "train.py", "ab cd"],
    "python train.py \\\n\\\n a\\\n b": ["python", "train.py", "a", "b"],
}
UNFIT = [
    "", "python", "python -", "python -c pass", "python -m", "python -X dev train.py", "sh train.sh",
    "pythonx train.py", "A=1 python train.py", "python train.py; ls", "python train.py && ls",
    "python train.py | tee log", "python train.py > log", "python train.py $RANK", 'python train.py "$RANK"',
    "python train.py `ls`", "python train.py *.txt", "python train.py ~/x", "python train.py {a,b}",
    "python train.py 'open", "python a\nls", "cd src; python train.py", "python train.py # note",
    "python train.py a\\ b", "torchrun train.py", "time python a.py",
]  # fmt: skip


@pytest.mark.parametrize("command", FIT)
def test_commands_that_can_be_preloaded(command: str) -> None:
    assert preload.words(command) == FIT[command]


@pytest.mark.parametrize("command", UNFIT)
def test_commands_that_cannot(command: str) -> None:
    with pytest.raises(preload.Unfit, match="the command is not of the form"):
        preload.words(command)


@given(st.lists(st.text(st.sampled_from("ab -'\"$\\;|&*?~#{}()<>!=\n\té"), max_size=6), max_size=4))
def test_words_are_those_that_bash_makes(arguments: list[str]) -> None:
    import shlex
    import subprocess

    command = shlex.join(["python", "train.py", *arguments])
    try:
        words = preload.words(command)
    except preload.Unfit:
        return
    shown = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True
    ).stdout.decode().split("\0")[:-1]  # fmt: skip
    assert words == shown


@given(st.text(st.sampled_from("ab1 -'\"$\\;|&*?~#{}()<>!=,.\n\t"), max_size=12))
def test_raw_text_is_split_as_bash_splits_it_or_refused(text: str) -> None:
    import subprocess

    try:
        words = preload.words(f"python train.py {text}")
    except preload.Unfit:
        return
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' python train.py {text}"], capture_output=True, check=False)
    assert words == done.stdout.decode().split("\0")[:-1]

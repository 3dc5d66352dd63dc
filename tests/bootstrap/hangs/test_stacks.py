"""Where ranks are: asked of real processes, which have done nothing for it and go on as if nothing had been."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.archive import build
from jobsdk.bootstrap.hangs import arming, stacks
from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.system import network, procfs
from tests.bootstrap.runs import PYTORCH, LocalRun, plan, wait_for
from tests.bootstrap.test_archive import interpreters

#: Starts a thread, a fork and a fresh Python, says so, and waits in `deep` in each.
SCRIPT = """
import multiprocessing, sys, threading, time
def deep(n, said):
    if n:
        deep(n - 1, said)
    open(said, "w").close()
    time.sleep(600)
if __name__ == "__main__":
    processes = []
    for number, kind in enumerate(["fork", "spawn"]):
        process = multiprocessing.get_context(kind).Process(target=deep, args=(2, sys.argv[1] + kind))
        process.start()
    threading.Thread(target=deep, args=(2, sys.argv[1] + "thread"), name="beat").start()
    process.join()
"""
Start = Callable[..., int]


#: With more time than a process needs for its answer that stands still for some seconds.
take = functools.partial(stacks.take, seconds=60.0)


@pytest.fixture(autouse=True)
def without_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(stacks, "_ANSWER_S", 20.0)


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    folder = tmp_path / "run"
    folder.mkdir()
    arming.prepare(str(folder))
    return str(folder)


@pytest.fixture
def start(run_dir: str) -> Iterator[Start]:
    """Start a command as a rank is, under a shell; its pid. At the end it is killed with all below it."""
    started = []

    def start(*argv: str, **environment: str) -> int:
        path = paths.python_path(run_dir, environment.pop("PYTHONPATH", ""))
        env = {**os.environ, "PYTHONPATH": path, **environment}
        # The shell stays, as it does for a command with more than one program.
        process = subprocess.Popen(["/bin/sh", "-c", '"$@"; exit $?', "sh", *argv], env=env, start_new_session=True)
        started.append(process)
        return process.pid

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def python(tmp_path: Path, text: str, name: str = "train.py") -> list[str]:
    script = tmp_path / name
    script.write_text(text)
    return [sys.executable, str(script)]


def functions(process: stacks.Process, thread: int = 0) -> list[str]:
    return [frame[0].rpartition(".")[2] for frame in process["threads"][thread]["frames"]]


def until_it_is_at(root: int, *place: str | int) -> stacks.Process:
    """The first process of a tree, once its main thread is in this file at this line."""

    def look() -> Any:
        for process in take([root])[root][:1]:
            for thread in process["threads"][:1]:
                return thread["frames"][:1] and thread["frames"][0][1:] == list(place) and process

    process: stacks.Process = wait_for(look)
    return process


@pytest.mark.parametrize("way", ["faulthandler", "py-spy"])
def test_all_threads_of_all_processes(way: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = start(*python(tmp_path, SCRIPT), str(tmp_path) + "/in-")
    for kind in ("fork", "spawn", "thread"):
        wait_for((tmp_path / f"in-{kind}").exists)
    if way == "py-spy":
        monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    script = str(tmp_path / "train.py")

    def places() -> set[tuple[Any, ...]]:
        """Where in the script each thread is: the last line of it that it has come to."""
        threads = [thread for process in take([root])[root] for thread in process["threads"]]
        frames = [[tuple(frame[1:]) for frame in thread["frames"] if frame[1] == script][:1] for thread in threads]
        return {place for places in frames for place in places}

    wait_for(lambda: places() == {(script, 7), (script, 14)})
    found = take([root])[root]
    first, *others = found
    hows = {process["how"] for process in found}
    # Where a system does not let py-spy look into processes, they are asked themselves.
    assert hows == {way} or hows == {"faulthandler"}
    assert first["command"].startswith("python " + str(tmp_path)[:20])
    assert first["threads"][0]["main"]
    assert "join" in functions(first)
    assert first["threads"][0]["frames"][-1][1:] == [script, 14]
    assert functions(first, 1)[:3] == ["deep"] * 3
    assert not first["threads"][1]["main"]
    deep = [process for process in others if functions(process)[:3] == ["deep"] * 3]
    assert len(deep) == 2
    assert all(process["threads"][0]["frames"][0][1:] == [script, 7] for process in deep)
    assert all(process["why"] is None for process in found)


def test_who_is_asked_goes_on_as_before(start: Start, tmp_path: Path) -> None:
    """Blocked in a pipe, in a socket's answer, in a lock and in C that keeps the GIL: none is broken off."""
    text = """
import os, re, socket, sys, threading
ours, theirs = socket.socketpair()
lock = threading.Lock()
lock.acquire()
answers = []
threads = [
    threading.Thread(target=lambda: answers.append(theirs.recv(9))),
    threading.Thread(target=lambda: answers.append(lock.acquire())),
    threading.Thread(target=lambda: answers.append(re.match("(a+)+$", "a" * 23 + "b"))),
]
for thread in threads:
    thread.start()
open(sys.argv[1], "w").close()
line = open(sys.argv[2]).readline()
ours.send(b"x")
lock.release()
for thread in threads:
    thread.join()
open(sys.argv[3], "w").write(repr([line, len(answers), None in answers, True in answers, b"x" in answers]))
"""
    os.mkfifo(tmp_path / "pipe")
    files = [str(tmp_path / name) for name in ("ready", "pipe", "done")]
    root = start(*python(tmp_path, text), *files)
    wait_for((tmp_path / "ready").exists)
    for _ in range(20):
        (process,) = take([root])[root]
        assert (process["how"], process["threads"][0]["frames"][-1][0]) == ("faulthandler", "<module>")
    (tmp_path / "pipe").write_text("line\n")
    wait_for(lambda: (tmp_path / "done").exists() and (tmp_path / "done").read_text())
    assert (tmp_path / "done").read_text() == "['line\\n', 3, True, True, True]"


@pytest.mark.framework("torch")
def test_ranks_in_a_collective_of_torch(start: Start, tmp_path: Path) -> None:
    text = """
import sys, time
import torch, torch.distributed as dist
def load_batch(said):
    open(said, "w").close()
    time.sleep(600)
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + sys.argv[2], rank=rank, world_size=2)
if rank == 1:
    load_batch(sys.argv[3])
dist.all_reduce(torch.ones(1))
"""
    (port,) = network.free_ports(1)
    argv = python(tmp_path, text)
    roots = [start(*argv, str(rank), str(port), str(tmp_path / "said")) for rank in range(2)]
    wait_for((tmp_path / "said").exists)
    expected = ["rank 0 in all_reduce at train.py:11", "rank 1 in load_batch at train.py:6"]

    def groups() -> list[str]:
        found = take(roots)
        return stacks.group({rank: found[root] for rank, root in enumerate(roots)})

    wait_for(lambda: groups() == expected)


def test_what_cannot_answer_says_why_and_is_left_alone(start: Start, tmp_path: Path) -> None:
    text = "import sys, time\nopen(sys.argv[1], 'w').close()\ntime.sleep(600)\n"
    argv = python(tmp_path, text)
    ready = [str(tmp_path / name) for name in ("stopped", "isolated")]
    stopped, isolated = start(*argv, ready[0]), start(argv[0], "-I", argv[1], ready[1])
    plain = start("sleep", "600")
    for path in ready:
        wait_for(Path(path).exists)
    wait_for(lambda: len(procfs.trees(procfs.table(), [plain])[plain]) == 2)
    (process,) = take([stopped])[stopped]
    os.kill(process["pid"], signal.SIGSTOP)
    wait_for(lambda: (one := procfs.stat(process["pid"])) and one.state == "T")
    found = take([stopped, isolated, plain])
    assert [found[root][0]["how"] for root in found] == ["none"] * 3
    assert found[stopped][0]["why"] == "stopped (SIGSTOP)"
    assert found[isolated][0]["why"].startswith("not armed: started with -E, -I, -S")
    assert found[plain][0]["why"].startswith("sleep: not Python, waiting")
    assert stacks.group({3: found[plain], 4: found[stopped], 5: found[stopped]})[0] == (
        "2 ranks: stopped (SIGSTOP) (ranks 4-5)"
    )
    os.kill(process["pid"], signal.SIGCONT)
    wait_for(lambda: take([stopped])[stopped][0]["threads"])
    assert take([isolated])[isolated][0]["pid"] == found[isolated][0]["pid"], "it lives"


def test_there_is_an_end_to_the_time_that_it_takes(start: Start, tmp_path: Path) -> None:
    argv = python(tmp_path, "import sys, time\nopen(sys.argv[1], 'w').close()\ntime.sleep(600)\n")
    root = start(*argv, str(tmp_path / "ready"))
    wait_for((tmp_path / "ready").exists)
    (process,) = stacks.take([root], seconds=0)[root]
    assert (process["how"], process["why"]) == ("none", "there was no time left to ask it")


@pytest.mark.slow
def test_one_that_blocks_the_signal_in_all_threads_does_not_hold_others_up(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_ANSWER_S", 4.0)
    text = """
import signal, sys, time
if sys.argv[2] == "deaf":
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
open(sys.argv[1], "w").close()
time.sleep(600)
"""
    argv = python(tmp_path, text)
    roots = [start(*argv, str(tmp_path / f"ready-{kind}"), kind) for kind in ("deaf", "hears")]
    for kind in ("deaf", "hears"):
        wait_for((tmp_path / f"ready-{kind}").exists)
    found = take(roots)
    assert found[roots[0]][0]["why"] == "did not answer within 4 s (state S)"
    assert found[roots[1]][0]["why"] is None
    assert functions(found[roots[1]][0]) == ["<module>"]


def test_a_process_that_has_closed_all_files_is_not_signalled(start: Start, tmp_path: Path) -> None:
    """What it opens next has the same number, and must not be written to."""
    text = "import os, sys, time\nos.closerange(3, 99)\nfile = open(sys.argv[1], 'w', 1)\nfile.write('mine\\n')\n"
    root = start(*python(tmp_path, text + "time.sleep(600)\n"), str(tmp_path / "file"))
    wait_for(lambda: (tmp_path / "file").exists() and (tmp_path / "file").read_text())
    (process,) = take([root])[root]
    assert process["why"].startswith("not armed")
    assert (tmp_path / "file").read_text() == "mine\n"


def test_stacks_that_are_finished_between_two_looks_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tmp_path / "memory"
    memory.write_text("Thread 0x1 (most recent call first):\n")

    def finish(question: stacks._Question) -> bool:
        with memory.open("a") as file:
            file.write('  File "a.py", line 1 in f\n')
        return False

    monkeypatch.setattr(stacks._Question, "_is_at_it", finish)
    question = stacks._Question.__new__(stacks._Question)
    question._begin, question._file = 0, os.open(memory, os.O_RDONLY)
    answer = question.answer()
    assert answer is not None
    assert answer.text == memory.read_text()


@pytest.mark.parametrize("program", ["echo not permitted >&2; exit 1", "echo '{}'", "echo '[{}]'"])
def test_a_py_spy_that_is_of_no_use(
    program: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "bin"
    place.mkdir()
    (place / "py-spy").write_text(f"#!/bin/sh\necho $2 $4 >> {tmp_path}/asked\n{program}\n")
    (place / "py-spy").chmod(0o755)
    root = start(*python(tmp_path, "import sys, time\nopen(sys.argv[1], 'w').close()\ntime.sleep(600)\n"),
                 str(tmp_path / "ready"))  # fmt: skip
    wait_for((tmp_path / "ready").exists)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    (process,) = take([root])[root]
    assert (process["how"], functions(process)) == ("faulthandler", ["<module>"])
    assert (tmp_path / "asked").read_text() == f"--json {process['pid']}\n"


# -- taken by a process of its own -------------------------------------------------------------------------------


def test_another_process_takes_them_and_holds_nothing_of_the_bootstraps(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = start(*python(tmp_path, "import time\ntime.sleep(600)\n"))
    until_it_is_at(root, str(tmp_path / "train.py"), 2)
    place = tmp_path / "bin"
    place.mkdir()
    # It is run by the process that takes the stacks: it sees what that one has open and handles.
    look = f"ls -l /proc/$PPID/fd > {tmp_path}/files; grep SigCgt /proc/$PPID/status > {tmp_path}/caught; exit 1"
    (place / "py-spy").write_text(f"#!/bin/sh\n{look}\n")
    (place / "py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    ours, theirs = socket.socketpair()
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        pid = stacks.start(str(tmp_path / "stacks.json"), {0: root, 7: root}, 60.0)
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        signal.signal(signal.SIGTERM, before)
        ours.close()
        theirs.close()
    ranks = json.loads((tmp_path / "stacks.json").read_text())["ranks"]
    assert list(ranks) == ["0", "7"]
    assert ranks["0"][0]["threads"][0]["frames"][0][2] == 2
    assert "socket" not in (tmp_path / "files").read_text()
    caught = int((tmp_path / "caught").read_text().split()[1], 16)
    assert not procfs.has(caught, signal.SIGTERM)
    assert not list(tmp_path.glob("*.tmp"))


# -- arming ------------------------------------------------------------------------------------------------------

LOOK = """
import json, os, signal, sys
others = lambda paths: [path for path in paths if not path.endswith("/python-helpers")]
assert others(sys.path) in (sys.path, sys.path[:-1])
print(json.dumps([
    sys.argv, others(sys.path), "sitecustomize" in sys.modules, [str(type(finder)) for finder in sys.meta_path],
    others(sorted(sys.path_importer_cache)), getattr(sys, "mine", None),
    [str(signal.getsignal(n)) for n in range(1, 32)],
    {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "_")},
]))
"""
OWN = {
    "none": None,
    "their own": "import sys\nsys.mine = 7\n",
    "one that fails": "raise ValueError('bad luck')",
    "one that misses a module": "import no_such_module",
    "one that exits": "raise SystemExit(5)",
}


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("interpreter", interpreters(), ids=lambda path: Path(path).name)
def test_nobody_notices(interpreter: str, own: str, run_dir: str, tmp_path: Path) -> None:
    site, text = tmp_path / "site", OWN[own]
    site.mkdir()
    if text is not None:
        (site / "sitecustomize.py").write_text(text)
    script = python(tmp_path, LOOK)[1]
    given = f"{site}{os.pathsep}other"
    found = []
    for path in (given, paths.python_path(run_dir, given)):
        env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([interpreter, script], env=env, capture_output=True, text=True, check=False)
        # A traceback out of the start has one more step.
        said = done.stderr.splitlines()[-1:] if own == "one that exits" else done.stderr
        found.append((done.returncode, done.stdout, said))
    assert found[0] == found[1]
    assert (found[0][0] == 0) == (own != "one that exits")


@pytest.mark.parametrize("interpreter", interpreters(), ids=lambda path: Path(path).name)
def test_each_python_is_armed(interpreter: str, start: Start, tmp_path: Path) -> None:
    script = python(tmp_path, "import time\ntime.sleep(600)\n")[1]
    root = start(interpreter, script)
    process = until_it_is_at(root, script, 2)
    assert (process["how"], process["threads"][0]["frames"]) == ("faulthandler", [["<module>", script, 2]])


@pytest.mark.parametrize("missing", ["os.memfd_create", "sys.modules['_signal'].SIGRTMAX", "faulthandler"])
def test_where_it_cannot_be_armed_python_runs_as_ever(missing: str, run_dir: str, tmp_path: Path) -> None:
    """As in an old or a cut-down Python, or on another system."""
    folder = tmp_path / "cut"
    folder.mkdir()
    cut = "sys.modules['faulthandler'] = None" if missing == "faulthandler" else f"import _signal; del {missing}"
    armed = Path(paths.armed(run_dir), "sitecustomize.py").read_text()
    (folder / "sitecustomize.py").write_text(f"import os, sys; {cut}\n{armed}")
    code = "import os; print([name for name in os.listdir('/proc/self/fd') if int(name) > 2].__len__())"
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")  # the listing's own


def test_from_the_archive_too(tmp_path: Path) -> None:
    archive, folder = tmp_path / "job.pyz", tmp_path / "run"
    archive.write_bytes(build())
    folder.mkdir()
    code = (
        "import sys; sys.path[0] = sys.argv[1]; from jobsdk_bootstrap.hangs.arming import prepare; prepare(sys.argv[2])"
    )
    for _ in range(2):  # as two nodes of one machine do
        subprocess.run([sys.executable, "-S", "-E", "-c", code, archive, folder], check=True)
    (written,) = Path(paths.armed(str(folder))).iterdir()
    assert written.name == "sitecustomize.py"
    assert written.read_bytes() == (Path(arming.__file__).parent / "armed/sitecustomize.py").read_bytes()


def test_a_run_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    arming.prepare(str(tmp_path / "missing"))
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("run_dir", "given", "expected"),
    [
        ("/r", "", "/r/python-armed"),
        ("/r", "a:/b", "/r/python-armed:a:/b"),
        ("/r", ":a", "/r/python-armed::a"),
        ("/r", "/outer/python-armed:a", "/r/python-armed:a"),
        ("/r:x", "a:/b", "a:/b"),
    ],
)
def test_python_path(run_dir: str, given: str, expected: str) -> None:
    assert paths.python_path(run_dir, given) == expected


@pytest.mark.parametrize("preload", [[], ["json"]])
def test_ranks_of_a_job_are_armed_each_with_a_file_of_its_own(
    preload: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + ":" + os.environ["PATH"])
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(
        "import os, time\n"
        "def train():\n"
        "    print(os.environ['PYTHONPATH'])\n"
        "    open('ready' + os.environ['RANK'], 'w').close()\n"
        "    time.sleep(600)\n"
        "train()\n"
    )
    the_plan = plan("python train.py", 1, dict(PYTORCH, processes=2), preload=preload, environment={"PYTHONPATH": "x"})
    run = LocalRun(tmp_path / "run", the_plan, work=work)
    for rank in range(2):
        run.until((work / f"ready{rank}").exists)
    run.until(lambda: len(run.events("rank_started")) == 2)  # a rank may be ahead of the news of it
    pids = {event["rank"]: event["pid"] for event in run.events("rank_started")}
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    expected = ["2 ranks in train at train.py:5 (ranks 0-1)"]

    def groups(found: dict[int, list[stacks.Process]]) -> list[str]:
        return stacks.group({rank: found[pid] for rank, pid in pids.items()})

    wait_for(lambda: groups(take(list(pids.values()))) == expected)
    found = take(list(pids.values()))
    pythons = [found[pid][0]["pid"] for pid in pids.values()]
    files = {os.stat(path).st_ino for pid in pythons for path in memory_files(pid)}
    assert len(files) == 2
    assert run.log(1) == f"{run.folder}/python-armed:x\n"
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 130


def memory_files(pid: int) -> list[str]:
    names = [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    return [name for name in names if os.readlink(name).startswith(arming.MEMORY_FILE)]


# -- told in a few lines -----------------------------------------------------------------------------------------

SITE = "/v/lib/python3.11/site-packages/torch"


def at(*frames: tuple[str, str, int], why: str | None = None) -> list[stacks.Process]:
    threads = [{"name": "MainThread", "main": True, "frames": [list(frame) for frame in frames]}] if frames else []
    return [{"pid": 1, "command": "python", "how": "faulthandler", "why": why, "threads": threads}]


def test_equal_places_make_one_line_and_the_odd_one_out_another() -> None:
    reduce = at(
        ("all_reduce", f"{SITE}/distributed/distributed_c10d.py", 3252),
        ("wrapper", f"{SITE}/distributed/c10d_logger.py", 83),
        ("<module>", "/code/train.py", 88),
    )
    load = at(
        ("poll", "/v/lib/python3.11/multiprocessing/connection.py", 257),
        ("_try_get_data", f"{SITE}/utils/data/dataloader.py", 1132),
        ("__next__", f"{SITE}/utils/data/dataloader.py", 630),
        ("epoch", "/code/train.py", 61),
    )
    by_rank = {rank: load if rank == 6 else reduce for rank in range(8)}
    assert stacks.group(by_rank) == [
        "7 ranks in all_reduce at train.py:88 (ranks 0-5, 7)",
        "rank 6 in dataloader.__next__ at train.py:61",
    ]


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([("step", "/code/train.py", 3), ("<module>", "/code/train.py", 9)], "in step at train.py:3"),
        ([("<module>", "<string>", 1)], "at <string>:1"),
        (
            [
                ("linear", f"{SITE}/nn/functional.py", 5),
                ("forward", f"{SITE}/nn/modules/linear.py", 1),
                ("Module._call_impl", f"{SITE}/nn/modules/module.py", 2),
                ("Module._wrapped_call_impl", f"{SITE}/nn/modules/module.py", 3),
                ("main", "/code/train.py", 4),
            ],
            "in forward at train.py:4",
        ),
        (
            [("wait", "/usr/lib/python3.11/threading.py", 7), ("<module>", "<frozen runpy>", 8)],
            "in wait at threading.py:7",
        ),
    ],
)
def test_the_place_is_what_the_users_own_code_called(frames: list[tuple[str, str, int]], expected: str) -> None:
    assert stacks.where(at(*frames)) == expected


def test_what_has_no_stack_says_so() -> None:
    assert stacks.group({0: at(why="stopped (SIGSTOP)"), 1: [], 2: at()}) == [
        "rank 0: stopped (SIGSTOP)",
        "rank 1 without a process",
        "rank 2 in no Python code",
    ]


def test_a_deep_stack_and_many_threads_are_told_in_part() -> None:
    deep = "\n".join(f'  File "/a.py", line {line} in f' for line in range(100))
    text = "\n\n".join(f"Thread 0x{number:016x} (most recent call first):\n{deep}" for number in range(90))
    threads = stacks._parse(text)
    assert [len(threads), {len(thread["frames"]) for thread in threads}] == [32, {40}]
    assert [thread["main"] for thread in threads[:2]] == [True, False]
    assert re.fullmatch("thread 0x[0-9a-f]*", threads[1]["name"])

"""How long nothing has been done: real processes and files, and a clock that the test sets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobsdk.bootstrap.hangs.activity import Watch
from jobsdk.bootstrap.system import procfs
from tests.bootstrap.runs import PYTORCH, LocalRun, plan, wait_for

BUSY = [sys.executable, "-c", "while True: pass"]
WAITING = ["sleep", "600"]
HZ = os.sysconf("SC_CLK_TCK")
Start = Callable[[list[str]], int]


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def start(argv: list[str]) -> int:
        started.append(subprocess.Popen(argv, start_new_session=True))
        return started[-1].pid

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def used(pid: int) -> float:
    """Seconds of CPU time."""
    stat = procfs.stat(pid)
    return stat.ticks / HZ if stat else 0.0


def test_time_without_output_and_computing_adds_up(start: Start, tmp_path: Path) -> None:
    pid, watch = start(WAITING), Watch()
    logs = [str(tmp_path / "rank-0.log"), str(tmp_path / "not-there.log")]
    Path(logs[0]).write_text("one line\n")
    assert [watch.look(now, [pid], logs) for now in (100.0, 110.0, 150.0)] == [0.0, 10.0, 50.0]


def test_output_ends_it(start: Start, tmp_path: Path) -> None:
    pid, watch, log = start(WAITING), Watch(), tmp_path / "rank-0.log"
    looks = [watch.look(now, [pid], [str(log)]) for now in (0.0, 10.0)]
    log.write_text(".")
    looks += [watch.look(now, [pid], [str(log)]) for now in (20.0, 30.0)]
    assert looks == [0.0, 10.0, 0.0, 10.0]


def test_one_of_many_that_computes_ends_it(start: Start) -> None:
    pids, watch = [start(WAITING), start(WAITING), start(BUSY)], Watch()
    watch.look(0.0, pids, [])
    before = used(pids[2])
    wait_for(lambda: used(pids[2]) > before + 0.3)
    assert watch.look(10.0, pids, []) == 0.0


def test_the_little_that_idle_libraries_use_does_not(start: Start) -> None:
    pid, watch = start(BUSY), Watch()
    watch.look(0.0, [pid], [])
    before = used(pid)
    wait_for(lambda: used(pid) > before + 0.1)
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: (one := procfs.stat(pid)) is not None and one.state == "T")
    spent = used(pid) - before
    assert watch.look(spent * 100, [pid], []) == spent * 100, "1 % of the time"
    watch = Watch()
    watch.look(0.0, [], [])
    assert watch.look(used(pid) * 33, [pid], []) == 0.0, "3 % of the time, by a process that is new"


def test_many_short_commands_are_their_shells_work(start: Start) -> None:
    pid, watch = start(["/bin/sh", "-c", "while :; do /bin/true; done"]), Watch()
    watch.look(0.0, [pid], [])
    before = used(pid)
    wait_for(lambda: used(pid) > before + 0.3)
    assert watch.look(10.0, [pid], []) == 0.0


def test_a_process_that_has_ended_does_nothing(start: Start) -> None:
    pid, watch = start(BUSY), Watch()
    wait_for(lambda: used(pid) > 0.2)
    watch.look(0.0, [pid], [])
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: (one := procfs.stat(pid)) is None or one.state == "Z")
    assert watch.look(600.0, [pid, 1 << 30], []) == 600.0


def test_a_job_without_a_limit_gets_one_warning_with_its_stacks_and_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "stand.py"
    script.write_text(
        "import os, sys, time\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.1)\ntime.sleep(1)\n"
    )
    go = tmp_path / "go"
    run = LocalRun(tmp_path / "run", plan(f"{sys.executable} {script} {go}", nodes=1, hang_warning_s=0.5))
    wait_for(lambda: run.events("warning"))
    go.touch()
    assert run.wait() == 0
    (warning,) = run.events("warning")
    assert warning["message"].startswith("no rank has written output or used the processor for 0.5 s: 2 ranks ")
    assert "stand.py:3" in warning["message"]
    assert warning["message"].endswith("The job goes on. Fix: hang_timeout ends it then")


def test_one_process_may_stand_still(tmp_path: Path) -> None:
    one = {**PYTORCH, "processes": 1}
    run = LocalRun(tmp_path, plan("sleep 2", nodes=1, distribution=one, hang_warning_s=0.2))
    assert run.wait() == 0
    assert run.events("warning") == []

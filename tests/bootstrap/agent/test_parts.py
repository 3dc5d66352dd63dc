"""The parts of a node's agent, each on its own: ending processes, and telling node 0 of them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap import distributions, launchers
from jobsdk.bootstrap.agent.children import Children
from jobsdk.bootstrap.agent.membership import Membership
from jobsdk.bootstrap.agent.node import Node
from jobsdk.bootstrap.agent.stopping import Stopping
from jobsdk.bootstrap.control.loop import Loop
from jobsdk.bootstrap.launchers.deepspeed import DeepSpeedLauncher
from jobsdk.bootstrap.launchers.deepspeed_tuner import Tuner
from jobsdk.bootstrap.launchers.direct import Direct
from jobsdk.bootstrap.launchers.mpirun import Mpirun
from tests.bootstrap.runs import plan

STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.05; done"
POLITE = "echo up; exec sleep 600"


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


class Shells:
    """Processes of a test: started by it, and reaped when they are asked for."""

    def __init__(self) -> None:
        self.started: dict[int, subprocess.Popen[str]] = {}

    def start(self, script: str) -> int:
        process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        self.started[process.pid] = process
        return process.pid

    def left(self, pids: list[int]) -> list[int]:
        """Those of `pids` that are the test's and run."""
        return [pid for pid in pids if pid in self.started and self.started[pid].poll() is None]

    def running(self) -> bool:
        return any(process.poll() is None for process in self.started.values())

    def signals(self) -> list[int]:
        return [-process.wait() for process in self.started.values()]


@pytest.fixture
def shells(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shells]:
    made = Shells()
    # What ends everything that is left of a bootstrap would end the tests, too.
    monkeypatch.setattr("jobsdk.bootstrap.system.processes.strike", lambda _: None)
    yield made
    for process in made.started.values():
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def nobody(pids: list[int], asked: set[int], seconds_left: float) -> set[int]:
    return set()


def test_what_obeys_is_asked_and_what_does_not_is_killed_after_the_grace_time(loop: Loop, shells: Shells) -> None:
    stopping = Stopping(loop, 0.3, shells.running, shells.left, nobody, loop.stop)
    shells.start(POLITE)
    shells.start(STUBBORN)
    stopping.check()
    assert not stopping.is_quiet, "it goes on while something runs"
    stopping.begin()
    loop.run()
    assert stopping.is_quiet
    assert shells.signals() == [signal.SIGTERM, signal.SIGKILL]


def test_what_a_job_leaves_behind_is_ended_without_being_asked_to(loop: Loop, shells: Shells) -> None:
    stopping = Stopping(loop, 60.0, lambda: False, shells.left, nobody, loop.stop)
    shells.start(POLITE)
    stopping.check()
    loop.run()
    assert shells.signals() == [signal.SIGTERM]


def test_who_is_spared_is_asked_later(loop: Loop, shells: Shells) -> None:
    launcher, rank = shells.start(POLITE), shells.start(POLITE)

    def spared(pids: list[int], asked: set[int], seconds_left: float) -> set[int]:
        return {launcher} if shells.started[rank].poll() is None else set()

    ended: list[int] = []
    shells_left = shells.left

    def left(pids: list[int]) -> list[int]:
        now = shells_left(pids)
        ended.extend(pid for pid in (rank, launcher) if pid not in now and pid not in ended)
        return now

    Stopping(loop, 60.0, shells.running, left, spared, loop.stop).begin()
    loop.run()
    assert ended == [rank, launcher]


def test_a_node_that_gets_work_again_is_quiet_twice(loop: Loop, shells: Shells) -> None:
    quiet: list[None] = []

    def is_quiet() -> None:
        quiet.append(None)
        loop.stop()

    stopping = Stopping(loop, 60.0, shells.running, shells.left, nobody, is_quiet)
    stopping.check()
    assert (len(quiet), stopping.is_quiet) == (1, True)
    stopping.take_back()
    shells.start(POLITE)
    stopping.check()
    assert not stopping.is_quiet
    stopping.begin()
    loop.run()
    assert len(quiet) == 2


class Told(Membership):
    """A membership whose node 0 is a list."""

    def __init__(self, the_plan: dict[str, Any], loop: Loop, folder: Path) -> None:
        node = Node(0, (), (), b"", str(folder), str(folder), str(folder))
        super().__init__(the_plan, node, loop)
        self.attempt = 0
        self.messages: list[dict[str, Any]] = []

    def send(self, message: Any, *, of_any_attempt: bool = False) -> None:
        self.messages.append(message)

    def now(self) -> float:
        return 1000.0

    def clock_offset(self) -> float:
        return 0.0


def ended(run: Callable[[], Any]) -> tuple[int, int]:
    """(pid, status) of a fork that does something."""
    pid = os.fork()
    if not pid:
        try:
            run()
        finally:
            os._exit(1)
    return pid, os.waitpid(pid, 0)[1]


def test_node_0_hears_of_each_rank_and_of_no_launcher(loop: Loop, tmp_path: Path) -> None:
    member = Told(plan("x"), loop, tmp_path)
    children = Children(member)
    process = next(distributions.of(member.plan).processes())
    failing, status = ended(lambda: os._exit(3))
    children.began(failing, process, str(tmp_path / "log"))
    children.began(10**9, None, str(tmp_path / "launcher"))
    assert len(children) == 2
    assert [message["type"] for message in member.messages] == ["rank_started"]

    child = children.take(failing)
    assert child is not None
    assert children.take(failing) is None, "it has ended, once"
    assert children.rank_ended(failing, child, status, is_stopping=True, failed_at=None) is None
    end = member.messages[-1]
    assert (end["type"], end["rank"], end["exit_code"], end["stopped"]) == ("rank_ended", 0, 3, True)


def test_a_word_of_an_attempt_that_is_over_is_not_said(loop: Loop, tmp_path: Path) -> None:
    member = Told(plan("x"), loop, tmp_path)
    children = Children(member)
    log = tmp_path / "log"
    log.write_text("a line\n")
    children.began(10**9, next(distributions.of(member.plan).processes()), str(log))
    member.attempt = 1
    children.take(10**9)
    assert [message["type"] for message in member.messages] == ["rank_started"]


@pytest.mark.parametrize(
    ("distribution", "made"),
    [
        ({"type": "pytorch", "launcher": "direct"}, Direct),
        ({"type": "mpi", "launcher": "hydra"}, Mpirun),
        ({"type": "deepspeed", "launcher": "openmpi"}, Mpirun),
        ({"type": "deepspeed", "launcher": "deepspeed"}, DeepSpeedLauncher),
        ({"type": "deepspeed", "launcher": "deepspeed", "autotuning": "run"}, Tuner),
    ],
)
def test_each_launcher_has_one_class(distribution: dict[str, Any], made: type) -> None:
    assert type(launchers.of(plan("x", distribution={**distribution, "processes": 1}), 0)) is made

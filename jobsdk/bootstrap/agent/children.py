"""The processes that a node starts for the job: when each began, and how it ended."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Dict, List, Optional

from ..failures.collect import Autopsy
from ..spec import paths
from ..spec.facts import Facts
from ..spec.ranks import Process
from ..system import processes
from .log_clock import LogClock
from .membership import Membership
from .progress import latest_step

if TYPE_CHECKING:
    from ..spec.report import RankEnd


class Child:
    """A process that runs: a rank, or (process None) a launcher, a cluster or what forks ranks."""

    __slots__ = ("log", "process", "started")  # a NamedTuple would cost every start a quarter of a millisecond

    def __init__(self, process: Optional[Process], log: str, started: float) -> None:
        self.process = process
        self.log = log
        self.started = started


class Children:
    """Of one attempt. Tells node 0 of each rank that begins or ends."""

    def __init__(self, member: Membership) -> None:
        self._member = member
        self._running: Dict[int, Child] = {}
        self._clocks: Dict[int, LogClock] = {}
        self._autopsy: Optional[Autopsy] = None

    def __len__(self) -> int:
        return len(self._running)

    def get(self, pid: int) -> Optional[Child]:
        return self._running.get(pid)

    def logs(self) -> List[str]:
        return [child.log for child in self._running.values()]

    def expect(self, facts: Facts) -> None:
        """Note what the machine is like before processes start: what they die of is found by the difference."""
        self._autopsy = Autopsy(self._member.plan, facts)

    def began(self, pid: int, process: Optional[Process], log: str) -> None:
        member = self._member
        started = member.now()
        self._running[pid] = Child(process, log, started)
        if self._autopsy is not None:
            self._autopsy.began(pid)
        if process is None:
            return
        node, rank, attempt = member.node, process.rank, member.attempt
        member.send({"type": "rank_started", "t": started, "node": node.rank, "rank": rank, "pid": pid})

        def tell(what: str, when: float) -> None:
            if member.attempt == attempt:
                member.send({"type": what, "t": when + member.clock_offset(), "node": node.rank, "rank": rank})

        place = (node.run_dir, node.rank, rank, attempt or 0)
        self._clocks[pid] = LogClock(member.loop, log, paths.times(*place), paths.reports(*place), tell)

    def take(self, pid: int) -> Optional[Child]:
        """A child that has ended; None for another process, such as an adopted grandchild."""
        if pid in self._clocks:
            self._clocks.pop(pid).over()
        return self._running.pop(pid, None)

    def rank_ended(
        self, pid: int, child: Child, status: int, is_stopping: bool, failed_at: Optional[float]
    ) -> Optional[RankEnd]:
        """Tell node 0 how a rank ended; returns that message if the rank failed.

        `is_stopping`: ranks are being ended. `failed_at`: since when, if because of a failure.
        """
        assert child.process is not None
        member = self._member
        code, signum = processes.exit_code(status)
        message: RankEnd = {
            "type": "rank_ended", "t": member.now(), "node": member.node.rank, "rank": child.process.rank, "pid": pid,
            "exit_code": code, "signal": signum, "stopped": is_stopping, "started": child.started, "host": member.host,
        }  # fmt: skip
        failed = bool(code) and not is_stopping
        if failed:
            message.update(self.last_words(pid, child.log, code, signum))
        elif failed_at is not None and signum == signal.SIGTERM and self._autopsy is not None:
            message.update(self._autopsy.before(failed_at, pid, child.log, code, signum))
            if "failed_before" in message:
                message["failed_before"] += member.clock_offset()
        elif not code:
            library = self._lone_library(child.process.rank)
            if library:
                message["world_of_one"] = library
        step = latest_step(member.plan, member.node.run_dir, child.process, member.attempt or 0)
        if step is not None:
            message["step"] = step
        member.send(message)
        return message if failed else None

    def _lone_library(self, rank: int) -> str:
        """The library that saw a world of one process in a rank; empty if none did."""
        member = self._member
        try:
            with open(paths.world_of_one(member.node.run_dir, member.node.rank, rank, member.attempt or 0)) as file:
                return file.read()
        except OSError:
            return ""

    def last_words(self, pid: Optional[int], log: str, code: int, signum: Optional[int]) -> RankEnd:
        """What a process wrote last, and what was measured of its death."""
        assert self._autopsy is not None
        return self._autopsy.of(pid, log, code, signum)

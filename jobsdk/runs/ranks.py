"""How each rank of a run is, by the run's events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.spec import ranks

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.event import Event
    from jobsdk.bootstrap.spec.plan import Plan

#: In the order of how bad they are, each with its meaning.
STATES: Mapping[str, str] = {
    "failed": "ended with a code other than 0, or by a signal that was not ours",
    "lost": "was never heard of again",
    "stopped": "was ended because another one failed, or on request",
    "waiting": "has not been started",
    "running": "runs",
    "completed": "ended with code 0",
}


class RankState(NamedTuple):
    """One rank: where it is, and how it is or ended."""

    rank: int
    node: int
    local_rank: int
    role: str
    host: str | None
    pid: int | None
    state: str
    exit_code: int | None
    signal: int | None


class Ranks:
    """Feed it events in their order; `states()` is what they say so far."""

    def __init__(self, plan: Plan) -> None:
        self._processes = list(distributions.of(plan).processes()) if plan else []
        self._hosts: dict[int, str] = {}
        self._pids: dict[int, int] = {}
        self._ends: dict[int, tuple[int, int | None, bool]] = {}
        self._is_stopping = self._is_over = self._is_begun_by_engine = False
        self._is_completed = False

    def feed(self, events: Iterable[Event]) -> None:
        """Take in more events."""
        for event in events:
            kind = event["event"]
            if kind in ("node_joined", "bootstrap_up") and "host" in event:
                self._hosts[event["node"]] = event["host"]
            elif kind == "rank_started":
                self._pids[event["rank"]] = event["pid"]
            elif kind == "rank_ended":
                code, signal = event["exit_code"], event.get("signal")
                # A launcher ends its ranks by itself, so that nobody says of them that we have.
                was_stopped = event.get("stopped", False) or (self._is_stopping and signal in (9, 15))
                self._ends[event["rank"]] = code, signal, was_stopped
            elif kind in ("stopping", "cancel_requested"):
                self._is_stopping = True
            elif kind == "restart":
                self._pids, self._ends = {}, {}
                self._is_stopping = False
            elif kind == "started":
                self._is_begun_by_engine = "restart" not in event  # which does not tell of single ranks
            elif kind == "ended":
                self._is_over, self._is_completed = True, event.get("status") == "Completed"

    def states(self) -> list[RankState]:
        """Every rank in order."""
        return [self._state(process) for process in self._processes]

    def _state(self, process: ranks.Process) -> RankState:
        code, signal, was_stopped = self._ends.get(process.rank, (None, None, False))
        if code is None and self._is_begun_by_engine:
            state = "running" if not self._is_over else "completed" if self._is_completed else "stopped"
        elif code is None:
            is_begun = process.rank in self._pids
            state = ("stopped" if self._is_stopping else "lost") if self._is_over and is_begun else ""
            state = state or ("running" if is_begun else "waiting")
        else:
            state = "completed" if code == 0 else "stopped" if was_stopped else "failed"
        return RankState(
            process.rank,
            process.node_rank,
            process.local_rank,
            process.role,
            self._hosts.get(process.node_rank),
            self._pids.get(process.rank),
            state,
            code,
            signal,
        )


def layout_text(nodes: int | None, processes: int | None) -> str:
    """`2 nodes, 4 processes`; of a run that has no plan, None of either."""
    if nodes is None or processes is None:
        return "no nodes yet"
    return f"{nodes} node{'s' * (nodes != 1)}, {processes} process{'es' * (processes != 1)}"


def counted(states: Iterable[RankState]) -> dict[str, int]:
    """How many ranks are in each state that any is in, the worst first."""
    found = [state.state for state in states]
    return {name: found.count(name) for name in STATES if name in found}

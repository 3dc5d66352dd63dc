"""Where the time of a run went: from the submission over queue, start, staging and rendezvous to the first step.

Read from the run's events alone, so that it is the same on every compute. One phase follows another, so
that they add up to the whole: each ends with the last node or rank that came to its end. What no event tells apart is
shown as `unattributed`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jobsdk.runs.folder import RunFolder, is_local

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.event import Event

#: Every phase in its order, with its meaning.
PHASES: Mapping[str, str] = {
    "submit": "the client sends the job",
    "queue": "the engine has no nodes for it yet",
    "start": "the nodes come up: image, container, bootstrap",
    "unattributed": "what belongs to no other phase",
    "code": "the code is brought to the last node",
    "inputs": "the inputs are brought to the last node",
    "rendezvous": "the nodes wait for the last one and agree on addresses",
    "ranks": "the ranks' processes are started",
    "first line": "until every rank has written something: imports",
    "first step": "until the first step was reported",
    "run": "the rest, until the ranks end or one fails",
    "stop": "until all is stopped and put away",
}


class Phase(NamedTuple):
    """One part of the way; `node` and `rank` are those that came last. Times in seconds since 1970."""

    name: str
    begin: float
    end: float
    node: int | None = None
    rank: int | None = None

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Last(NamedTuple):
    """Who came last to a point, and how many seconds after the first."""

    number: int
    behind: float


class Timeline:
    """The phases of a run, without those that took no time because nothing of their kind happened."""

    def __init__(
        self, name: str, phases: list[Phase], nodes: Last | None, ranks: Last | None, *, is_over: bool
    ) -> None:
        self.name = name
        self.phases = phases
        self.slowest_node = nodes
        self.slowest_rank = ranks
        self.is_over = is_over

    @property
    def seconds(self) -> float:
        """The whole: to the end of the run, or to now."""
        return self.phases[-1].end - self.phases[0].begin if self.phases else 0.0

    @property
    def until_first_step(self) -> float | None:
        """Seconds until the first step, or else the first line of the last rank; None before."""
        ends = {phase.name: phase.end for phase in self.phases}
        end = ends.get("first step", ends.get("first line"))
        return None if end is None else end - self.phases[0].begin

    def to_dict(self) -> dict[str, Any]:
        """As plain data, times in seconds."""
        begin = self.phases[0].begin if self.phases else 0.0
        return {
            "run": self.name,
            "seconds": round(self.seconds, 4),
            "is_over": self.is_over,
            "until_first_step": None if self.until_first_step is None else round(self.until_first_step, 4),
            "phases": [
                {
                    "name": phase.name,
                    "begin": round(phase.begin - begin, 4),
                    "seconds": round(phase.seconds, 4),
                    "node": phase.node,
                    "rank": phase.rank,
                    "meaning": PHASES[phase.name],
                }
                for phase in self.phases
            ],
            "unattributed": round(sum(phase.seconds for phase in self.phases if phase.name == "unattributed"), 4),
            "slowest_node": _last_to_dict(self.slowest_node, "node"),
            "slowest_rank": _last_to_dict(self.slowest_rank, "rank"),
        }


def _last_to_dict(last: Last | None, kind: str) -> dict[str, float] | None:
    return None if last is None else {kind: last.number, "behind": round(last.behind, 4)}


def of_run(run: RunFolder, now: float | None = None) -> Timeline:
    """The timeline of a run; `now` ends that of one that goes on."""
    events = [event for event in run.events() if "t" in event]
    return make(run.name, events, is_local=is_local(run), now=time.time() if now is None else now)


def make(name: str, events: list[Event], *, is_local: bool, now: float) -> Timeline:
    """The timeline that events tell. `is_local`: there is no queue."""
    again = next((at for at, event in enumerate(events) if event["event"] == "restart"), len(events))
    launch, end = events[:again], next((event["t"] for event in reversed(events) if event["event"] == "ended"), None)
    begin = next((event["t"] for event in events if event["event"] == "submitted"), None)
    if begin is None:
        return Timeline(name, [], None, None, is_over=end is not None)
    way = _Way(begin, now if end is None else end)
    _to_the_nodes(way, launch, is_local)
    joined = _last(launch, "node_joined", "node")
    up = _last(launch, "bootstrap_up", "node")
    last = joined or up
    for kind, phase in (("code_staged", "code"), ("input_staged", "inputs")):
        staged = [event["t"] for event in launch if event["event"] == kind and last and event["node"] == last["node"]]
        if staged and last:
            way.to(phase, max(staged), node=last["node"])
    for event in _of(launch, "started")[:1]:
        phase = "rendezvous" if last else "unattributed"  # an engine that starts the ranks by itself
        way.to(phase, event["t"], node=joined["node"] if joined else None)
    for kind, phase in (("rank_started", "ranks"), ("first_output", "first line"), ("metric", "first step")):
        latest = _last(launch, kind, "rank")
        if latest:
            way.to(phase, latest["t"], node=latest["node"], rank=latest["rank"])
    going = _going(launch, is_local)
    if end is None:
        way.to(going, now)
    else:
        restarts = [at for at, event in enumerate(events) if event["event"] == "restart"]
        of_last_start = events[restarts[-1] if restarts else 0 :]
        told = [event["t"] for event in _of(of_last_start, "failure", "stopping", "cancel_requested")]
        ranks = [event["t"] for event in _of(of_last_start, "rank_ended")]
        if told or ranks:
            way.to(going, min(told) if told else max(ranks))
            way.to("stop", end)
        else:
            way.to(going, end)
    return Timeline(
        name, way.phases, _behind(launch, "node_joined", "node"),
        _behind(launch, "first_output", "rank") or _behind(launch, "rank_started", "rank"), is_over=end is not None,
    )  # fmt: skip


def _going(launch: list[Event], is_local: bool) -> str:
    """The phase in which it is, or was when it was ended."""
    if _of(launch, "started", "rank_started"):
        return "run"
    if _of(launch, "bootstrap_up"):
        return "rendezvous"
    if is_local or _of(launch, "allocated"):
        return "start"
    return "queue" if _of(launch, "queued") else "unattributed"


def _to_the_nodes(way: _Way, launch: list[Event], is_local: bool) -> None:
    """The phases before the nodes' bootstraps have begun."""
    told = _of(launch, "queued", "allocated", "supervisor_started")
    if told:
        way.to("submit", told[0]["t"])
    allocated = _of(launch, "allocated")
    if allocated:
        way.to("queue", allocated[-1]["t"], node=allocated[-1].get("node"))
    up = _last(launch, "bootstrap_up", "node")
    if up:
        way.to("start" if is_local or allocated else "unattributed", up["t"], node=up["node"])


class _Way:
    """Phases one after another, up to `until`. Another node's clock that is behind makes a phase short, one that is
    ahead long, but none negative, nor the whole longer."""

    def __init__(self, begin: float, until: float) -> None:
        self.phases: list[Phase] = []
        self._at = begin
        self._until = max(begin, until)

    def to(self, name: str, moment: float, *, node: int | None = None, rank: int | None = None) -> None:
        """Go on to `moment`. What follows a phase of the same name belongs to it."""
        end = min(max(self._at, moment), self._until)
        begin = self._at
        if self.phases and self.phases[-1].name == name:
            begin = self.phases.pop().begin
        self.phases.append(Phase(name, begin, end, node, rank))
        self._at = end


def _of(events: Iterable[Event], *kinds: str) -> list[Event]:
    return [event for event in events if event["event"] in kinds]


def _firsts(events: Iterable[Event], kind: str, key: Literal["node", "rank"]) -> dict[int, Event]:
    """The first event of a kind of each node or rank."""
    found: dict[int, Event] = {}
    for event in _of(events, kind):
        found.setdefault(event[key], event)
    return found


def _last(events: Iterable[Event], kind: str, key: Literal["node", "rank"]) -> Event | None:
    """The event of a kind of the node or rank that came to it last."""
    return max(_firsts(events, kind, key).values(), key=lambda event: event["t"], default=None)


def _behind(events: Iterable[Event], kind: str, key: Literal["node", "rank"]) -> Last | None:
    """Who came last, where there are several."""
    firsts = _firsts(events, kind, key).values()
    if len(firsts) < 2:
        return None
    last = max(firsts, key=lambda event: event["t"])
    return Last(last[key], last["t"] - min(event["t"] for event in firsts))


_BAR = 30  # characters of the longest phase


def text(timeline: Timeline) -> str:
    """For a terminal: a line for each phase with its seconds, its share as a bar, and who came last."""
    longest = max((phase.seconds for phase in timeline.phases), default=0.0) or 1.0
    lines = []
    for phase in timeline.phases:
        bar = "█" * round(phase.seconds / longest * _BAR) or "▏"
        who = [f"rank {phase.rank}"] if phase.rank is not None else []
        who = who or ([f"node {phase.node}"] if phase.node is not None else [])
        last = f"  {who[0]} last" if who else ""
        lines.append(f"{phase.name:<12} {phase.seconds:>10.3f} s  {bar}{last}")
    lines.append(f"{'whole':<12} {timeline.seconds:>10.3f} s{'' if timeline.is_over else '  so far'}")
    if timeline.until_first_step is not None:
        what = "first step" if any(phase.name == "first step" for phase in timeline.phases) else "first line"
        lines.append(f"{what} after {timeline.until_first_step:.3f} s")
    for kind, last_one in (("node", timeline.slowest_node), ("rank", timeline.slowest_rank)):
        if last_one is not None:
            lines.append(f"slowest {kind}: {last_one.number}, {last_one.behind:.3f} s behind the first")
    return "\n".join(lines)

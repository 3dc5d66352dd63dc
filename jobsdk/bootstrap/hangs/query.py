"""Asking all nodes where their ranks are: the stacks of every rank, gathered on node 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Set

from ..control.channel import Outgoing
from ..control.loop import Loop
from ..spec.ranks import ProcessLocation

if TYPE_CHECKING:
    from ..spec.messages import StacksTaken

#: Seconds that nodes have to answer; taking the stacks of one rank takes much less.
PATIENCE_S = 10.0

Answer = Dict[str, Any]


class Inquiry:
    """One question to some nodes. `done(answer)` is called once: {"ranks": {"0": [...]}, "nodes_missing": [...]}."""

    def __init__(self, loop: Loop, number: int, nodes: Iterable[int], done: Callable[[Answer], None]) -> None:
        self.number = number
        self._waiting: Set[int] = set(nodes)
        self._done: Optional[Callable[[Answer], None]] = done
        self._ranks: Dict[str, List[Any]] = {}
        self._deadline = loop.later(PATIENCE_S, self._finish)
        if not self._waiting:
            self._finish()

    def heard(self, node: int, message: StacksTaken) -> None:
        """A node's answer."""
        if message["number"] == self.number and node in self._waiting:
            self._ranks.update(message["ranks"])
            self.gone(node)

    def gone(self, node: int) -> None:
        """No more is to be expected of this node."""
        self._waiting.discard(node)
        if not self._waiting:
            self._finish()

    def _finish(self) -> None:
        self._deadline.cancel()
        done, self._done = self._done, None
        if done is not None:
            done({"ranks": self._ranks, "nodes_missing": sorted(self._waiting)})


class Inquiries:
    """One question at a time; who asks meanwhile gets the same answer. `tell` sends a message to all nodes."""

    def __init__(self, loop: Loop, tell: Callable[[Outgoing], None]) -> None:
        self._loop = loop
        self._tell = tell
        self._count = 0
        self._current: Optional[Inquiry] = None
        self._asking: List[Callable[[Answer], None]] = []

    def ask(self, nodes: Iterable[int], places: Mapping[int, ProcessLocation], done: Callable[[Answer], None]) -> None:
        """Have `nodes` look where the ranks are whose processes `places` has."""
        self._asking.append(done)
        if len(self._asking) == 1:
            self._count += 1
            known = {str(rank): place for rank, place in places.items()}
            self._tell({"type": "stacks", "number": self._count, "places": known})
            self._current = Inquiry(self._loop, self._count, nodes, self._answered)

    def _answered(self, answer: Answer) -> None:
        asking, self._asking = self._asking, []
        for done in asking:
            done(answer)

    def heard(self, node: int, message: StacksTaken) -> None:
        if self._current is not None:
            self._current.heard(node, message)

    def gone(self, node: int) -> None:
        if self._current is not None:
            self._current.gone(node)


def grouped(answer: Answer) -> List[str]:
    """The answer in lines: how many ranks are where."""
    from . import stacks

    lines = list(stacks.group({int(rank): found for rank, found in answer["ranks"].items()}))
    if answer["nodes_missing"]:
        lines.append("no answer from node(s) %s" % ", ".join(map(str, answer["nodes_missing"])))
    return lines

"""Node 0's part in measuring the bandwidth between nodes: first TCP in a ring, then torch's all-reduce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, Iterable, List, Mapping, Optional, Union

from ..control.loop import Loop
from ..system import network
from . import allreduce

if TYPE_CHECKING:
    from ..spec.preflight_messages import AllReduce, Measured, NodeReport, Reduce, RingLink, Stream

_ROUND_TIMEOUT_S = 8.0  # seconds until all nodes have told what came


class Measurement:
    """Begins at once, and calls `done` when all is measured; `result` is what `bandwidth` reads.

    `reports` are those of all nodes, and `tell` sends to all. torch is left out where not every node has it, where all
    nodes share one machine, and where the ring was broken.
    """

    def __init__(
        self,
        loop: Loop,
        tell: Callable[[Union[Stream, Reduce]], None],
        reports: Mapping[int, NodeReport],
        done: Callable[[], None],
    ) -> None:
        self.result: Measured = {"links": []}
        self._loop = loop
        self._tell = tell
        self._reports = reports
        self._done = done
        self._waiting = set(reports)
        self._said: Dict[int, AllReduce] = {}
        self._late = loop.later(0.0, lambda: None)
        self._apart = len({report["address"] for report in reports.values()}) > 1
        self._rounds = self._planned()
        self._next_round()

    def _planned(self) -> List[List[int]]:
        """Who sends in each round. None sends and receives at once, for then a slow way out slows the way in as well;
        on one machine that is no matter."""
        order = sorted(self._reports)
        if not self._apart:
            return [order]
        last = [order.pop()] if len(order) % 2 else []
        return [senders for senders in (order[::2], order[1::2], last) if senders]

    def _next_round(self) -> None:
        self._late.cancel()
        if not self._rounds:
            self._ring_ended()
            return
        self._waiting = set(self._reports)
        self._late = self._loop.later(_ROUND_TIMEOUT_S, self._next_round)
        self._tell({"type": "stream", "order": sorted(self._reports), "senders": self._rounds.pop(0)})

    def streamed(self, node: int, link: Optional[RingLink]) -> None:
        """A node is through with a round of the ring."""
        self.result["links"] += [link] if link else []
        self._answered(node)

    def reduced(self, node: int, said: AllReduce) -> None:
        """A node is through with torch."""
        self._said[node] = said
        self._answered(node)

    def _answered(self, node: int) -> None:
        self._waiting.discard(node)
        self._go_on()

    def without(self, left: Iterable[int]) -> None:
        """Those nodes have gone."""
        self._waiting -= set(left)
        self._go_on()

    def _go_on(self) -> None:
        if not self._waiting:
            if "all_reduce" in self.result:
                self._reduced()
            else:
                self._next_round()

    def _ring_ended(self) -> None:
        self.result["links"].sort(key=lambda link: link["from"])
        backend = allreduce.backend_for({node: report["facts"] for node, report in self._reports.items()})
        if backend is None or not self._apart or any("gbps" not in link for link in self.result["links"]):
            self._done()
            return
        self.result["all_reduce"] = {"backend": backend}
        self._waiting = set(self._reports)
        self._late = self._loop.later(allreduce.PATIENCE_S + 5.0, self._reduced)
        self._tell({"type": "reduce", "backend": backend, "port": network.free_ports(1)[0]})

    def _reduced(self) -> None:
        self._late.cancel()
        errors = ["node %d: %s" % (node, said["error"]) for node, said in sorted(self._said.items()) if "error" in said]
        if errors or "gbps" not in self._said.get(0, {}):
            self.result["all_reduce"]["error"] = errors[0] if errors else "node 0 said nothing"
        else:
            self.result["all_reduce"].update(self._said[0])
        self._done()

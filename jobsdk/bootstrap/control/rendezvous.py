"""Waiting until every node of a job is there and ready: missing nodes are reported during the wait and at its end."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping

from .loop import Loop

_TELL_EVERY_S = 10.0  # seconds between two words about nodes that are missing
_SHOWN = 20  # missing nodes that are named one by one


class Rendezvous:
    """Calls `complete()` when all `count` nodes are ready, or `failed(text, missing)` after `timeout` seconds.

    `hosts` names nodes, as far as that is known; `tell(text, missing)` hears every ten seconds who is missing.
    """

    def __init__(
        self,
        loop: Loop,
        count: int,
        hosts: Dict[int, str],
        timeout: float,
        tell: Callable[[str, List[int]], None],
        complete: Callable[[], None],
        failed: Callable[[str, List[int]], None],
    ) -> None:
        self.nodes: Dict[int, Mapping[str, Any]] = {}  # ready: what each offers
        self._loop = loop
        self._count = count
        self._hosts = hosts
        self._say = tell
        self._complete = complete
        self._failed = failed
        self._since = time.monotonic()
        self._give_up = loop.later(timeout, self._over)
        self._tell = loop.later(_TELL_EVERY_S, self._tell_missing)

    def ready(self, node: int, offer: Mapping[str, Any]) -> None:
        self.nodes[node] = offer
        if len(self.nodes) == self._count:
            self.close()
            self._complete()

    def gone(self, node: int) -> None:
        self.nodes.pop(node, None)

    def close(self) -> None:
        self._give_up.cancel()
        self._tell.cancel()

    def each(self, key: str) -> List[Any]:
        """One thing that all offer, in the order of the nodes."""
        return [self.nodes[node][key] for node in range(self._count)]

    def _missing(self) -> List[int]:
        return [node for node in range(self._count) if node not in self.nodes]

    def _names(self, nodes: List[int]) -> str:
        shown = [
            "node %d" % node + (" (%s)" % self._hosts[node] if self._hosts.get(node) else "") for node in nodes[:_SHOWN]
        ]
        return ", ".join(shown) + (" and %d more" % (len(nodes) - _SHOWN) if len(nodes) > _SHOWN else "")

    def _tell_missing(self) -> None:
        missing = self._missing()
        self._say("waiting %d/%d, missing: %s" % (len(self.nodes), self._count, self._names(missing)), missing)
        self._tell = self._loop.later(_TELL_EVERY_S, self._tell_missing)

    def _over(self) -> None:
        self._tell.cancel()
        missing, waited = self._missing(), time.monotonic() - self._since
        text = "%d of %d nodes joined within %.0f s; missing: %s"
        self._failed(text % (len(self.nodes), self._count, waited, self._names(missing)), missing)

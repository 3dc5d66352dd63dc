"""Bringing all nodes of a job together before it starts: wait for all of them, ask again for those that left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Mapping

from ..control.loop import Loop
from ..control.rendezvous import Rendezvous
from ..spec import events
from . import blame
from .journal import Journal
from .members import Members

if TYPE_CHECKING:
    from ..spec.plan import Plan
    from ..spec.report import RankEnd

_MOST_ASKED = 10  # bootstraps that are asked for in a row, without a start between
_PATIENCE_S = 1.0  # seconds before a bootstrap that left is asked for again


class Gathering:
    """For one attempt. `complete()` is called when every node is ready, `failed(failure)` when one cannot come."""

    def __init__(
        self,
        loop: Loop,
        plan: Plan,
        run_dir: str,
        members: Members,
        journal: Journal,
        complete: Callable[[], None],
        failed: Callable[[RankEnd], None],
    ) -> None:
        self.is_complete = False
        self._is_over = False
        self._loop = loop
        self._run_dir = run_dir
        self._members = members
        self._complete = complete
        self._failed = failed
        self._rendezvous = Rendezvous(
            loop, plan["nodes"], members.hosts, plan["rendezvous_timeout_s"], journal.waiting, self._all_ready,
            lambda text, missing: failed(missing_failure(members, "never_started", text, missing, final=True)),
        )  # fmt: skip

    def ready(self, node: int, offer: Mapping[str, Any]) -> None:
        self._rendezvous.ready(node, offer)

    def ports(self) -> List[Any]:
        """The free ports of each node."""
        return self._rendezvous.each("ports")

    def left(self, node: int) -> None:
        """The bootstrap of a node has gone."""
        self._rendezvous.gone(node)
        if self.is_complete or self._is_over:
            return
        if events.said_by(self._run_dir, node) is not None or self._members.asked >= _MOST_ASKED:
            self._failed(blame.never_joined(self._run_dir, node, None))
        else:
            # The others are still on their way: they need no other.
            self._loop.later(_PATIENCE_S, lambda: None if self._is_over else self._members.ask_for([node]))

    def close(self) -> None:
        self._is_over = True
        self._rendezvous.close()

    def _all_ready(self) -> None:
        self.is_complete = True
        self._members.asked = 0
        self._complete()


def missing_failure(members: Members, kind: str, text: str, missing: List[int], **more: Any) -> RankEnd:
    """That nodes are missing; the first of them is blamed."""
    return blame.unreported(kind, text, missing[0], host=members.hosts.get(missing[0]), **more)

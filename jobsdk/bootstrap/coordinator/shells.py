"""Commands that a node of the job runs for another one, as far as node 0 has a part in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, Optional, Sequence

from ..control.server import Peer
from .members import Members

if TYPE_CHECKING:  # what few jobs need is imported where it is used
    from ..remote_shell.relay import Relay
    from ..spec.messages import Shell


class Shells:
    """Of one attempt. `refusal()` is why no command may start now; `began(node)` hears of each before the node does."""

    def __init__(
        self,
        members: Members,
        addresses: Sequence[str],
        refusal: Callable[[], Optional[str]],
        began: Callable[[int], None],
    ) -> None:
        self.opened: Dict[int, int] = {}  # how many commands each node was told to start
        self._members = members
        self._addresses = addresses
        self._refusal = refusal
        self._began = began
        self._relay: Optional[Relay] = None

    def heard(self, peer: Peer, message: Shell) -> None:
        if self._relay is None:
            from ..remote_shell.relay import Relay

            self._relay = Relay(self._addresses, self._members.hosts, self._members.tell, self._refusal, self._open)
        self._relay.heard(peer, message)

    def left(self, peer: Peer) -> None:
        """Who asked for commands has gone."""
        if self._relay is not None:
            self._relay.left(peer)

    def lost(self, node: int, why: str) -> None:
        """A node has gone."""
        if self._relay is not None:
            self._relay.lost(node, why)

    def close(self) -> None:
        if self._relay is not None:
            self._relay.close()

    def _open(self, node: int) -> None:
        self.opened[node] = self.opened.get(node, 0) + 1
        self._began(node)

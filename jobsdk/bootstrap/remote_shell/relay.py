"""The remote shell on node 0: what goes between those who ask for commands and the nodes that run them.

All of it passes through here, over existing connections; no node listens for another one. A member of
the kind "shell" asks, for as many sessions as it likes; it names them "MEMBER.COUNT".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Optional, Sequence

from ..control.server import Peer
from ..launchers import base

if TYPE_CHECKING:
    from ..spec.messages import Shell

_SHOWN = 20  # nodes that are named in an error


class Session(NamedTuple):
    asking: Peer
    node: int


class Relay:
    """`send(node, message)` tells a node, and returns whether it is there; `refusal()` is why none may be started now.
    `began(node)` hears of each before the node does.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        hosts: Dict[int, str],
        send: Callable[[int, Shell], bool],
        refusal: Callable[[], Optional[str]],
        began: Callable[[int], None],
    ) -> None:
        self._names = base.host_names(addresses)
        self._hosts = hosts
        self._nodes: Dict[str, int] = {}  # by every name; what is said first counts
        for naming in (lambda node: self._names[node], lambda node: "node-%d" % node, self._host, self._short_host):
            for node in range(len(addresses)):
                self._nodes.setdefault(naming(node), node)
        self._send = send
        self._refusal = refusal
        self._began = began
        self._sessions: Dict[str, Session] = {}
        self._asking: Dict[int, Peer] = {}

    def heard(self, peer: Peer, message: Shell) -> None:
        name = message["session"]
        if peer.kind == "shell":
            self._asking[peer.number] = peer
            if message["what"] == "open":
                self._open(name, peer, message)
            elif name in self._sessions and self._sessions[name].asking is peer:
                self._tell_node(name, message)
        elif name in self._sessions and self._sessions[name].node == peer.number:
            session = self._sessions[name]
            if message["what"] in ("ended", "refused"):
                del self._sessions[name]
            session.asking.send(message)

    def left(self, peer: Peer) -> None:
        """Who asked has gone: so do the commands."""
        self._asking.pop(peer.number, None)
        for name in [name for name, session in self._sessions.items() if session.asking is peer]:
            self._tell_node(name, {"type": "shell", "session": name, "what": "gone"})
            del self._sessions[name]

    def lost(self, node: int, why: str) -> None:
        """A node has gone."""
        for name in [name for name, session in self._sessions.items() if session.node == node]:
            self._refuse(name, self._sessions.pop(name).asking, "node %d is lost: %s" % (node, why))

    def close(self) -> None:
        for peer in list(self._asking.values()):
            peer.channel.close("the job is over")

    def _open(self, name: str, peer: Peer, message: Shell) -> None:
        if name in self._sessions or not name.startswith("%d." % peer.number):
            raise ValueError("no name for a session: %s" % name)
        node, why = self._node(message["host"], message["from"]), self._refusal()
        if node is None:
            why = "no node of this job is called %s; its nodes are %s" % (message["host"], self._all_names())
            self._answer(name, peer, "unknown", why)
        elif why is not None:
            self._refuse(name, peer, why)
        else:
            self._sessions[name] = Session(peer, node)
            self._began(node)
            self._tell_node(name, message)

    def _tell_node(self, name: str, message: Shell) -> None:
        node = self._sessions[name].node
        if message["what"] == "signal" and self._refusal() is not None:
            return  # all nodes are ending what they run, each in its own time
        if not self._send(node, message) and message["what"] == "open":
            self._refuse(name, self._sessions.pop(name).asking, "node %d is lost" % node)

    def _refuse(self, name: str, peer: Peer, why: str) -> None:
        self._answer(name, peer, "refused", why)

    @staticmethod
    def _answer(name: str, peer: Peer, what: str, why: str) -> None:
        answer: Shell = {"type": "shell", "session": name, "what": what, "message": why}
        peer.send(answer)

    def _node(self, name: str, asking: int) -> Optional[int]:
        """The node that a name stands for: as in the hostfile, `node-K`, its own host name, its address."""
        if name in ("localhost", "127.0.0.1", "::1", self._host(asking), self._short_host(asking)):
            return asking
        return self._nodes.get(name)

    def _host(self, node: int) -> str:
        return self._hosts.get(node, "")

    def _short_host(self, node: int) -> str:
        return self._host(node).partition(".")[0]

    def _all_names(self) -> str:
        names: List[str] = list(self._names[:_SHOWN])
        more = len(self._names) - len(names)
        return ", ".join(names) + (" and %d more" % more if more else "")

"""The nodes of a job as node 0 sees them: who is there, where they are reached, what they offer together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Tuple

from ..control.channel import Outgoing
from ..control.server import ControlServer, Peer
from ..system import network

if TYPE_CHECKING:
    from ..spec.messages import Join, Standing, Start, Take
    from ..spec.plan import Plan


class Members:
    """`replace(node)` asks whoever starts bootstraps for another one; None where nobody can be asked.

    `hosts` names nodes that are known before they join.
    """

    def __init__(
        self, plan: Plan, server: ControlServer, hosts: Iterable[str], replace: Optional[Callable[[int], None]]
    ) -> None:
        self.present: Dict[int, Join] = {}  # what each node that is there said of itself
        self.hosts: Dict[int, str] = dict(enumerate(hosts))
        self.spares: List[Peer] = []  # nodes that wait to take the place of a lost one
        self.asked = 0  # bootstraps that were asked for since all nodes were last there
        self._plan = plan
        self._server = server
        self._replace = replace
        self._pods: Dict[int, Optional[str]] = {}  # in which each node last ran
        self._pids: Dict[int, int] = {}  # the process that joined last for each node
        self._peers: Dict[int, Peer] = {}  # and its connection

    def join(self, peer: Peer, message: Join) -> bool:
        """Whether the node has a place here; else it is refused."""
        node = peer.number
        if not 0 <= node < self._plan["nodes"] or node in self.present:
            peer.refuse("node %d has joined already" % node if node in self.present else "there is no node %d" % node)
            return False
        message["address"] = peer.channel.remote_address
        message["reached"] = peer.channel.local_address
        self.present[node] = message
        self._peers[node] = peer
        self.hosts[node] = message["host"]
        self._pids[node] = message["pid"]
        self._pods[node] = message.get("pod")
        return True

    def leave(self, peer: Peer) -> bool:
        """Whether a connection that has ended was a present node's: an earlier bootstrap of one may have had it."""
        if peer.number not in self.present or self._peers.get(peer.number) is not peer:
            return False
        del self.present[peer.number]
        return True

    def standing(self) -> Optional[Standing]:
        """Where the job stood for the nodes that have lost an earlier node 0; None if there was none."""
        found = [standing for one in self.present.values() for standing in [one.get("standing")] if standing]
        return max(found, key=lambda one: (one["restart"], one["is_due"]), default=None)

    def has_joined(self, node: int, pid: int) -> bool:
        """Whether that process once joined for the node."""
        return self._pids.get(node) == pid

    def pod_of(self, node: int) -> Optional[str]:
        """The name of the pod in which a node last ran; None where there are no pods, or it never joined."""
        return self._pods.get(node)

    def release(self, nodes: Iterable[int], exit_code: int) -> None:
        """Let nodes go."""
        for node in nodes:
            if self.tell(node, {"type": "finish", "exit_code": exit_code}):
                del self.present[node]

    def ask_for(self, nodes: Iterable[int]) -> None:
        """Bootstraps for those of them that have none."""
        for node in nodes:
            if node in self.present:
                continue
            if self.spares:
                take: Take = {"type": "take", "node": node}
                self.spares.pop(0).send(take)
            elif self._replace is not None:
                self.asked += 1
                self._replace(node)

    def tell(self, node: Optional[int], message: Outgoing) -> bool:
        """Tell a node, or with None all of them. Whether it is there."""
        if node is None:
            self._server.broadcast(message)
        elif node in self.present:
            self._peers[node].send(message)
        return node is None or node in self.present

    def start_message(self, ports: List[Any], attempt: int) -> Tuple[Start, Optional[str]]:
        """The message that starts all nodes, the same for each, as there may be a thousand; and a warning."""
        nodes = [self.present[number] for number in range(self._plan["nodes"])]
        devices = warning = None
        if len(nodes) > 1:
            from ..system import infiniband

            names = ["node %d (%s)" % (number, node["host"]) for number, node in enumerate(nodes)]
            offers = [node.get("infiniband") for node in nodes]
            devices, warning = infiniband.agree(self._plan.get("network") or {}, offers, names)  # that all may use
        message: Start = {
            "type": "start", "addresses": network.addresses(nodes), "ports": ports, "restart": attempt,
            "infiniband": devices,
        }  # fmt: skip
        return message, warning

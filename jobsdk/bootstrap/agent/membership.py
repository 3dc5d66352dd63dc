"""A node as a member of its job: what it offers, and what it tells node 0."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence

from .. import distributions
from ..control.channel import Message
from ..control.client import ControlClient
from ..control.loop import Loop
from ..control.server import HEARTBEAT_TIMEOUT_S
from ..spec import mlflow_store, variables
from ..system import network, processes
from .node import Node

if TYPE_CHECKING:
    from ..launchers.preload import Preload
    from ..spec.messages import Standing, ToNode0
    from ..spec.plan import Plan
    from ..spec.report import RankEnd

#: Seconds from the start of the ranks to the look at what the node has.
INVENTORY_AFTER_S = 0.5


class Membership:
    """Joins the control port, and sends. `attempt` is the job's present start; None until node 0 has named it."""

    def __init__(self, plan: Plan, node: Node, loop: Loop) -> None:
        self.plan = plan
        self.node = node
        self.loop = loop
        self.distribution = distributions.of(plan)
        self.host = socket.gethostname()
        self.inherited = {key: value for key, value in os.environ.items() if key not in variables.PRIVATE}
        self.attempt: Optional[int] = None
        self.joined = False
        self.standing: Optional[Standing] = None  # where the job stood when it last started
        self.preload: Optional[Preload] = None  # what forks the ranks of one attempt after the other
        self._has_told = False  # what this node has
        self.heartbeat: float = plan.get("heartbeat_s", HEARTBEAT_TIMEOUT_S)

    def connect(
        self,
        addresses: Sequence[str],
        ports: Sequence[int],
        joined: Callable[[], None],
        heard: Callable[[Message], None],
        lost: Callable[[str], None],
    ) -> None:
        """Look for node 0. `joined` is called when it is found, `heard` with each message, `lost` at the end."""

        def join() -> None:
            self.joined = True
            self.send({
                "type": "join", "host": self.host, "pid": os.getpid(), "gpus": self.node.gpus, "ports": self._ports(),
                "cores": self.cores(), "infiniband": self._infiniband(), "standing": self.standing,
                "pod": self.node.pod, "is_broken": self.node.broken is not None,
            })  # fmt: skip
            joined()

        self._client = ControlClient(
            self.loop, addresses, ports, self.node.token, "node", self.node.rank, self.plan["rendezvous_timeout_s"],
            join, heard, lost, self.say, self.heartbeat, may_return=self.node.replaced,
        )  # fmt: skip

    def leave(self) -> None:
        """Close the connection to node 0."""
        self._client.close()

    def ready(self) -> None:
        """Tell node 0 that this node waits for another attempt."""
        self.send({"type": "ready", "ports": self._ports()})

    def send(self, message: ToNode0, *, of_any_attempt: bool = False) -> None:
        """Tell node 0, which ignores what it hears of an attempt that is over."""
        attempt = {} if of_any_attempt or self.attempt is None else {"restart": self.attempt}
        self._client.send({**message, **attempt})

    def failed(self, code: int, message: str, facts: RankEnd, *, of_any_attempt: bool = False) -> RankEnd:
        """Tell node 0 of a failure that is not the end of a rank; returns that message."""
        end: RankEnd = {
            "type": "failed", "t": self.now(), "node": self.node.rank, "rank": None, "exit_code": code,
            "message": message, "host": self.host,
        }  # fmt: skip
        end.update(facts)
        self.send(end, of_any_attempt=of_any_attempt)
        return end

    def warn(self, text: str) -> None:
        self.send({"type": "warning", "message": text})

    def tell_inventory(self, *, is_last: bool = False) -> None:
        """Tell node 0 what this node has, once; on node 0 when a rank has started a Python, or with `is_last` now."""
        from . import inventory

        found = None if self._has_told else inventory.of_node(self.node.run_dir, self.node.rank)
        if found is None:
            return
        if not is_last and self.node.rank == 0 and found["python"] is None:
            self.loop.later(INVENTORY_AFTER_S, self.tell_inventory)
            return
        self._has_told = True
        self.send(found, of_any_attempt=True)

    def say(self, text: str) -> None:
        print("%s node %d: %s" % (time.strftime("%H:%M:%S"), self.node.rank, text), file=sys.stderr, flush=True)

    def now(self) -> float:
        """Node 0's time, in seconds since 1970."""
        return self._client.now()

    def clock_offset(self) -> float:
        """The seconds by which node 0's clock is ahead of this machine's."""
        return self._client.offset

    def control_variables(self, address: str) -> Dict[str, str]:
        """By which other processes find the control port; `address` is node 0's."""
        assert self._client.reached is not None
        return variables.control_variables(address, self._client.reached[1], self.node.token)

    def cores(self) -> int:
        """This node's share of the machine's cores."""
        return max(1, processes.cores() // self.node.nodes_here)

    def ranks(self) -> List[int]:
        return [process.rank for process in distributions.of(self.plan).node_processes(self.node.rank)]

    def prepare_metrics(self) -> None:
        """Make MLflow's folders for the ranks, while other nodes join."""
        if mlflow_store.has_store(self.plan, self.inherited):
            mlflow_store.prepare(self.plan, self.node.run_dir, self.ranks())

    def _ports(self) -> List[int]:
        """Free ports that this node offers."""
        return network.free_ports(self.distribution.ports(self.node.rank))

    def _infiniband(self) -> Optional[List[str]]:
        """This node's usable devices; a node alone needs none."""
        if self.plan["nodes"] == 1:
            return None
        from ..system import infiniband

        return infiniband.usable(self.plan.get("network") or {})

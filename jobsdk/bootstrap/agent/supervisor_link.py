"""Between a bootstrap of the local compute and its supervisor: signs of life, words about other bootstraps."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Callable, Optional

from ..control.channel import Channel, Message
from ..control.loop import Loop
from ..control.server import Pulse
from .requests import answer_stacks

if TYPE_CHECKING:
    from ..coordinator.coordinator import Coordinator
    from ..spec.plan import Plan


class Lifeline:
    """The bootstrap's end of it. `coordinator` is set on node 0; `gone()` is called when nobody is at the other end."""

    def __init__(
        self, loop: Loop, sock: socket.socket, plan: Plan, run_dir: str, gone: Callable[[], None], heartbeat: float
    ) -> None:
        self.coordinator: Optional[Coordinator] = None
        self._plan = plan
        self._run_dir = run_dir
        self._gone = gone
        self._channel = Channel(loop, sock, self._hear, self._closed)
        self._pulse = Pulse(loop, lambda _: self._channel.send({"type": "alive"}), heartbeat)  # a hang is found out

    def ask_for_node(self, number: int) -> None:
        """Have the supervisor start another bootstrap for a node."""
        self._channel.send({"type": "replace", "node": number})

    def _closed(self, why: str) -> None:
        self._gone()
        if self.coordinator is not None:
            self.coordinator.lost(0, "the supervisor of this run was killed")

    def _hear(self, message: Message) -> None:
        coordinator, word = self.coordinator, message["type"]
        if coordinator is None:
            return
        if word == "cancel":
            coordinator.cancel()
        elif word == "lost" and not coordinator.members.has_joined(message["node"], message["pid"]):
            coordinator.never_joined(message["node"], message["code"])
        elif word == "stacks":
            answer_stacks(coordinator, self._plan, self._run_dir, message["id"])

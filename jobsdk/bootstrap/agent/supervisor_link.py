"""Between a bootstrap of the local compute and its supervisor: signs of life, words about other bootstraps."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Callable, Optional

from ..control.loop import Loop
from ..control.server import Pulse
from .requests import answer_stacks

if TYPE_CHECKING:
    from ..coordinator.coordinator import Coordinator
    from ..spec.plan import Plan


class Lifeline:
    """The bootstrap's end of it. `coordinator` is set on node 0; `gone()` is called when nobody is at the other end.

    What comes are lines: "cancel", "lost K PID CODE" (that bootstrap of node K has ended), "stacks ID".
    """

    def __init__(
        self, loop: Loop, sock: socket.socket, plan: Plan, run_dir: str, gone: Callable[[], None], heartbeat: float
    ) -> None:
        self.coordinator: Optional[Coordinator] = None
        self._loop = loop
        self._sock = sock
        self._plan = plan
        self._run_dir = run_dir
        self._gone = gone
        sock.setblocking(False)
        loop.on_readable(sock, self._hear)
        self._pulse = Pulse(loop, lambda stood_still: self._say(b"."), heartbeat)  # one that hangs is found out

    def ask_for_node(self, number: int) -> None:
        """Have the supervisor start another bootstrap for a node."""
        self._say(b"replace %d" % number)

    def _say(self, words: bytes) -> None:
        try:
            self._sock.send(words + b"\n")
        except OSError:
            pass  # its end is seen where it is read

    def _hear(self) -> None:
        try:
            words = self._sock.recv(4096)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            words = b""
        if not words:
            self._loop.forget(self._sock)
            self._gone()
        if self.coordinator is None:
            return
        if not words:
            self.coordinator.lost(0, "the supervisor of this run was killed")
        for line in words.decode().splitlines():
            word, *given = line.split()
            if word == "cancel":
                self.coordinator.cancel()
            elif word == "lost" and not self.coordinator.has_joined(int(given[0]), int(given[1])):
                self.coordinator.never_joined(int(given[0]), int(given[2]))
            elif word == "stacks":
                answer_stacks(self.coordinator, self._plan, self._run_dir, given[0])

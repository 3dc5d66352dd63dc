"""Who can connect to whom: a port that says which node it is, and connections to all others at once."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import TYPE_CHECKING, Callable, List, Mapping, Tuple

from ..control.loop import Loop
from ..spec import facts
from ..system import network

if TYPE_CHECKING:
    from ..spec.preflight_messages import Reached

#: Seconds for a connection, which the other's kernel accepts, and then for what the other sends over it.
_CONNECT_TIMEOUT, _RECEIVE_TIMEOUT = 2.0, 4.0
_AT_ONCE = 64
#: What a node sends to who connects: more than the largest packet, so that packets that are lost on the way show.
_GREETING = 16 << 10


class Listener:
    """Listens on a port of its own, and greets everyone who connects with this node's number."""

    def __init__(self, loop: Loop, address: str, number: int) -> None:
        self._socket = network.listener(address, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * _GREETING)  # a greeting fits at once
        self._greeting = (b"%d\n" % number).ljust(_GREETING, b".")
        self.port = int(self._socket.getsockname()[1])
        loop.on_readable(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            try:
                sock.setblocking(False)
                sock.send(self._greeting)
            except OSError:
                pass  # who asked has gone
            sock.close()


class Links:
    """Connects to every node of `targets` (node -> address, port); `done` gets what came of each."""

    def __init__(
        self, loop: Loop, targets: Mapping[int, Tuple[str, int]], done: Callable[[List[Reached]], None]
    ) -> None:
        self._loop = loop
        self._waiting = list(targets.items())
        self._open = 0
        self._results: List[Reached] = []
        self._done = done
        self._next()

    def _next(self) -> None:
        while self._waiting and self._open < _AT_ONCE:
            node, (address, port) = self._waiting.pop()
            self._open += 1
            _Link(self._loop, node, address, port, self._ended)
        if not self._open and not self._waiting:
            self._done(sorted(self._results, key=lambda result: result["to"]))

    def _ended(self, result: Reached) -> None:
        self._open -= 1
        self._results.append(result)
        self._loop.later(0.0, self._next)


class _Link:
    """One connection."""

    def __init__(self, loop: Loop, node: int, address: str, port: int, ended: Callable[[Reached], None]) -> None:
        self._loop = loop
        self._ended = ended
        self._result: Reached = {"to": node, "at": facts.endpoint(address, port)}
        self._received = bytearray()
        self._connected = False
        self._over = False
        self._began = time.monotonic()
        target = network.resolve(address)[0]  # no name, so that it neither fails nor takes long
        self._socket = socket.socket(target.family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._deadline = loop.later(_CONNECT_TIMEOUT, self._too_late)
        loop.on_readable(self._socket, self._readable)
        code = self._socket.connect_ex(target.sockaddr(port))
        if code in (0, errno.EINPROGRESS):
            loop.on_writable(self._socket, self._writable)
        else:
            self._end(error=_reason(code))

    def _writable(self) -> None:
        if self._over:
            return
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._end(error=_reason(code))
            return
        self._connected = True
        self._result["ms"] = round((time.monotonic() - self._began) * 1000, 3)
        self._deadline.cancel()
        self._deadline = self._loop.later(_RECEIVE_TIMEOUT, self._too_late)
        self._loop.on_writable(self._socket, None)

    def _readable(self) -> None:
        if self._over:
            return
        try:
            data = self._socket.recv(_GREETING)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error=_reason(error.errno or 0))
            return
        self._received += data
        if data and len(self._received) < _GREETING:
            return
        number = bytes(self._received).partition(b"\n")[0]
        if number != b"%d" % self._result["to"]:
            self._end(error="another program answers there" if number else "the connection was closed")
        elif len(self._received) < _GREETING:
            self._end(error="the connection was closed after %d bytes" % len(self._received))
        else:
            if not self._connected:  # all came before we looked
                self._result["ms"] = round((time.monotonic() - self._began) * 1000, 3)
            self._end()

    def _too_late(self) -> None:
        if self._connected:
            self._end(error="%d of %d bytes came within %.0f s" % (len(self._received), _GREETING, _RECEIVE_TIMEOUT))
        else:
            self._end(error="timed out after %.0f s" % _CONNECT_TIMEOUT)

    def _end(self, error: str = "") -> None:
        if self._over:
            return
        self._over = True
        self._deadline.cancel()
        self._loop.forget(self._socket)
        self._socket.close()
        if error:
            self._result.pop("ms", None)
            self._result.update({"error": error, "stage": "receive" if self._connected else "connect"})
        self._ended(self._result)


def _reason(code: int) -> str:
    # Linux answers so where a route says `blackhole`.
    return "its route is a black hole" if code == errno.EINVAL else os.strerror(code).lower()

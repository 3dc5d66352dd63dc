"""The control port: node 0 listens, every node (and every rank under a foreign launcher) joins."""

from __future__ import annotations

import errno
import socket
import time
from typing import Callable, List, Optional

from .channel import MEMBER_LIMIT, Channel, Handshake, Message, nonce, proof, same
from .loop import Loop

#: A peer that is silent for this long counts as lost (seconds). Everyone says "alive" five times as often.
HEARTBEAT_TIMEOUT = 15.0
_STRANGER_TIMEOUT = 10.0  # seconds to prove that one knows the token
_MAX_STRANGERS = 256  # connections that have proved nothing yet; beyond that the oldest must go


class Pulse:
    """Calls `beat` every few seconds, with whether this process itself stood still meanwhile.

    After a pause of the whole job (SIGSTOP, a suspended laptop, `docker pause`) nobody's silence means anything.
    """

    def __init__(self, loop: Loop, beat: Callable[[bool], None]) -> None:
        self._beat = beat
        self._last = time.monotonic()
        loop.every(HEARTBEAT_TIMEOUT / 5, self._due)

    def _due(self) -> None:
        now = time.monotonic()
        stood_still = now - self._last > 2 * HEARTBEAT_TIMEOUT / 5
        self._last = now
        self._beat(stood_still)


class Peer:
    """A joined member: kind "node" or "rank", and its number."""

    def __init__(self, kind: str, number: int, channel: Channel) -> None:
        self.kind = kind
        self.number = number
        self.channel = channel
        self.last_seen = time.monotonic()

    def send(self, message: Message) -> None:
        self.channel.send(message)


class ControlServer:
    """Lets members in and passes on what they say. `on_leave` gets a member that went, and why."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        token: bytes,
        on_message: Callable[[Peer, Message], None],
        on_leave: Callable[[Peer, str], None],
    ) -> None:
        self.peers: List[Peer] = []
        self._loop = loop
        self._listener = listener
        self._token = token
        self._on_message = on_message
        self._on_leave = on_leave
        self._strangers: List[_Stranger] = []
        self._closed = False
        loop.on_readable(listener, self._accept)
        self._pulse = Pulse(loop, self._beat)

    def broadcast(self, message: Message, kind: str = "node") -> None:
        for peer in list(self.peers):
            if peer.kind == kind:
                peer.send(message)

    def close(self) -> None:
        self._closed = True
        self._loop.forget(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):  # leave them in the backlog for a moment
                    self._loop.forget(self._listener)
                    self._loop.later(0.2, self._accept_again)
                return
            if len(self._strangers) >= _MAX_STRANGERS:  # a member needs milliseconds to introduce itself
                self._strangers[0].drop("too many strangers")
            self._strangers.append(_Stranger(self, sock))

    def _accept_again(self) -> None:
        if not self._closed:
            self._loop.on_readable(self._listener, self._accept)

    def _beat(self, stood_still: bool) -> None:
        now = time.monotonic()
        for peer in list(self.peers):
            if stood_still:
                peer.last_seen = now
            if now - peer.last_seen > HEARTBEAT_TIMEOUT:
                peer.channel.close("nothing heard for %.0f s" % (now - peer.last_seen))
            else:
                peer.send({"type": "alive"})


class _Stranger:
    """A connection that has yet to prove that it knows the token; it then becomes a Peer."""

    def __init__(self, server: ControlServer, sock: socket.socket) -> None:
        self._server = server
        self._nonce = nonce()
        self._peer: Optional[Peer] = None
        self._channel = Channel(server._loop, sock, self._message, self._closed)
        self._deadline = server._loop.later(_STRANGER_TIMEOUT, lambda: self.drop("did not introduce itself"))
        self._channel.send({"nonce": self._nonce})

    def drop(self, why: str) -> None:
        self._channel.close(why)

    def _message(self, message: Message) -> None:
        if self._peer is not None:
            self._peer.last_seen = time.monotonic()
            if message.get("type") != "alive":
                self._server._on_message(self._peer, message)
            return
        kind, number, theirs = message.get("kind"), message.get("number"), message.get("nonce")
        known = kind in ("node", "rank") and isinstance(number, int) and isinstance(theirs, str)
        expected = proof(self._server._token, "member", self._nonce, theirs, kind, number)
        if not known or not same(expected, message.get("proof")):
            self._channel.close("wrong token")
            return
        self._introduced()
        self._channel.limit = MEMBER_LIMIT
        self._peer = Peer(str(kind), int(str(number)), self._channel)
        self._server.peers.append(self._peer)
        self._channel.send({"proof": proof(self._server._token, "control", self._nonce, theirs)})

    def _introduced(self) -> None:
        if self in self._server._strangers:
            self._server._strangers.remove(self)
        self._deadline.cancel()

    def _closed(self, why: str) -> None:
        if self._peer is None:
            self._introduced()
        else:
            self._server.peers.remove(self._peer)
            self._server._on_leave(self._peer, why)


class ControlClient:
    """A member's connection to the control port. Tries again until `timeout` seconds have gone."""

    def __init__(
        self,
        loop: Loop,
        address: str,
        port: int,
        token: bytes,
        kind: str,
        number: int,
        timeout: float,
        on_join: Callable[[], None],
        on_message: Callable[[Message], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.channel: Optional[Channel] = None
        self._loop = loop
        self._target = (address, port)
        self._token = token
        self._identity = (kind, number)
        self._deadline = time.monotonic() + timeout
        self._on_join = on_join
        self._on_message = on_message
        self._on_lost = on_lost
        self._joined = False
        self._refused = False
        self._last_seen = 0.0
        self._try()

    def send(self, message: Message) -> None:
        if self.channel is not None:
            self.channel.send(message)

    def close(self) -> None:
        self._on_lost = lambda why: None
        if self.channel is not None:
            self.channel.close()

    def _try(self, wait: float = 0.02) -> None:
        try:
            sock = socket.create_connection(self._target, timeout=2.0)
        except OSError as error:
            if time.monotonic() > self._deadline:
                where = "%s:%d" % self._target
                self._on_lost("no connection to the control port of node 0 at %s: %s" % (where, error))
            else:
                self._loop.later(wait, lambda: self._try(min(1.0, wait * 1.5)))
            return
        self._handshake = Handshake(self._token, *self._identity)
        self.channel = Channel(self._loop, sock, self._message, self._closed)
        self._last_seen = time.monotonic()

    def _message(self, message: Message) -> None:
        assert self.channel is not None
        self._last_seen = time.monotonic()
        if self._joined:
            if message.get("type") != "alive":
                self._on_message(message)
        elif "nonce" in message:
            self.channel.send(self._handshake.answer(message))
        elif self._handshake.accepts(message):
            self.channel.limit = MEMBER_LIMIT
            self._joined = True
            self._pulse = Pulse(self._loop, self._beat)
            self._on_join()
        else:
            self._refused = True
            self.channel.close("the control port does not know the run's token")

    def _beat(self, stood_still: bool) -> None:
        if self.channel is None or self.channel.closed:
            return
        if stood_still:
            self._last_seen = time.monotonic()
        silent = time.monotonic() - self._last_seen
        if silent > HEARTBEAT_TIMEOUT:
            self.channel.close("node 0 was silent for %.0f s" % silent)
        else:
            self.channel.send({"type": "alive"})

    def _closed(self, why: str) -> None:
        if self._joined or self._refused or time.monotonic() > self._deadline:
            self._on_lost(why)
        else:  # dropped before its turn came
            self._loop.later(0.2, self._try)


def raise_open_files_limit() -> None:
    """Thousands of members need as many open files; the usual soft limit is 1,024."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard == resource.RLIM_INFINITY or soft < min(hard, 65536):
            wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ImportError, ValueError, OSError):
        pass

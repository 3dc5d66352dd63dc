"""The control port: node 0 listens, every node (and every rank under a foreign launcher) joins."""

from __future__ import annotations

import errno
import socket
import sys
import time
from typing import Callable, Dict, List, Optional

from .channel import MEMBER_LIMIT, Channel, Message, Outgoing, encoded, nonce, proof, same
from .loop import Loop

#: Why a node is lost, in the message of a failure.
SILENT = "nothing heard"
#: Whose machine or network fails is found lost within this time (seconds). Everyone says "alive" five times meanwhile.
HEARTBEAT_TIMEOUT_S = 15.0
STRANGER_TIMEOUT_S = 10.0  # seconds to prove that one knows the token
_MAX_STRANGERS = 256  # connections that have proved nothing yet, beside one for each member that is expected


#: "node": a bootstrap; "rank": a rank under a foreign launcher; "shell": who wants commands run on nodes.
_KINDS = ("node", "rank", "shell", "spare")


class Pulse:
    """Calls `beat` every few seconds, with whether this process itself stood still meanwhile.

    After a pause of the whole job (SIGSTOP, a suspended laptop, `docker pause`) nobody's silence means anything.
    """

    def __init__(self, loop: Loop, beat: Callable[[bool], None], timeout: float = HEARTBEAT_TIMEOUT_S) -> None:
        self._beat = beat
        self._period = timeout / 5
        self._last = time.monotonic()
        loop.every(self._period, self._due)

    def silence(self, last_seen: float) -> Optional[float]:
        """The seconds since `last_seen` where they are too many: the next look would be beyond the time allowed."""
        silent = time.monotonic() - last_seen
        return silent if silent > 4 * self._period else None

    def _due(self) -> None:
        now = time.monotonic()
        stood_still = now - self._last > 2 * self._period
        self._last = now
        self._beat(stood_still)


class Peer:
    """A joined member: its kind, and its number.

    A member that tries several addresses may be let in by several and then keep one: only what has `spoken` counts.
    """

    def __init__(self, kind: str, number: int, channel: Channel) -> None:
        self.kind = kind
        self.number = number
        self.channel = channel
        self.last_seen = time.monotonic()
        self.spoken = False
        self.refused = False

    def send(self, message: Outgoing) -> None:
        self.channel.send(message)

    def refuse(self, reason: str) -> None:
        """Tell it that it has no place here. Whose number it has is there already: that it leaves is no news."""
        self.refused = True
        self.send({"type": "refused", "reason": reason})


class ControlServer:
    """Lets members in and passes on what they say. `on_leave` gets a member that went, and why.

    `members` is how many are expected, so that they may all come at once.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        token: bytes,
        on_message: Callable[[Peer, Message], None],
        on_leave: Callable[[Peer, str], None],
        members: int = 0,
        heartbeat: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        self.peers: List[Peer] = []
        self._loop = loop
        self._listener = listener
        self._token = token
        self._on_message = on_message
        self._on_leave = on_leave
        self._strangers: Dict[_Stranger, None] = {}  # in the order in which they came
        self._max_strangers = _MAX_STRANGERS + members
        self._closed = False
        raise_open_files_limit(2 * members + _MAX_STRANGERS + 64)
        loop.on_readable(listener, self._accept)
        self._pulse = Pulse(loop, self._beat, heartbeat)

    def broadcast(self, message: Outgoing, kind: str = "node") -> None:
        frame = encoded(message)
        for peer in list(self.peers):
            if peer.kind == kind:
                peer.channel.send_frame(frame)

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
                if error.errno in (errno.EMFILE, errno.ENFILE):  # the next waits in the backlog for a moment
                    self._drop_oldest("too many open files")
                    self._loop.forget(self._listener)
                    self._loop.later(0.02, self._accept_again)
                return
            if len(self._strangers) >= self._max_strangers:  # a member needs milliseconds to introduce itself
                self._drop_oldest("too many strangers")
            try:
                stranger = _Stranger(self, sock)
            except OSError:  # it has gone already
                sock.close()
            else:
                if not stranger.channel.closed:
                    self._strangers[stranger] = None

    def _drop_oldest(self, why: str) -> None:
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            oldest.channel.close(why)

    def _accept_again(self) -> None:
        if not self._closed:
            self._loop.on_readable(self._listener, self._accept)
            self._accept()

    def _beat(self, stood_still: bool) -> None:
        now = time.monotonic()
        for peer in list(self.peers):
            if stood_still:
                peer.last_seen = now
            silent = self._pulse.silence(peer.last_seen)
            if silent is not None:
                peer.channel.close("%s for %.0f s" % (SILENT, silent))
        for stranger in [one for one in self._strangers if now - one.came > STRANGER_TIMEOUT_S]:
            stranger.channel.close("did not introduce itself")

    def _heard(self, peer: Peer, message: Message) -> None:
        peer.last_seen = time.monotonic()
        if message.get("type") == "alive":  # the time here is for its clock, its own time comes back to it
            peer.send({"type": "alive", "asked": message.get("asked"), "now": time.time()})
            return
        peer.spoken = True
        try:
            self._on_message(peer, message)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # One member must not bring down the job's only control port, whoever is at fault.
            sys.excepthook(type(error), error, error.__traceback__)
            what = "%s: %s" % (type(error).__name__, error)
            peer.channel.close("it sent a message %r that makes no sense (%s)" % (message.get("type"), what))


class _Stranger:
    """A connection that has yet to prove that it knows the token; it then becomes a Peer."""

    def __init__(self, server: ControlServer, sock: socket.socket) -> None:
        self.came = time.monotonic()
        self._server = server
        self._nonce = nonce()
        self.channel = Channel(server._loop, sock, self._message, self._gone)
        self.channel.send({"nonce": self._nonce})

    def _message(self, message: Message) -> None:
        server, channel = self._server, self.channel
        kind, number, theirs = message.get("kind"), message.get("number"), message.get("nonce")
        known = kind in _KINDS and type(number) is int and isinstance(theirs, str)
        expected = proof(server._token, "member", self._nonce, theirs, kind, number)
        if not known or not same(expected, message.get("proof")):
            channel.close("wrong token")
            return
        server._strangers.pop(self, None)
        channel.limit = MEMBER_LIMIT
        peer = Peer(str(kind), int(str(number)), channel)
        server.peers.append(peer)
        channel.on_message = lambda heard: server._heard(peer, heard)
        channel.on_close = lambda why: self._left(peer, why)
        channel.send({"proof": proof(server._token, "control", self._nonce, theirs), "now": time.time()})

    def _gone(self, why: str) -> None:
        self._server._strangers.pop(self, None)

    def _left(self, peer: Peer, why: str) -> None:
        self._server.peers.remove(peer)
        if peer.spoken and not peer.refused:
            self._server._on_leave(peer, why)


def raise_open_files_limit(needed: int) -> None:
    """Thousands of members need as many open files; the usual soft limit is 1,024. It stays where that is enough."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < needed:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard)
            )
    except (ImportError, ValueError, OSError):
        pass

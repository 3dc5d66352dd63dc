"""A member's side of the control port: finds node 0 among the addresses that it may have, joins, keeps its clock."""

from __future__ import annotations

import _thread  # threading would cost 4 ms of every start
import errno
import math
import os
import socket
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple, Union

from ..spec.facts import endpoint
from ..system import network
from .channel import MEMBER_LIMIT, Channel, Handshake, Message, Outgoing
from .loop import Loop
from .server import HEARTBEAT_TIMEOUT_S, STRANGER_TIMEOUT_S, Pulse

_CONNECT_TIMEOUT_S = 5.0  # seconds: room for the second repetition of a lost packet
_FIRST_WAIT, _LAST_WAIT = 0.02, 1.0  # seconds between two attempts at an address; each wait is half as long again
_GONE_S = 60.0  # seconds: a name that existed and has not for so long is no name server's mistake
_TELL_EVERY_S = 10.0  # seconds between two words about what keeps us waiting

_SockAddr = Tuple[Any, ...]
_REASONS = {
    errno.ECONNREFUSED: "refused the connection",
    errno.ETIMEDOUT: "does not answer",
    errno.EHOSTUNREACH: "cannot be reached (no route)",
    errno.ENETUNREACH: "cannot be reached (no route)",
}
_NAME_REASONS = {
    socket.EAI_NONAME: "name not known",
    getattr(socket, "EAI_NODATA", socket.EAI_NONAME): "name not known",
    socket.EAI_AGAIN: "name not known (the name server does not answer)",
}
_NO_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


class Clock:
    """Node 0's time, by NTP's rule (RFC 5905): of the last few exchanges the one with the least round trip counts.

    It is kept as a distance to the monotonic clock, so that a step of this machine's own clock does no harm.
    """

    def __init__(self) -> None:
        self._samples: Deque[Tuple[float, float]] = deque(maxlen=8)  # (round trip, distance), seconds

    def sample(self, asked: object, theirs: object) -> None:
        """`asked`: our monotonic clock when the question went; `theirs`: node 0's time when it answered."""
        if isinstance(asked, float) and isinstance(theirs, float):
            answered = time.monotonic()
            self._samples.append((answered - asked, theirs - (asked + answered) / 2))

    def now(self) -> float:
        """Node 0's time (epoch seconds); this machine's own before anything was measured."""
        return time.monotonic() + min(self._samples)[1] if self._samples else time.time()


class ControlClient:
    """A member's connection to the control port.

    Every address of every name in `addresses` is tried at every port, at the same time, again and again; the first at
    which the other side proves to know the token is kept. What answers, but is something else, is passed over. Names
    are resolved again each time: a cluster's DNS may learn them after we have started. `on_join` tells that it is done;
    `on_lost` gets why the connection ended, or after `timeout` seconds what was wrong with each address. `say` gets a
    line about that every 10 s meanwhile. Unless node 0 `may_return`, the search ends when all names have vanished: a
    cluster's DNS forgets a pod that has ended.
    """

    def __init__(
        self,
        loop: Loop,
        addresses: Sequence[str],
        ports: Sequence[int],
        token: bytes,
        kind: str,
        number: int,
        timeout: float,
        on_join: Callable[[], None],
        on_message: Callable[[Message], None],
        on_lost: Callable[[str], None],
        say: Callable[[str], None] = lambda text: None,
        heartbeat: float = HEARTBEAT_TIMEOUT_S,
        *,
        may_return: bool = True,
    ) -> None:
        self.channel: Optional[Channel] = None
        self.reached: Optional[Tuple[str, int]] = None  # the address and port at which node 0 was found
        self._loop = loop
        self._ports = ports
        self._token = token
        self._identity = (kind, number)
        self._timeout = timeout
        self._on_join = on_join
        self._on_message = on_message
        self._on_lost = on_lost
        self._say = say
        self._heartbeat = heartbeat
        self._clock = Clock()
        self._searching = True
        self._attempts: Dict[_SockAddr, _Attempt] = {}  # under way
        self._troubles: Dict[object, str] = {}  # what was wrong the last time: with a name, or with an address
        self._waits = dict.fromkeys(addresses, _FIRST_WAIT)
        self._may_return = may_return
        self._vanished: Dict[str, float] = {}  # names that existed -> since when they do not; infinity: they do
        self._last_seen = 0.0
        self._give_up = loop.later(timeout, self._not_found)
        self._tell_again = loop.later(_TELL_EVERY_S, self._tell)
        for name in self._waits:
            self._look(name)

    def send(self, message: Outgoing) -> None:
        if self.channel is not None:
            self.channel.send(message)

    def close(self) -> None:
        self._on_lost = lambda why: None
        self._end_search()
        if self.channel is not None:
            self.channel.close()

    def now(self) -> float:
        """Node 0's time (epoch seconds), so that times of all nodes compare."""
        return self._clock.now()

    @property
    def offset(self) -> float:
        """The seconds to add to `time.time()` for node 0's time."""
        return self._clock.now() - time.time()

    # -- the search ----------------------------------------------------------------------------------------------

    def _look(self, name: str) -> None:
        """Resolve a name, try all addresses of it that are not being tried, and do so again after a wait."""
        if not self._searching:
            return
        try:
            found = network.resolve(name, numeric=True)
        except OSError:
            _resolve_aside(self._loop, name, lambda answer: self._resolved(name, answer))
        else:
            self._resolved(name, found)

    def _resolved(self, name: str, answer: Union[List[network.Target], Exception]) -> None:
        if not self._searching:
            return
        if isinstance(answer, Exception):
            self._troubles[name] = "%s: %s" % (name, _name_trouble(answer))
            if getattr(answer, "errno", None) in _NO_NAME and name in self._vanished:
                self._vanished[name] = min(self._vanished[name], time.monotonic())
                if self._is_gone():
                    self._not_found("node 0 has ended: %s no longer exists" % ", ".join(self._waits))
                    return
        else:
            self._troubles.pop(name, None)
            self._vanished[name] = math.inf
            for target in answer:
                for port in self._ports:
                    address = target.sockaddr(port)
                    if self._searching and address not in self._attempts:
                        self._attempts[address] = attempt = _Attempt(self, name, target, address)
                        attempt.start()
        wait = self._waits[name]
        self._waits[name] = min(_LAST_WAIT, 1.5 * wait)
        self._loop.later(wait, lambda: self._look(name))

    def _is_gone(self) -> bool:
        """Whether all names have vanished, and for long."""
        latest = max(self._vanished.get(name, math.inf) for name in self._waits)
        return not self._may_return and time.monotonic() - latest >= _GONE_S

    def _failed(self, attempt: _Attempt, why: str) -> None:
        if self._searching:
            self._attempts.pop(attempt.address, None)
            self._troubles[attempt.address] = "%s %s" % (attempt.label, why)

    def _found(self, attempt: _Attempt, channel: Channel, reply: Message) -> None:
        """This is node 0: the connection is ours from here on."""
        self._attempts.pop(attempt.address, None)
        self._end_search()
        self._clock.sample(attempt.asked, reply.get("now"))
        self.channel, self.reached = channel, (channel.remote_address, attempt.address[1])
        channel.limit = MEMBER_LIMIT
        channel.on_message, channel.on_close = self._message, self._closed
        self._last_seen = time.monotonic()
        self._pulse = Pulse(self._loop, self._beat, self._heartbeat)
        self._on_join()

    def _end_search(self) -> None:
        self._searching = False
        self._give_up.cancel()
        self._tell_again.cancel()
        for attempt in list(self._attempts.values()):
            attempt.abandon()
        self._attempts.clear()

    def _not_found(self, why: str = "") -> None:
        late = "no connection to node 0's control port within %.0f s: %s" % (self._timeout, self._what_is_wrong())
        self._end_search()
        self._on_lost(why or late)

    def _tell(self) -> None:
        self._say("waiting for node 0: %s" % self._what_is_wrong())
        self._tell_again = self._loop.later(_TELL_EVERY_S, self._tell)

    def _what_is_wrong(self) -> str:
        known = dict.fromkeys(self._troubles.values())
        waiting = (attempt for address, attempt in self._attempts.items() if address not in self._troubles)
        known.update(dict.fromkeys("%s has not answered yet" % attempt.label for attempt in waiting))
        return "; ".join(known) or "no name was resolved yet (%s)" % ", ".join(self._waits)

    # -- the member's life ---------------------------------------------------------------------------------------

    def _message(self, message: Message) -> None:
        self._last_seen = time.monotonic()
        if message.get("type") == "alive":
            self._clock.sample(message.get("asked"), message.get("now"))
        else:
            self._on_message(message)

    def _beat(self, stood_still: bool) -> None:
        if self.channel is None or self.channel.closed:
            return
        if stood_still:
            self._last_seen = time.monotonic()
        silent = self._pulse.silence(self._last_seen)
        if silent is not None:
            self.channel.close("node 0 was silent for %.0f s" % silent)
        else:
            self.channel.send({"type": "alive", "asked": time.monotonic()})

    def _closed(self, why: str) -> None:
        self._on_lost(why)


class _Attempt:
    """One address and port: from the first packet to the proof that node 0 of this run is there."""

    def __init__(self, client: ControlClient, name: str, target: network.Target, address: _SockAddr) -> None:
        self.address = address
        where = endpoint(name, address[1])
        self.label = where if name == target.host or "%" in name else "%s (%s)" % (where, target.host)
        self.asked = 0.0  # when we introduced ourselves (monotonic clock)
        self._client = client
        self._family = target.family
        self._sock: Optional[socket.socket] = None
        self._channel: Optional[Channel] = None
        self._over = False
        self._handshake = Handshake(client._token, *client._identity)
        self._limit = client._loop.later(_CONNECT_TIMEOUT_S, lambda: self._end("does not answer"))

    def start(self) -> None:
        try:
            self._sock = sock = socket.socket(self._family, socket.SOCK_STREAM)
            sock.setblocking(False)
            code = sock.connect_ex(self.address)
        except OSError as error:
            code = error.errno or errno.EIO
        if code not in (0, errno.EINPROGRESS, errno.EINTR):
            self._end(_REASONS.get(code) or os.strerror(code))
            return
        self._client._loop.on_readable(sock, self._connected)
        self._client._loop.on_writable(sock, self._connected)

    def abandon(self) -> None:
        """End it without a word."""
        self._over = True
        self._limit.cancel()
        if self._channel is not None:
            self._channel.close()
        elif self._sock is not None:
            self._client._loop.forget(self._sock)
            self._sock.close()

    def _end(self, why: str) -> None:
        if not self._over:
            self.abandon()
            self._client._failed(self, why)

    def _connected(self) -> None:
        """The connection stands, or there is none; called twice where it can be read too."""
        if self._over or self._channel is not None or self._sock is None:
            return
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        try:
            # Where nobody listens, a socket may be given the very port that it connects to, and so meet itself.
            itself = not code and self._sock.getsockname() == self._sock.getpeername()
        except OSError as error:
            code, itself = error.errno or errno.EIO, False
        if code or itself:
            self._end(_REASONS[errno.ECONNREFUSED] if itself else _REASONS.get(code) or os.strerror(code))
            return
        loop = self._client._loop
        loop.forget(self._sock)
        self._limit.cancel()
        self._limit = loop.later(STRANGER_TIMEOUT_S, lambda: self._end("accepted the connection, but says nothing"))
        self._channel = Channel(loop, self._sock, self._message, self._closed)

    def _message(self, message: Message) -> None:
        assert self._channel is not None
        if not self.asked and "nonce" in message:
            self.asked = time.monotonic()
            self._channel.send(self._handshake.answer(message))
        elif self._handshake.accepts(message):
            self._over = True
            self._limit.cancel()
            self._client._found(self, self._channel, message)
        else:
            self._end("answered, but is not this job")

    def _closed(self, why: str) -> None:
        if self.asked:
            self._end("answered, but is not this job")
        elif why == "connection closed":
            self._end("closed the connection")
        else:
            self._end("answered, but is no control port")


def _name_trouble(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return _NAME_REASONS.get(error.errno or 0) or error.strerror or str(error)
    return "not a name (%s)" % error


def _resolve_aside(loop: Loop, name: str, done: Callable[[Union[List[network.Target], Exception]], None]) -> None:
    """Resolve a name in a thread: it may take many seconds, and heartbeats and signals cannot wait."""
    answers: List[Union[List[network.Target], Exception]] = []
    read, write = os.pipe()

    def resolve() -> None:
        try:
            answers.append(network.resolve(name))
        except (OSError, UnicodeError) as error:
            answers.append(error)
        finally:
            os.close(write)

    def resolved() -> None:
        loop.forget(read)
        os.close(read)
        done(answers[0])

    loop.on_readable(read, resolved)
    _thread.start_new_thread(resolve, ())

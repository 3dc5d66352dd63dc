"""Framed JSON over a non-blocking socket, and the HMAC challenge that lets a peer in.

A frame is a 4-byte big-endian length and that many bytes of JSON. Until a peer has proved that it knows the run's
token, its frames may hold 512 bytes and no more than that is read of what it sends, so that a stranger can make nobody
allocate more. The token itself never travels.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
from typing import Any, Callable, Dict, Mapping, Optional

from ..system import network
from .loop import Loop

Message = Dict[str, Any]  # as it comes: what is in it has types in spec/messages
Outgoing = Mapping[str, object]
STRANGER_LIMIT = 512
MEMBER_LIMIT = 16 << 20
_CHUNK = 1 << 16  # bytes that are read from a member at a time


def encoded(message: Outgoing) -> bytes:
    """The frame of a message."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return len(body).to_bytes(4, "big") + body


def received(sock: socket.socket, limit: int) -> Message:
    """The next message of a blocking socket. Raises ConnectionError at its end, ValueError for one that is too long or
    no JSON object."""
    size = int.from_bytes(_exactly(sock, 4), "big")
    if size > limit:
        raise ValueError("a frame of %d bytes" % size)
    message = json.loads(_exactly(sock, size))
    if not isinstance(message, dict):
        raise ValueError("no JSON object")
    return message


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(min(size - len(data), _CHUNK))
        if not piece:
            raise ConnectionError("the other side has closed the connection")
        data += piece
    return bytes(data)


def _nobody(_: Any) -> None:
    """Hears what comes after the end."""


class Channel:
    """One connection: `send` queues a message, `on_message` gets each that arrives, `on_close` why it ended, once.

    Both may be replaced while it lives. `local_address` and `remote_address` are empty for a socket pair, and where the
    other side has gone before we looked.
    """

    def __init__(
        self, loop: Loop, sock: socket.socket, on_message: Callable[[Message], None], on_close: Callable[[str], None]
    ) -> None:
        self.limit = STRANGER_LIMIT
        self.closed = False
        self.on_message = on_message
        self.on_close = on_close
        self._loop = loop
        self._sock = sock
        self._incoming = bytearray()
        self._outgoing = bytearray()
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.local_address = network.plain(str(sock.getsockname()[0]))
            self.remote_address = network.plain(str(sock.getpeername()[0]))
        except OSError:
            self.local_address = self.remote_address = ""
        loop.on_readable(sock, self._readable)

    def send(self, message: Outgoing) -> None:
        self.send_frame(encoded(message))

    def send_frame(self, frame: bytes) -> None:
        """Send what `encoded` has made: for a message that many get."""
        if not self.closed:
            self._outgoing += frame
            self._flush()

    def close(self, why: str = "closed") -> None:
        if not self.closed:
            self.closed = True
            self._loop.forget(self._sock)
            self._sock.close()
            on_close, self.on_close, self.on_message = self.on_close, _nobody, _nobody
            on_close(why)

    def _flush(self) -> None:
        while self._outgoing and not self.closed:
            try:
                sent = self._sock.send(self._outgoing)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.close(str(error))
                return
            del self._outgoing[:sent]
        if not self.closed:
            self._loop.on_writable(self._sock, self._flush if self._outgoing else None)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(min(_CHUNK, 4 + self.limit - len(self._incoming)))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(error.strerror or str(error))
            return
        if not data:
            self.close("connection closed")
            return
        self._incoming += data
        while not self.closed and len(self._incoming) >= 4:
            length = int.from_bytes(self._incoming[:4], "big")
            if length > self.limit:
                self.close("it sent a frame of %d bytes, more than %d" % (length, self.limit))
                return
            if len(self._incoming) < 4 + length:
                return
            body = bytes(self._incoming[4 : 4 + length])
            del self._incoming[: 4 + length]
            try:
                message = json.loads(body)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self.close("it sent what is no JSON object")
                return
            self.on_message(message)


def proof(token: bytes, side: str, *parts: object) -> str:
    """What shows the other side that we know the token; `side` keeps one side's proof from serving as the other's."""
    text = "|".join([side] + [str(part) for part in parts])
    return hmac.new(token, text.encode("utf-8", "replace"), "sha256").hexdigest()


def same(expected: str, given: object) -> bool:
    return isinstance(given, str) and hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))


def nonce() -> str:
    return os.urandom(16).hex()


class Handshake:
    """The client's half of the challenge: `answer` the server's nonce, then check the server's own proof."""

    def __init__(self, token: bytes, kind: str, number: int) -> None:
        self._token = token
        self._identity = (kind, number)
        self._nonces: Optional[Any] = None

    def answer(self, challenge: Message) -> Message:
        theirs, ours = str(challenge.get("nonce")), nonce()
        self._nonces = (theirs, ours)
        kind, number = self._identity
        mac = proof(self._token, "member", theirs, ours, kind, number)
        return {"kind": kind, "number": number, "nonce": ours, "proof": mac}

    def accepts(self, reply: Message) -> bool:
        return self._nonces is not None and same(proof(self._token, "control", *self._nonces), reply.get("proof"))

"""The control port against strangers, garbage and wrong tokens, with real sockets."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jobsdk.bootstrap import channel, control, network
from jobsdk.bootstrap.control import ControlServer, Peer
from jobsdk.bootstrap.loop import Loop

TOKEN = b"t" * 32


class Server:
    """A control port in a child process, which echoes what members say."""

    def __init__(self) -> None:
        listener = network.listener("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.pid = os.fork()
        if self.pid == 0:
            try:
                loop = Loop()
                ControlServer(loop, listener, TOKEN, self._echo, lambda peer, why: None)
                loop.run()
            finally:
                os._exit(0)
        listener.close()

    @staticmethod
    def _echo(peer: Peer, message: dict[str, Any]) -> None:
        peer.send({"type": "echo", "from": [peer.kind, peer.number], "said": message})

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    os.kill(server.pid, 9)
    os.waitpid(server.pid, 0)


def read(sock: socket.socket) -> dict[str, Any] | None:
    """One frame; None when the other side has closed."""

    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                more = sock.recv(count - len(data))
            except ConnectionResetError:
                return b""
            if not more:
                return b""
            data += more
        return data

    head = exactly(4)
    return json.loads(exactly(int.from_bytes(head, "big"))) if head else None


def write(sock: socket.socket, message: Any) -> None:
    body = json.dumps(message).encode()
    sock.sendall(len(body).to_bytes(4, "big") + body)


def join(server: Server, token: bytes = TOKEN, number: int = 3) -> tuple[socket.socket, dict[str, Any] | None]:
    sock = server.connect()
    handshake = channel.Handshake(token, "node", number)
    challenge = read(sock)
    assert challenge is not None
    write(sock, handshake.answer(challenge))
    answer = read(sock)
    if answer is not None:
        assert handshake.accepts(answer)
    return sock, answer


def test_a_member_joins_and_the_token_never_travels(server: Server) -> None:
    sock, answer = join(server)
    assert answer is not None
    write(sock, {"type": "hello"})
    assert read(sock) == {"type": "echo", "from": ["node", 3], "said": {"type": "hello"}}
    assert TOKEN.hex() not in json.dumps(answer)


def test_a_wrong_token_is_shown_the_door(server: Server) -> None:
    _, answer = join(server, token=b"x" * 32)
    assert answer is None


def test_the_servers_proof_cannot_be_replayed_as_a_members() -> None:
    first, second = "aa", "bb"
    assert channel.proof(TOKEN, "control", first, second) != channel.proof(TOKEN, "member", first, second)


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", (513).to_bytes(4, "big") + b"x" * 513, b"\0\0\0\2[]", b"\0\0\0\4nope",
     b"\0\0\0\0", b'\0\0\0\x0f{"number": "x"}', b"\x7f\xff\xff\xff",
     b'\0\0\0\x37{"kind":"node","number":1,"nonce":"\\ud800","proof":"x"}',
     b'\0\0\0\x2f{"kind":"node","number":1,"nonce":7,"proof":"x"}'],
)  # fmt: skip
def test_garbage_is_cut_off_and_hurts_nobody(server: Server, garbage: bytes) -> None:
    member, _ = join(server)
    stranger = server.connect()
    assert read(stranger) is not None
    stranger.sendall(garbage)
    assert read(stranger) is None
    write(member, {"type": "still here"})
    answer = read(member)
    assert answer is not None
    assert answer["said"] == {"type": "still here"}


def test_strangers_beyond_the_limit_push_out_the_oldest_not_a_member(server: Server) -> None:
    member, _ = join(server)
    strangers = [server.connect() for _ in range(300)]
    late, answer = join(server, number=9)
    assert answer is not None
    assert read(strangers[0]) is not None, "the challenge"
    assert read(strangers[0]) is None, "pushed out"
    for sock in (member, late):
        write(sock, {"type": "hello"})
        assert read(sock) is not None


def test_a_pulse_tells_when_the_process_itself_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "HEARTBEAT_TIMEOUT", 0.5)
    loop = Loop()
    beats: list[bool] = []

    def beat(stood_still: bool) -> None:
        beats.append(stood_still)
        if len(beats) == 2:
            time.sleep(0.5)  # as if stopped for longer than two beats
        if len(beats) == 5:
            loop.stop()

    control.Pulse(loop, beat)
    loop.run()
    assert beats[:2] == [False, False]
    assert True in beats[2:]


def test_many_members_and_silent_strangers_at_once(server: Server) -> None:
    strangers = [server.connect() for _ in range(50)]
    joined: list[Any] = []
    threads = [threading.Thread(target=lambda n=n: joined.append(join(server, number=n))) for n in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(joined) == 100
    assert all(answer is not None for _, answer in joined)
    for sock in strangers + [sock for sock, _ in joined]:
        sock.close()

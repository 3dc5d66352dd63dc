"""The control port's own side, against strangers, garbage and wrong tokens, with real sockets."""

from __future__ import annotations

import json
import os
import resource
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobsdk.bootstrap.control import channel
from jobsdk.bootstrap.control import server as control
from jobsdk.bootstrap.control.loop import Loop
from jobsdk.bootstrap.control.server import ControlServer, Peer
from jobsdk.bootstrap.system import network
from tests.bootstrap.runs import wait_for

TOKEN = b"t" * 32


class Server:
    """A control port in a child process, which echoes what members say and tells them who has left."""

    def __init__(
        self, address: str = "127.0.0.1", token: bytes = TOKEN, before: Callable[[], None] = lambda: None
    ) -> None:
        listener = network.listener(address, 0)
        self.port = listener.getsockname()[1]
        self.pid = os.fork()
        if self.pid == 0:
            try:
                before()
                loop = Loop()
                self.control = ControlServer(loop, listener, token, self._heard, self._left)
                loop.run()
            finally:
                os._exit(0)
        listener.close()

    def _heard(self, peer: Peer, message: dict[str, Any]) -> None:
        if message["type"] == "refuse me":
            peer.refuse("as you wish")
        elif message["type"] == "tell all":
            self.control.broadcast({"type": "told", "said": message["said"]})
        elif message["type"] == "memory":
            if not tracemalloc.is_tracing():
                tracemalloc.start()
            peer.send({"type": "memory", "now": tracemalloc.get_traced_memory()[0]})
        else:
            peer.send({"type": "echo", "from": [peer.kind, peer.number], "said": message})

    def _left(self, peer: Peer, why: str) -> None:
        self.control.broadcast({"type": "left", "number": peer.number, "why": why})

    def end(self) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.end()


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
    return sock, introduce(sock, token, number)


def introduce(sock: socket.socket, token: bytes = TOKEN, number: int = 3) -> dict[str, Any] | None:
    """What the control port answers; None where it hangs up."""
    handshake = channel.Handshake(token, "node", number)
    challenge = read(sock)
    assert challenge is not None
    write(sock, handshake.answer(challenge))
    answer = read(sock)
    if answer is not None:
        assert handshake.accepts(answer)
    return answer


def ask(sock: socket.socket, message: dict[str, Any]) -> dict[str, Any]:
    write(sock, message)
    answer = read(sock)
    assert answer is not None
    return answer


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


def test_a_stranger_who_says_nothing_is_sent_away_and_one_who_dribbles_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "STRANGER_TIMEOUT_S", 0.2)

    def quick_beats(pulse: control.Pulse, loop: Loop, beat: Callable[[bool], None], timeout: float) -> None:
        init(pulse, loop, beat, 0.5)

    init = control.Pulse.__init__
    monkeypatch.setattr(control.Pulse, "__init__", quick_beats)
    server = Server()
    try:
        silent, dribbling = server.connect(), server.connect()
        assert read(silent) is not None
        assert read(dribbling) is not None
        dribbling.sendall(b"\0\0\0\x40{")
        assert read(silent) is None
        assert read(dribbling) is None
    finally:
        server.end()


def test_strangers_make_it_allocate_no_more_than_a_few_kilobytes_each(server: Server) -> None:
    """512 bytes are the most that is kept of what a stranger says, whatever length it announces."""
    member, _ = join(server)
    before = ask(member, {"type": "memory"})["now"]
    strangers = [server.connect() for _ in range(100)]
    for sock in strangers:
        assert read(sock) is not None
        sock.sendall((512).to_bytes(4, "big") + b"x" * 511)  # all but the last byte, and so it waits
    each = (ask(member, {"type": "memory"})["now"] - before) / len(strangers)
    assert 500 < each < 6000
    for sock in strangers:
        sock.close()
    for _ in range(600):  # come and gone: nothing of them is kept, but for what Python has yet to collect
        with server.connect() as sock:
            sock.sendall(b"\x7f\xff\xff\xff")
    wait_for(lambda: ask(member, {"type": "memory"})["now"] - before < 400_000)


def test_no_more_than_a_strangers_frame_is_read_at_a_time() -> None:
    sizes: list[int] = []

    class Counting(socket.socket):
        def recv(self, size: int, flags: int = 0) -> bytes:
            sizes.append(size)
            return super().recv(size, flags)

    ended: list[str] = []
    loop = Loop()

    def end(why: str) -> None:
        ended.append(why)
        loop.stop()

    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as peer:
        accepted = listening.accept()[0]
        channel.Channel(loop, Counting(fileno=accepted.detach()), lambda message: None, end)
        peer.sendall((512).to_bytes(4, "big") + b"x" * 100_000)
        loop.run()
    assert ended == ["it sent what is no JSON object"]
    assert 0 < max(sizes) <= 4 + 512


def test_too_many_open_files_leave_room_for_a_member() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def few() -> None:
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, used + 20))

    server = Server(before=few)
    try:
        strangers = [server.connect() for _ in range(100)]
        member, answer = join(server)
        assert answer is not None
        assert ask(member, {"type": "hello"})["type"] == "echo"
        for sock in strangers:
            sock.close()
    finally:
        server.end()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


@pytest.mark.parametrize(
    ("rubbish", "why"),
    [
        (b"\0\0\0\4nope", "it sent what is no JSON object"),
        (b"\0\0\0\x02[]", "it sent what is no JSON object"),
        (b"\0\x04\0\0" + b"[" * (4 << 16), "it sent what is no JSON object"),
        (b"\x7f\xff\xff\xff", "it sent a frame of 2147483647 bytes, more than 16777216"),
        (b"\0\0\0\x02{}", "it sent a message None that makes no sense (KeyError: 'type')"),
        (b'\0\0\0\x13{"type":"tell all"}', "it sent a message 'tell all' that makes no sense (KeyError: 'said')"),
    ],
)
def test_a_member_that_sends_rubbish_is_dropped_with_a_reason(server: Server, rubbish: bytes, why: str) -> None:
    other, _ = join(server, number=1)
    bad, _ = join(server, number=7)
    ask(bad, {"type": "hello"})
    bad.sendall(rubbish)
    assert read(other) == {"type": "left", "number": 7, "why": why}
    assert read(bad) is None
    assert ask(other, {"type": "hello"})["type"] == "echo"


def test_who_was_refused_or_never_said_a_word_leaves_unnoticed(server: Server) -> None:
    member, _ = join(server, number=1)
    silent, _ = join(server, number=1)  # the same node, by another of node 0's addresses
    silent.close()
    second, _ = join(server, number=1)
    assert ask(second, {"type": "refuse me"}) == {"type": "refused", "reason": "as you wish"}
    second.close()
    third, _ = join(server, number=5)
    ask(third, {"type": "hello"})
    third.close()
    assert read(member) == {"type": "left", "number": 5, "why": "connection closed"}


def test_a_broadcast_reaches_every_node_whole_also_one_that_reads_late(server: Server) -> None:
    members = [join(server, number=number)[0] for number in range(3)]
    text = "x" * (8 << 20)  # more than the kernel's buffers hold
    write(members[0], {"type": "tell all", "said": text})
    assert [read(member) for member in reversed(members)] == [{"type": "told", "said": text}] * 3


def test_a_pulse_tells_when_the_process_itself_stood_still() -> None:
    loop = Loop()
    beats: list[bool] = []

    def beat(stood_still: bool) -> None:
        beats.append(stood_still)
        if len(beats) == 2:
            time.sleep(0.5)  # as if stopped for longer than two beats
        if len(beats) > 2 and False in beats:
            loop.stop()

    control.Pulse(loop, beat, 0.5)
    loop.run()
    assert beats[2]


def test_silence_is_found_before_the_time_allowed_is_over() -> None:
    """Looked at five times in that time: what is not said now will be over the time at the next look."""
    pulse = control.Pulse(Loop(), lambda stood_still: None, 15.0)
    now = time.monotonic()
    assert pulse.silence(now - 11.0) is None
    assert pulse.silence(now - 12.5) is not None

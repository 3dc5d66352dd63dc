"""A member that looks for node 0: real sockets, real name look-ups, a real wrong clock."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.control import client
from jobsdk.bootstrap.control import server as control
from jobsdk.bootstrap.control.client import Clock, ControlClient
from jobsdk.bootstrap.control.loop import Loop
from jobsdk.bootstrap.control.server import ControlServer
from jobsdk.bootstrap.system import network
from tests.bootstrap.control.test_server import TOKEN, Server
from tests.clocks import off_by


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server("")
    yield server
    server.end()


@pytest.fixture
def closed_port() -> int:
    (port,) = network.free_ports(1)
    return port


class Member:
    """A client in a loop of its own, until it has joined or given up."""

    def __init__(self, addresses: list[str], ports: list[int], timeout: float = 30.0, **options: Any) -> None:
        self.loop = Loop()
        self.said: list[str] = []
        self.lost: str | None = None
        self.heard: list[dict[str, Any]] = []
        self.client = ControlClient(
            self.loop, addresses, ports, TOKEN, "node", 4, timeout,
            self.loop.stop, self._hear, self._lose, self.said.append, **options,
        )  # fmt: skip

    def _hear(self, message: dict[str, Any]) -> None:
        self.heard.append(message)
        self.loop.stop()

    def _lose(self, why: str) -> None:
        self.lost = why
        self.loop.stop()

    def run(self) -> Member:
        self.loop.run()
        return self

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self.client.send(message)
        self.loop.run()
        assert self.lost is None
        return self.heard.pop()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_it_joins_by_either_protocol_and_by_name(server: Server, address: str) -> None:
    member = Member([address], [server.port]).run()
    assert member.client.reached is not None
    assert member.client.reached[0] in ("127.0.0.1", "::1")
    assert member.client.reached[1] == server.port
    assert member.ask({"type": "hello"})["from"] == ["node", 4]


@pytest.fixture
def swallowing() -> Iterator[int]:
    """A port that answers nothing at all, as behind a firewall: its queue of connections is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        callers = [socket.socket() for _ in range(4)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]
        for caller in callers:
            caller.close()


def test_of_many_addresses_and_ports_the_one_that_proves_itself_is_kept(
    server: Server, closed_port: int, swallowing: int
) -> None:
    foreign, silent = Server(token=b"x" * 32), socket.create_server(("127.0.0.1", 0))
    ports = [closed_port, swallowing, silent.getsockname()[1], foreign.port, server.port]
    member = Member(["no-such-name.invalid", "127.0.0.1", "::1"], ports).run()
    assert member.client.reached is not None
    assert member.client.reached[1] == server.port
    silent.close()
    foreign.end()


@pytest.mark.slow
def test_giving_up_names_every_address_and_what_was_wrong_with_it(
    closed_port: int, swallowing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_CONNECT_TIMEOUT_S", 4.0)  # what answers may be slow to; all others never do
    monkeypatch.setattr(client, "STRANGER_TIMEOUT_S", 4.0)
    silent, web, foreign = (
        socket.create_server(("127.0.0.1", 0)),
        _Service(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Server(token=b"x" * 32),
    )
    ports = [closed_port, swallowing, silent.getsockname()[1], web.port, foreign.port]
    lost = Member(["127.0.0.1", "no-such-name.invalid"], ports, timeout=10.0).run().lost
    assert lost is not None
    start, _, reasons = lost.partition(": ")
    assert start == "no connection to node 0's control port within 10 s"
    name, *others = sorted(reasons.split("; "), key=lambda reason: "invalid" not in reason)
    assert name.startswith("no-such-name.invalid: name not known")
    assert sorted(others) == sorted(
        [
            f"127.0.0.1:{closed_port} refused the connection",
            f"127.0.0.1:{swallowing} does not answer",
            f"127.0.0.1:{ports[2]} accepted the connection, but says nothing",
            f"127.0.0.1:{web.port} answered, but is no control port",
            f"127.0.0.1:{foreign.port} answered, but is not this job",
        ]
    )
    silent.close()
    web.close()
    foreign.end()


class _Service:
    """Something else on a port: greets whoever comes, and hangs up."""

    def __init__(self, greeting: bytes) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.pid = os.fork()
        if self.pid == 0:
            while True:
                peer, _ = listening.accept()
                peer.sendall(greeting)
                peer.close()
        listening.close()

    def close(self) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


def test_while_it_waits_it_says_what_is_wrong(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_TELL_EVERY_S", 0.2)
    member = Member(["::1"], [closed_port], timeout=0.7).run()
    assert member.said[0] == f"waiting for node 0: [::1]:{closed_port} refused the connection"
    assert member.lost is not None


def test_a_slow_name_server_stops_neither_the_loop_nor_the_search(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a real name server could be slow for real; here every look-up of a name hangs until the end."""
    read, write = os.pipe()
    real = socket.getaddrinfo

    def slow(host: bytes, *args: Any, flags: int = 0, **options: Any) -> Any:
        if not flags & socket.AI_NUMERICHOST:
            os.read(read, 1)
        return real(host, *args, flags=flags, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    member = Member(["gpu-a", "127.0.0.1"], [server.port]).run()
    assert member.client.reached == ("127.0.0.1", server.port)
    alone = Member(["gpu-a"], [server.port], timeout=0.1).run()
    assert alone.lost == "no connection to node 0's control port within 0 s: no name was resolved yet (gpu-a)"
    os.close(write)


def test_a_name_that_is_known_only_later_is_found(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Kubernetes, where a pod's name comes after the pod: the resolver's answer changes, the rest is real."""
    answers = iter(["no-such-name.invalid"] * 3)
    real = network.resolve

    def resolve(name: str, numeric: bool = False) -> list[network.Target]:
        return real(name, numeric) if numeric else real(next(answers, "127.0.0.1"))

    monkeypatch.setattr(network, "resolve", resolve)
    member = Member(["gpu-a"], [server.port]).run()
    assert member.client.reached == ("127.0.0.1", server.port)
    assert next(answers, None) is None


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str | int]:
    """What gpu-a resolves to, one look after the other; a number is an error of the resolver, the last is repeated."""
    answers: list[str | int] = []
    real = network.resolve

    def resolve(name: str, numeric: bool = False) -> list[network.Target]:
        if numeric:
            return real(name, numeric)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, int):
            raise socket.gaierror(answer, "as the test says")
        return real(answer)

    monkeypatch.setattr(network, "resolve", resolve)
    return answers


def test_the_search_ends_when_node_0_s_name_has_vanished(
    names: list[str | int], closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Kubernetes, where the name of a pod that has ended is forgotten."""
    monkeypatch.setattr(client, "_GONE_S", 0.1)
    names += ["127.0.0.1", socket.EAI_NONAME]
    member = Member(["gpu-a"], [closed_port], timeout=3600.0, may_return=False).run()
    assert member.lost == "node 0 has ended: gpu-a no longer exists"


@pytest.mark.parametrize(
    ("answers", "may_return"),
    [
        ([socket.EAI_NONAME], False),  # it may not have existed yet
        (["127.0.0.1", socket.EAI_AGAIN], False),  # the name server is to blame
        (["127.0.0.1", socket.EAI_NONAME, "127.0.0.1", socket.EAI_AGAIN], False),  # it came back
        (["127.0.0.1", socket.EAI_NONAME], True),
    ],
)
def test_otherwise_it_goes_on(
    answers: list[str | int], may_return: bool, names: list[str | int], closed_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(client, "_GONE_S", 0.05)
    names += answers
    member = Member(["gpu-a"], [closed_port], timeout=1.0, may_return=may_return).run()
    assert member.lost is not None
    assert member.lost.startswith("no connection to node 0's control port within 1 s: ")


def test_it_joins_when_node_0_comes_late_and_what_does_not_answer_stops_neither_loop_nor_search(
    closed_port: int, swallowing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 0 opens its port out of the member's own loop, so that a connect that blocks would be the end of it."""
    monkeypatch.setattr(client, "_CONNECT_TIMEOUT_S", 120.0)
    member = Member(["127.0.0.1"], [swallowing, closed_port], timeout=120.0)
    servers: list[ControlServer] = []

    def open_the_port() -> None:
        listening = network.listener("", closed_port)
        servers.append(ControlServer(member.loop, listening, TOKEN, lambda *_: None, lambda *_: None))

    member.loop.later(0.1, open_the_port)
    member.run()
    assert member.client.reached == ("127.0.0.1", closed_port)
    assert list(member.client._troubles.values()) == [f"127.0.0.1:{closed_port} refused the connection"]


def test_it_knows_when_node_0_falls_silent() -> None:
    """The port stays open, as that of a machine whose network is cut: only its silence tells."""
    server = Server()
    member = Member(["127.0.0.1"], [server.port], heartbeat=0.5).run()
    os.kill(server.pid, 19)  # SIGSTOP
    member.run()
    server.end()
    assert member.lost is not None
    assert member.lost.startswith("node 0 was silent for ")


# -- clocks --------------------------------------------------------------------------------------------------------


def test_the_exchange_with_the_least_round_trip_counts() -> None:
    clock = Clock()
    now = time.monotonic()
    clock.sample(now - 10.0, time.time() + 500.0)  # ten seconds under way: anything may be true
    clock.sample(time.monotonic(), time.time() + 90.0)
    assert abs(clock.now() - time.time() - 90.0) < 1.0
    clock.sample(None, "rubbish")
    assert abs(clock.now() - time.time() - 90.0) < 1.0
    for _ in range(8):  # node 0's clock was set meanwhile
        clock.sample(time.monotonic() - 0.5, time.time() + 30.0 - 0.25)
    assert abs(clock.now() - time.time() - 30.0) < 1.0


_PROGRAM = """
import json, sys, time
from jobsdk.bootstrap.control.client import ControlClient
from jobsdk.bootstrap.control.loop import Loop

def tell():
    trip = min(member._clock._samples)[0]
    print(json.dumps({"own": time.time(), "now": member.now(), "offset": member.offset, "trip": trip}))
    loop.stop()

loop = Loop()
member = ControlClient(loop, ["127.0.0.1"], [int(sys.argv[1])], b"t" * 32, "node", 1, 30.0, tell, print, sys.exit)
loop.run()
"""


@pytest.mark.engine("faketime")
@pytest.mark.parametrize("wrong", [-300.0, 0.0, 90.5])
def test_a_wrong_clock_is_measured_when_joining(server: Server, wrong: float, tmp_path: Path) -> None:
    told: dict[str, float] = {"trip": 9.9}
    while told["trip"] > 0.1:  # a clock cannot be told better than that: one of the two stood still meanwhile
        before = time.time()
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(server.port)],
            env={**os.environ, **off_by(f"{wrong:+}")}, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        after = time.time()
        told = json.loads(done.stdout)
    assert before + wrong - 1e-3 <= told["own"] <= after + wrong + 1e-3, "the clock is wrong indeed"
    assert before - 0.1 <= told["now"] <= after + 0.1
    assert abs(told["offset"] + wrong) < 0.1


@pytest.mark.slow
def test_heartbeats_keep_measuring(server: Server) -> None:
    member = Member(["127.0.0.1"], [server.port], heartbeat=10.0).run()
    assert len(member.client._clock._samples) == 1
    samples = member.client._clock._samples
    while member.lost is None and (len(samples) < 3 or min(samples)[0] > 0.1):  # no clock is told better than that
        member.loop.later(0.01, member.loop.stop)
        member.loop.run()
    assert member.lost is None
    assert abs(member.client.offset) < 0.1
    assert control.HEARTBEAT_TIMEOUT_S == 15.0

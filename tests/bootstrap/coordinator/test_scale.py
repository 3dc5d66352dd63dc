"""A thousand nodes in one rendezvous: the real coordinator and the real clients, over real connections."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.control.client import ControlClient
from jobsdk.bootstrap.control.loop import Loop
from jobsdk.bootstrap.control.server import raise_open_files_limit
from jobsdk.bootstrap.coordinator.coordinator import Coordinator, Settings
from jobsdk.bootstrap.system import network
from tests.bootstrap.runs import plan

NODES, JOINERS = 1000, 2
TOKEN = b"t" * 32
GARBAGE = [b"", b"\xff" * 600, b"GET / HTTP/1.1\r\n\r\n", b"\x7f\xff\xff\xff", b"\0\0\2\0{", b"\0\0\0\2{}"]


@pytest.fixture
def forked() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Runs something in a fork of its own, until the test is over."""
    pids = []

    def fork(run: Callable[[], None]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                run()
                signal.pause()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        pids.append(pid)

    yield fork
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.fixture
def open_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_open_files_limit(3 * NODES)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def join(numbers: range, port: int, out: int) -> None:
    """Members in one loop; a line of JSON when all have been told to start, or when one is lost."""
    loop = Loop()
    members: dict[int, ControlClient] = {}
    told: dict[int, dict[str, Any]] = {}
    lost: list[str] = []

    def member(number: int) -> ControlClient:
        def introduce() -> None:
            offer = {"host": f"host-{number}", "pid": number, "gpus": None, "ports": [20000 + number], "cores": 8}
            members[number].send({"type": "join", **offer})

        def hear(message: dict[str, Any]) -> None:
            told[number] = message
            if len(told) == len(numbers):
                loop.stop()

        def lose(why: str) -> None:
            lost.append(f"node {number}: {why}")
            loop.stop()

        return ControlClient(loop, ["127.0.0.1"], [port], TOKEN, "node", number, 120.0, introduce, hear, lose)

    members.update((number, member(number)) for number in numbers)
    loop.run()
    distinct = {json.dumps(one) for one in told.values()}
    line = json.dumps({"told": len(told), "what": [json.loads(one) for one in distinct], "lost": lost})
    with os.fdopen(out, "w") as file:
        file.write(line + "\n")


@pytest.mark.slow
@pytest.mark.usefixtures("open_files")
@pytest.mark.parametrize("garbage", [[], GARBAGE], ids=["alone", "with garbage thrown at the port"])
def test_a_thousand_nodes_meet(
    tmp_path: Path, forked: Callable[[Callable[[], None]], None], garbage: list[bytes]
) -> None:
    listener = network.listener("127.0.0.1", 0)
    port = listener.getsockname()[1]
    distribution = {"type": "pytorch", "processes": 8, "launcher": "direct"}
    the_plan = plan("true", NODES, distribution, heartbeat_s=300.0, rendezvous_timeout_s=300.0)

    def coordinate() -> None:
        loop = Loop()
        coordinator = Coordinator(loop, the_plan, listener, Settings(str(tmp_path), TOKEN), lambda code: None)
        loop.run()
        del coordinator

    forked(coordinate)
    listener.close()
    began = time.monotonic()
    pipes = [os.pipe() for _ in range(JOINERS)]
    for joiner, (_, write) in enumerate(pipes):
        forked(lambda joiner=joiner, write=write: join(range(joiner, NODES, JOINERS), port, write))  # type: ignore[misc]
        os.close(write)
    thrown = throw(garbage, port, pipes[0][0]) if garbage else 0
    answers = []
    for read, _ in pipes:
        with os.fdopen(read) as file:
            answers.append(json.loads(file.readline()))
    seconds = time.monotonic() - began
    print(f"{NODES} nodes met in {seconds:.2f} s, with {thrown} connections of strangers")
    assert [answer["lost"] for answer in answers] == [[], []]
    assert [answer["told"] for answer in answers] == [NODES // JOINERS] * JOINERS
    (start,) = answers[0]["what"]
    assert answers[1]["what"] == [start]
    assert start["type"] == "start"
    assert start["addresses"] == ["127.0.0.1"] * NODES
    assert start["ports"] == [[20000 + node] for node in range(NODES)]
    joined = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert sum(event["event"] == "node_joined" for event in joined) == NODES
    assert not garbage or thrown > 100


def throw(garbage: list[bytes], port: int, until_readable: int) -> int:
    """Connect as fast as it goes, say something that makes no sense, hang up or stay; how many there were."""
    import select

    open_ones: list[socket.socket] = []
    count = 0
    while not select.select([until_readable], [], [], 0)[0]:
        for text in garbage:
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
            try:
                select.select([], [sock], [], 1.0)
                sock.send(text)
            except OSError:
                pass  # cut off already
            open_ones.append(sock)
            count += 1
        while len(open_ones) > 400:
            open_ones.pop(0).close()
    for sock in open_ones:
        sock.close()
    return count

"""The driver's port, spoken to by the tasks' own end of the line."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from jobsdk.bootstrap.control.channel import encoded
from jobsdk.compute.spark.port import Port
from jobsdk.compute.spark.task import Errand, Line
from jobsdk.errors import ComputeError

TOKEN = b"t" * 32
LONG = 200.0  # seconds that nothing takes, but for a machine that stands still now and then


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port("127.0.0.1", 0, TOKEN, 2)
    yield made
    made.close()


def errand(port: Port, token: bytes = TOKEN) -> Errand:
    return Errand("run", {}, ([], []), ["127.0.0.1"], port.port, token, "gpu")


def test_what_is_said_arrives_and_the_end_too(port: Port) -> None:
    line = Line(errand(port), 1)
    line.send({"type": "lines", "lines": ["a"]})
    assert port.next(LONG) == (1, {"type": "lines", "lines": ["a"]})
    port.send(1, {"type": "bye"})
    assert line.receive() == {"type": "bye"}
    line.close()
    assert port.next(LONG) == (1, None)


def test_who_does_not_know_the_token_is_not_heard(port: Port) -> None:
    with pytest.raises(ConnectionError):
        Line(errand(port, b"another"), 0)
    stranger = socket.create_connection(("127.0.0.1", port.port))
    with stranger, contextlib.suppress(ConnectionResetError):  # not all that it has sent is read
        stranger.sendall(encoded({"type": "lines", "lines": ["x" * 600]}))
        while stranger.recv(4096):
            pass
    assert port.next(0.0) is None


def test_a_driver_that_does_not_know_the_token_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend() -> None:
            sock, _ = server.accept()
            with sock:
                sock.sendall(encoded({"nonce": "n"}) + encoded({"proof": "p"}))
                sock.recv(4096)

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(ConnectionError, match="is not the driver of run run"):
            Line(Errand("run", {}, ([], []), ["127.0.0.1"], server.getsockname()[1], TOKEN, "gpu"), 0)
        thread.join()


def test_a_second_task_of_a_rank_is_sent_away(port: Port) -> None:
    first = Line(errand(port), 0)
    first.send({"type": "lines", "lines": []})
    assert port.next(LONG) == (0, {"type": "lines", "lines": []})  # who is let in is not yet known as the first
    second = Line(errand(port), 0)
    assert second.receive()["type"] == "refused"
    with pytest.raises(ConnectionError):
        second.receive()
    first.send({"type": "ended", "code": 0})
    assert port.next(LONG) == (0, {"type": "ended", "code": 0})


def test_a_port_that_is_taken_is_told(port: Port) -> None:
    with pytest.raises(ComputeError, match=r"cannot listen at 127\.0\.0\.1 port \d+: .*Fix: set port"):
        Port("127.0.0.1", port.port, TOKEN, 1)

"""The emulator writes nothing to stderr, whatever its clients do to their connections."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobsdk.emulator.process import Running, read
from tests.bootstrap.runs import wait_for
from tests.emulator.emulated import azurite

CLIENTS = 1000
AT_ONCE = 100

#: A client that opens connections in each state, says so, and is killed.
_KILLED = """
import sys, time
from tests.emulator.test_quiet import STATES, Target
target = Target(int(sys.argv[1]), sys.argv[2], sys.argv[3])
kept = [state(target) for _ in range(10) for state in STATES]
print("open", flush=True)
time.sleep(600)
"""


class Target:
    """Where clients connect to: the proxy's port, the blob store's name, and the file of the trusted authority."""

    def __init__(self, port: int, blobs: str, authority: str) -> None:
        self.port = port
        self.blobs = blobs
        self.context = ssl.create_default_context(cafile=authority)


def connected(target: Target) -> socket.socket:
    return socket.create_connection(("127.0.0.1", target.port), timeout=60)


def half_a_head(target: Target) -> socket.socket:
    client = connected(target)
    client.sendall(b"CONNECT management.azure.com:443 HT")
    return client


def tunnel(target: Target, host: str = "management.azure.com") -> socket.socket:
    client = connected(target)
    client.sendall(f"CONNECT {host}:443 HTTP/1.1\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += client.recv(4096)
    assert b" 200 " in answer
    return client


def tunnel_asked_for(target: Target) -> socket.socket:
    client = connected(target)
    client.sendall(b"CONNECT management.azure.com:443 HTTP/1.1\r\n\r\n")
    return client


def tunnel_to_blobs(target: Target) -> socket.socket:
    return tunnel(target, target.blobs)


def half_a_handshake(target: Target) -> socket.socket:
    client = tunnel(target)
    client.sendall(bytes.fromhex("16030102000100"))
    return client


def no_handshake(target: Target) -> socket.socket:
    client = tunnel(target)
    client.sendall(b"GET / HTTP/1.1\r\n\r\n" * 3)
    return client


def secured(target: Target) -> ssl.SSLSocket:
    return target.context.wrap_socket(tunnel(target), server_hostname="management.azure.com")


def half_a_request(target: Target) -> socket.socket:
    client = secured(target)
    client.sendall(b"PUT /subscriptions/s HTTP/1.1\r\nHost: management.azure.com\r\nContent-Length: 5000\r\n\r\n{")
    return client


def unread_answer(target: Target) -> socket.socket:
    client = secured(target)
    client.sendall(b"GET /subscriptions/s HTTP/1.1\r\nHost: management.azure.com\r\n\r\n" * 20)
    return client


def control(target: Target) -> socket.socket:
    client = connected(target)
    client.sendall(b"GET /requests HTTP/1.1\r\nContent-Length: 10\r\n\r\n")
    return client


STATES = [
    connected, half_a_head, tunnel_asked_for, tunnel, tunnel_to_blobs, half_a_handshake, no_handshake, secured,
    half_a_request, unread_answer, control,
]  # fmt: skip


def disconnect(client: socket.socket) -> None:
    client.close()


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def half_close(client: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the emulator may have closed it already
        client.shutdown(socket.SHUT_WR)
    client.close()


@contextlib.contextmanager
def started(folder: Path, errors: Path) -> Iterator[Running]:
    """An emulator whose stderr is a file; it has ended, in order, afterwards."""
    command = [sys.executable, "-m", "jobsdk", "azure-emulator", "start"]
    options = ["--folder", str(folder), "--azurite", azurite(), "--until-eof"]
    with errors.open("wb") as stream:
        process = subprocess.Popen([*command, *options], stdin=subprocess.PIPE, stdout=stream, stderr=stream)
    assert process.stdin is not None
    try:
        yield wait_for(lambda: read(folder), 120)
        process.stdin.close()
        assert process.wait(200) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.engine("azurite")
def test_clients_that_go_away_leave_no_noise(tmp_path: Path) -> None:
    ends: list[Callable[[socket.socket], None]] = [disconnect, reset, half_close]
    with started(tmp_path / "emulator", tmp_path / "errors") as running:
        account = json.loads((tmp_path / "emulator/emulator.json").read_text())["account"]
        blobs = f"{account}.blob.core.windows.net"
        given = (str(running.port), blobs, running.environ["SSL_CERT_FILE"])
        target = Target(running.port, *given[1:])
        ways = itertools.islice(itertools.cycle(itertools.product(ends, STATES)), CLIENTS)
        for _ in range(CLIENTS // AT_ONCE):
            batch = [(end, state(target)) for end, state in itertools.islice(ways, AT_ONCE)]
            for end, client in batch:
                end(client)
        killed = subprocess.Popen([sys.executable, "-c", _KILLED, *given], stdout=subprocess.PIPE, text=True)
        assert killed.stdout is not None
        assert killed.stdout.readline() == "open\n"
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        killed.stdout.close()
        assert running.requests(), "it still serves"
        left = [state(target) for state in STATES]  # these are there when it ends
    assert (tmp_path / "errors").read_text() == ""
    for client in left:
        client.close()

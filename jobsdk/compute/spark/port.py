"""The driver's end of the tasks' connections: it lets in who knows the run's token, and queues what they say."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from typing import NamedTuple

from jobsdk.bootstrap.control import channel, server
from jobsdk.bootstrap.control.channel import Message, encoded
from jobsdk.bootstrap.system import network
from jobsdk.errors import ComputeError

_WAITING = 256  # messages that nobody has taken yet: then the tasks wait, and with them the nodes' output
_BACKLOG = 1024


class Heard(NamedTuple):
    """What the task of a rank says; None: it has gone."""

    rank: int
    message: Message | None


class Port:
    """Listens until it is closed. There is one task for each rank, ever: a second one is sent away.

    `address` is this machine's as Spark listens there, empty for all of them; `port` 0 takes any that is free.
    """

    def __init__(self, address: str, port: int, token: bytes, nodes: int) -> None:
        self._token = token
        self._heard: queue.Queue[Heard] = queue.Queue(_WAITING)
        self._lock = threading.Lock()
        self._tasks: dict[int, socket.socket] = {}
        self._is_closed = False
        server.raise_open_files_limit(2 * nodes + 256)
        try:
            self._listener = _listening(address, port)
        except OSError as error:
            text = f"the driver cannot listen at {address or 'any address'} port {port}: {error.strerror or error}"
            raise ComputeError(f"{text}. Fix: set port, or spark.driver.bindAddress in conf, of the compute") from None
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="jobsdk-port", daemon=True).start()

    def next(self, timeout: float) -> Heard | None:
        """What has been said next; None where nothing is within `timeout` seconds."""
        with contextlib.suppress(queue.Empty):
            return self._heard.get(timeout=timeout)
        return None

    def send(self, rank: int, message: Message) -> None:
        """Say something to a rank's task; one that has gone hears nothing."""
        with contextlib.suppress(OSError, KeyError):
            self._tasks[rank].sendall(encoded(message))

    def close(self) -> None:
        self._is_closed = True
        with self._lock:
            for sock in (self._listener, *self._tasks.values()):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                continue
            threading.Thread(target=self._serve, args=(sock,), name="jobsdk-task", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        """One connection, to its end."""
        with sock, contextlib.suppress(OSError, ValueError):
            rank = self._admit(sock)
            with self._lock:
                is_first = self._tasks.setdefault(rank, sock) is sock
            if not is_first:
                words = "Spark has started a task of the run once more; its nodes are started once only"
                sock.sendall(encoded({"type": "refused", "words": words}))
                return
            try:
                while True:
                    self._put(Heard(rank, channel.received(sock, channel.MEMBER_LIMIT)))
            finally:
                self._put(Heard(rank, None))

    def _put(self, heard: Heard) -> None:
        """Queue it; where nobody takes from the queue any more, let go."""
        while not self._is_closed:
            with contextlib.suppress(queue.Full):
                self._heard.put(heard, timeout=0.5)
                return
        raise ConnectionError("closed")

    def _admit(self, sock: socket.socket) -> int:
        """The rank of who knows the token. Raises ValueError for anybody else."""
        sock.settimeout(server.STRANGER_TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ours = channel.nonce()
        sock.sendall(encoded({"nonce": ours}))
        said = channel.received(sock, channel.STRANGER_LIMIT)
        kind, rank, theirs = said.get("kind"), said.get("number"), said.get("nonce")
        expected = channel.proof(self._token, "member", ours, theirs, kind, rank)
        if kind != "node" or type(rank) is not int or not channel.same(expected, said.get("proof")):
            raise ValueError("wrong token")
        sock.sendall(encoded({"proof": channel.proof(self._token, "control", ours, theirs)}))
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return rank


def _listening(address: str, port: int) -> socket.socket:
    if not address:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
        return socket.create_server(("", port), backlog=_BACKLOG)
    target = network.resolve(address)[0]
    return socket.create_server(target.sockaddr(port), family=socket.AddressFamily(target.family), backlog=_BACKLOG)

"""How much TCP carries between nodes: each sends to the next one, as in a ring all-reduce."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import threading
import time
from typing import Callable, List, Optional, Tuple

from ..control.loop import Loop
from ..system import network, processes

#: Seconds at the beginning that do not count (TCP starts slowly), and those that do.
WARM_UP, SPAN = 0.1, 0.4
_START_S = 3.0  # seconds until something must have come
_BLOCK = 256 << 10
_MOST_STREAMS = 4  # a core fills 20 to 30 Gbit/s with one connection


class Station:
    """One node's place in the ring: `port` is where the node before it sends to."""

    _received = 0  # bytes, within SPAN
    _first: Optional[float] = None  # when the first came

    def __init__(self, loop: Loop, address: str, token: bytes) -> None:
        self._loop = loop
        self._hello = hashlib.sha256(token + b" ring").digest()  # only who knows the token is let in
        self._socket = network.listener(address, 0)
        self._socket.setblocking(True)
        self.port = int(self._socket.getsockname()[1])
        self._lock = threading.Lock()

    def run(self, target: Optional[Tuple[str, int]], takes: bool, done: Callable[[Optional[float], str], None]) -> None:
        """Send to `target`, and take what comes if it `takes`. `done` gets Gbit/s received (None: nothing came), and
        why nothing was sent."""
        read, write = os.pipe()
        errors: List[str] = []
        self._received, self._first = 0, None
        streams = min(_MOST_STREAMS, max(1, processes.cores() // 2)) if target is not None else 0
        threads = [threading.Thread(target=self._take, daemon=True)] if takes else []
        threads += [threading.Thread(target=self._send, args=(target, errors), daemon=True) for _ in range(streams)]

        def work() -> None:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            os.close(write)

        def finished() -> None:
            self._loop.forget(read)
            os.close(read)
            done(None if self._first is None else self._received * 8e-9 / SPAN, errors[0] if errors else "")

        self._loop.on_readable(read, finished)
        threading.Thread(target=work, daemon=True).start()

    # -- in threads ----------------------------------------------------------------------------------------------

    def _send(self, target: Tuple[str, int], errors: List[str]) -> None:
        block = memoryview(bytes(_BLOCK))
        try:
            found = network.resolve(target[0], numeric=True)[0]
            with socket.socket(found.family, socket.SOCK_STREAM) as sock:
                # What is still under way at the end is thrown away.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.settimeout(_START_S)
                sock.connect(found.sockaddr(target[1]))
                sock.sendall(self._hello)
                end = time.monotonic() + WARM_UP + SPAN + 0.2
                while time.monotonic() < end:
                    sock.settimeout(max(0.01, end - time.monotonic()))
                    sock.send(block)
        except (socket.timeout, ConnectionResetError, BrokenPipeError):
            pass  # a slow link is still busy with what it has; the other side has seen enough
        except (OSError, UnicodeError) as error:
            errors.append(str(getattr(error, "strerror", None) or error))

    def _take(self) -> None:
        readers = []
        deadline = time.monotonic() + _START_S
        while time.monotonic() < (deadline if self._first is None else min(deadline, self._first + WARM_UP)):
            self._socket.settimeout(0.05)
            try:
                sock, _ = self._socket.accept()
            except OSError:
                continue
            readers.append(threading.Thread(target=self._read, args=(sock, deadline), daemon=True))
            readers[-1].start()
        for reader in readers:
            reader.join()

    def _read(self, sock: socket.socket, deadline: float) -> None:
        buffer = memoryview(bytearray(4 * _BLOCK))
        hello = b""
        try:
            while True:
                now = time.monotonic()
                end = deadline if self._first is None else self._first + WARM_UP + SPAN
                if now >= end:
                    return
                sock.settimeout(end - now)
                if len(hello) < len(self._hello):
                    piece = sock.recv(len(self._hello) - len(hello))
                    hello += piece
                    if not piece or not self._hello.startswith(hello):
                        return
                    continue
                count = sock.recv_into(buffer)
                if not count:
                    return
                self._note(count)
        except OSError:
            pass  # its time is over, or the other side has stopped
        finally:
            sock.close()

    def _note(self, count: int) -> None:
        now = time.monotonic()
        with self._lock:
            if self._first is None:
                self._first = now
            elif WARM_UP <= now - self._first <= WARM_UP + SPAN:
                self._received += count

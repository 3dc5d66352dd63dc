"""Bytes between files of this process and a connection, with back-pressure: no side holds more than a window."""

from __future__ import annotations

import os
from collections import deque
from typing import Callable, Deque, Optional

from ..control.loop import Loop

WINDOW = 256 << 10  # bytes of one stream that are on their way: read here, and not yet written at the other end
_CHUNK = 48 << 10  # bytes of one message
#: Bytes of one write to a file that we did not open: a pipe that is writable takes so many at once (PIPE_BUF), so that
#: the write cannot block. It must not be made non-blocking, as others may share it.
_PIECE = 4096


class Source:
    """Reads a file for as long as the window is open: `send` gets each piece, `ended` is called once after the last.

    The file is not closed. `taken` tells that the other end has written some of it.
    """

    def __init__(self, loop: Loop, file: int, send: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._loop = loop
        self._file = file
        self._send = send
        self._ended: Optional[Callable[[], None]] = ended
        self._under_way = 0
        self._is_last = False
        self._is_waiting = False  # to be told that there is something to read
        self._wait()

    def taken(self, count: int) -> None:
        self._under_way -= count
        self._wait()

    def drain(self) -> None:
        """Whoever wrote into the file has ended: what it holds now is the last."""
        self._is_last = True
        if self._is_waiting:
            self._read()

    def close(self) -> None:
        """Read no more."""
        self._ended = None
        self._rest()

    def _wait(self) -> None:
        if self._ended is None or self._is_waiting or self._under_way >= WINDOW:
            return
        self._is_waiting = True
        try:
            self._loop.on_readable(self._file, self._read)
        except PermissionError:  # epoll knows no plain files: they can be read at any time
            self._loop.later(0.0, self._read)

    def _rest(self) -> None:
        self._is_waiting = False
        self._loop.forget(self._file)

    def _read(self) -> None:
        if not self._is_waiting:
            return
        try:
            data = os.read(self._file, _CHUNK)
        except (BlockingIOError, InterruptedError):
            if not self._is_last:
                return
            data = b""
        except OSError:  # EIO of a terminal that has gone
            data = b""
        self._rest()
        if data:
            self._under_way += len(data)
            self._send(data)
            self._wait()
        elif self._ended is not None:
            ended, self._ended = self._ended, None
            ended()
        if self._is_last and self._is_waiting:  # not all was read
            self._loop.later(0.0, self._read)


class Sink:
    """Writes to a file, in its own time. `broken` is called once when nobody reads it; all is then thrown away."""

    def __init__(self, loop: Loop, file: int, broken: Callable[[], None], piece: int = _PIECE) -> None:
        self._loop = loop
        self._file = file
        self._broken = broken
        self._piece = piece
        self._pieces: Deque[memoryview] = deque()
        self._done: Deque[Callable[[], None]] = deque()
        self._is_open = True

    def write(self, data: bytes, done: Callable[[], None]) -> None:
        """`done` is called when it is written, or thrown away."""
        if not self._is_open:
            done()
            return
        self._pieces.append(memoryview(data))
        self._done.append(done)
        if len(self._pieces) == 1:
            try:
                self._loop.on_writable(self._file, self._writable)
            except PermissionError:  # a plain file takes all
                while self._pieces:
                    self._writable()

    def after(self, done: Callable[[], None]) -> None:
        """Call `done` when all is written that came before."""
        if self._pieces:
            self.write(b"", done)
        else:
            done()

    def close(self) -> None:
        """Write no more; the file is not closed."""
        if self._is_open:
            self._is_open = False
            self._loop.forget(self._file)
            self._pieces.clear()
            while self._done:
                self._done.popleft()()

    def _writable(self) -> None:
        if not self._pieces:
            return
        first = self._pieces[0]
        try:
            written = os.write(self._file, first[: self._piece]) if first else 0
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            self._broken()
            return
        if written < len(first):
            self._pieces[0] = first[written:]
            return
        self._pieces.popleft()
        if not self._pieces:
            self._loop.forget(self._file)
        self._done.popleft()()

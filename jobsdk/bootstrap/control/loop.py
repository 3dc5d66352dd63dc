"""One thread's event loop: sockets, timers, signals. asyncio would cost 34 ms of every start."""

from __future__ import annotations

import heapq
import os
import selectors
import signal
import time
from typing import Any, Callable, List, Tuple

Callback = Callable[[], None]


class Timer:
    """A call to come; `cancel()` takes it back."""

    def __init__(self, due: float, callback: Callback) -> None:
        self.due = due
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def __lt__(self, other: Timer) -> bool:
        return self.due < other.due


class Loop:
    """Runs callbacks for readable or writable files, for due timers and for signals, until `stop()`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: List[Timer] = []
        self._handlers: List[Tuple[int, Callback]] = []
        self._running = False
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self._wakeup, self._written = read, write
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.on_readable(read, self._signals_arrived)

    def on_readable(self, file: Any, callback: Callback) -> None:
        self._selector.register(file, selectors.EVENT_READ, [callback, None])

    def on_writable(self, file: Any, callback: Any) -> None:
        """Call `callback` while a file is writable; None ends that for one that is registered for reading too."""
        try:
            data = self._selector.get_key(file).data
        except KeyError:
            self._selector.register(file, selectors.EVENT_WRITE, [None, callback])
            return
        data[1] = callback
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if callback else 0)
        self._selector.modify(file, events, data)

    def forget(self, file: Any) -> None:
        try:
            self._selector.unregister(file)
        except (KeyError, ValueError):
            pass

    def on_signal(self, signum: int, callback: Callback) -> None:
        signal.signal(signum, lambda *_: None)  # the wake-up pipe brings it into the loop
        self._handlers.append((signum, callback))

    def later(self, seconds: float, callback: Callback) -> Timer:
        timer = Timer(time.monotonic() + seconds, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def every(self, seconds: float, callback: Callback) -> None:
        def again() -> None:
            callback()
            self.later(seconds, again)

        self.later(seconds, again)

    def stop(self) -> None:
        self._running = False

    def close(self) -> None:
        """Let go of the loop in a fork, without a change for the process that it was forked from."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._wakeup)
        os.close(self._written)

    def run(self) -> None:
        self._running = True
        while self._running:
            timeout = max(0.0, self._timers[0].due - time.monotonic()) if self._timers else None
            for key, events in self._selector.select(timeout):
                readable = key.data[0]
                if events & selectors.EVENT_READ:
                    readable()
                if events & selectors.EVENT_WRITE and key.data[1]:
                    key.data[1]()
            now = time.monotonic()
            while self._timers and self._timers[0].due <= now and self._running:
                timer = heapq.heappop(self._timers)
                if not timer.cancelled:
                    timer.callback()

    def _signals_arrived(self) -> None:
        try:
            arrived = set(os.read(self._wakeup, 4096))
        except BlockingIOError:
            return
        for signum, callback in list(self._handlers):
            if signum in arrived:
                callback()

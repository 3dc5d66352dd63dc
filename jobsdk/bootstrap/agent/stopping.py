"""Ending what runs on a node: SIGTERM to all, a grace time, SIGKILL."""

from __future__ import annotations

import os
import signal
import time
from typing import Callable, List, Optional, Set

from ..control.loop import Loop, Timer
from ..system import processes

_LOOK_EVERY_S = 0.02  # seconds between two looks at what is still there


class Stopping:
    """Of one attempt. Begins by `begin()`, or when what was started has ended and left processes behind.

    `is_running()` says whether something runs that may go on. `ours(pids)` leaves out processes that are to stay.
    `spared(pids, asked, seconds_left)` names processes that get no SIGTERM yet, as long before their SIGKILL.
    `quiet()` is called once, when nothing is left.
    """

    def __init__(
        self,
        loop: Loop,
        grace_s: float,
        is_running: Callable[[], bool],
        ours: Callable[[List[int]], List[int]],
        spared: Callable[[List[int], Set[int], float], Set[int]],
        quiet: Callable[[], None],
    ) -> None:
        self.is_quiet = False
        self._loop = loop
        self._grace_s = grace_s
        self._is_running = is_running
        self._ours = ours
        self._spared = spared
        self._quiet = quiet
        self._deadline: Optional[float] = None  # when what has not obeyed SIGTERM is killed
        self._asked: Set[int] = set()  # processes that have had their SIGTERM
        self._timer = Timer(0.0, lambda: None)

    def begin(self) -> None:
        """End all that runs, from now on."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace_s
        self.check()

    def take_back(self) -> None:
        """Something new was started: what others have left behind may stay as long as it runs."""
        self._deadline = None
        self._asked.clear()
        self.is_quiet = False

    def close(self) -> None:
        self._timer.cancel()

    def check(self) -> None:
        """Look at what is left, now and until nothing is."""
        running = self._is_running()
        if self.is_quiet or (running and self._deadline is None):
            return
        left = self._ours(processes.descendants(os.getpid()))
        if not left and not running:
            self.is_quiet = True
            self._quiet()
            return
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace_s
        seconds_left = self._deadline - time.monotonic()
        if seconds_left <= 0:
            processes.send(left, signal.SIGKILL)
            processes.strike(self._ours)
        else:  # some may have been started since the last look
            waiting = [pid for pid in left if pid not in self._asked]
            spared = self._spared(waiting, self._asked, seconds_left)
            unasked = [pid for pid in waiting if pid not in spared]
            processes.send(unasked, signal.SIGTERM)
            self._asked.update(unasked)
        self._timer.cancel()
        self._timer = self._loop.later(_LOOK_EVERY_S, self.check)

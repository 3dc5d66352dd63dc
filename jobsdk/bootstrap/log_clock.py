"""When a rank writes its first line: the moment at which the user's own program has begun."""

from __future__ import annotations

import os
from typing import Callable

from .loop import Loop

_SOONEST, _LATEST = 0.01, 0.5  # seconds between two looks


class FirstOutput:
    """Looks at a rank's log, ever more rarely, and calls `tell` once there is something in it."""

    def __init__(self, loop: Loop, log: str, tell: Callable[[], None]) -> None:
        self._loop = loop
        self._log = log
        self._tell = tell
        self._pause = _SOONEST
        self._again()

    def _again(self) -> None:
        self._timer = self._loop.later(self._pause, self._look)
        self._pause = min(_LATEST, self._pause * 1.2)

    def _look(self) -> None:
        if _has_any(self._log):
            self._timer.cancel()
            self._tell()
        else:
            self._again()

    def over(self) -> None:
        """The rank has ended: look once more."""
        if not self._timer.cancelled:
            self._timer.cancel()
            if _has_any(self._log):
                self._tell()


def _has_any(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False

"""When a rank has written what: its first line, its first report, and from time to time how long its log was.

Logs hold what ranks write, unchanged, and so no times. `times-R.log` beside each has lines `TIME SIZE`: at that
time (seconds since 1970) the log had so many bytes. By it the logs of several ranks can be shown in one order.
"""

from __future__ import annotations

import json
import math
import os
import time
from typing import Callable, Optional

from ..control.loop import Loop

#: What a rank does for the first time, as events call it.
FIRST_OUTPUT, FIRST_REPORT = "first_output", "metric"
_SOONEST, _UNTIL_FIRST = 0.01, 0.1  # seconds between two looks, at the beginning and until the first line
_BUSY, _LATEST, _PART = 0.5, 10.0, 0.005  # after it: at least, at most, and as a part of the time since the start
_LONGEST = 1 << 20  # bytes of a report that are read


class LogClock:
    """Looks at a rank's log and reports, ever more rarely; `tell(what, when)` is called once for each of both when
    there is something in it, with this machine's time."""

    def __init__(self, loop: Loop, log: str, times: str, reports: str, tell: Callable[[str, float], None]) -> None:
        self._loop = loop
        self._log = log
        self._times = times
        self._reports: Optional[str] = reports  # None: looked at
        self._tell = tell
        self._began = time.monotonic()
        self._size = 0
        self._pause = _SOONEST
        self._timer = loop.later(self._pause, self._again)

    def _again(self) -> None:
        self._look()
        if self._size:
            self._pause = min(_LATEST, max(_BUSY, (time.monotonic() - self._began) * _PART))
        else:
            self._pause = min(_UNTIL_FIRST, self._pause * 1.2)
        self._timer = self._loop.later(self._pause, self._again)

    def _look(self) -> None:
        self._look_at_log()
        if self._reports is not None:
            self._look_at_reports(self._reports)

    def _look_at_log(self) -> None:
        try:
            size = os.stat(self._log).st_size
        except OSError:
            return
        if size == self._size:
            return
        if not self._size:
            self._tell(FIRST_OUTPUT, time.time())
        self._size = size
        try:
            with open(self._times, "ab", buffering=0) as file:
                file.write(b"%.3f %d\n" % (time.time(), size))
        except OSError:
            pass  # a full disk

    def _look_at_reports(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                line = file.readline(_LONGEST)
        except OSError:
            return
        when = _time_of(line)
        if when is not None or line.endswith(b"\n") or len(line) == _LONGEST:  # else it is just being written
            self._reports = None
        if when is not None:
            self._tell(FIRST_REPORT, when)

    def over(self) -> None:
        """The rank has ended: look for the last time."""
        self._timer.cancel()
        self._look()


def _time_of(report: bytes) -> Optional[float]:
    """When a report was made; None for a part of one, and for a script's own that is of another form."""
    try:
        when = json.loads(report)["t"]
        return float(when) if isinstance(when, (int, float)) and math.isfinite(when) else None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None

"""How often an engine is asked for the state of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from jobsdk.errors import ComputeError


class Pace(NamedTuple):
    """Seconds between two looks at where a run really is: while something goes on, and at most."""

    shortest: float
    longest: float


class Refresh:
    """Calls `refresh` at a pace that its engine can bear. `failed` hears, once in a row, why it could not be done."""

    def __init__(
        self, refresh: Callable[[], object], pace: Pace, failed: Callable[[str], None] = lambda why: None
    ) -> None:
        self._refresh = refresh
        self._shortest, self._longest = pace
        self._failed = failed
        self._pause = self._shortest
        self._due = time.monotonic() + self._shortest
        self._is_failing = False

    def when_due(self, now: float, *, is_busy: bool = False) -> None:
        """To be called often; `now` is the monotonic clock."""
        if is_busy:
            self._pause = self._shortest
            self._due = min(self._due, now + self._shortest)
        if now < self._due:
            return
        try:
            self._refresh()
            self._is_failing = False
        except ComputeError as error:
            if not self._is_failing:
                self._failed(str(error))
            self._is_failing = True
        self._pause = min(self._longest, self._pause * 1.2)
        self._due = time.monotonic() + self._pause

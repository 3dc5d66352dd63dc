"""The job's time limit, which counts from its first start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, Optional

from ..control.loop import Loop
from ..spec import events

if TYPE_CHECKING:
    from ..spec.plan import Plan


class JobClock:
    """`is_up()` is called when the job's time is up. Times are in seconds since 1970."""

    def __init__(self, loop: Loop, plan: Plan, is_up: Callable[[], None]) -> None:
        self._loop = loop
        self._plan = plan
        self._is_up = is_up
        self._begun = time.time()
        self._started: Optional[float] = None

    @property
    def has_started(self) -> bool:
        return self._started is not None

    @property
    def started(self) -> float:
        """When the job first started; before that, when this process did."""
        return self._started or self._begun

    def start(self, run_dir: str, restart: int, started: Optional[float] = None) -> None:
        """The job starts, unless it had: `started` says when, or else the events of its `restart` earlier attempts."""
        if self.has_started:
            return
        earlier = events.of(run_dir, "started") if restart else []
        self._started = started or (earlier[0]["t"] if earlier else time.time())
        if self._plan["timeout_s"]:
            left = self._plan["timeout_s"] - (time.time() - self._started)
            self._loop.later(max(0.0, left), self._is_up)

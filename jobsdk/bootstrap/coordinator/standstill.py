"""Whether the whole job stands still: no node's ranks write anything or use the processor."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from . import blame
from .journal import Journal

if TYPE_CHECKING:
    from ..hangs.query import Answer
    from ..spec.messages import Idle
    from ..spec.plan import Plan
    from .job import Job


class Standstill:
    """Ends a job with a `hang_timeout`, and warns once in each attempt of another one, naming where the ranks are."""

    def __init__(self, plan: Plan, journal: Journal, job: Job) -> None:
        self._plan = plan
        self._journal = journal
        self._job = job

    def heard(self, node: int, message: Idle) -> None:
        """A node's ranks have done nothing for long."""
        now, job = time.monotonic(), self._job
        job.attempt.idle[node] = now + message["again"]
        if not job.is_running or job.attempt.stands_still:
            return
        unended = [one for one in job.members.present if one not in job.attempt.quiet]
        if all(job.attempt.idle.get(one, 0.0) >= now for one in unended):
            job.take_stacks(self._has_stood_still)

    def _has_stood_still(self, answer: Answer) -> None:
        attempt = self._job.attempt
        if not self._job.is_running or not attempt.goes_on or attempt.stands_still:
            return
        if self._plan["hang_timeout_s"]:
            self._job.fail(blame.hang(self._plan, answer))
        else:
            attempt.stands_still = True
            self._journal.warning(blame.standstill(self._plan, answer))

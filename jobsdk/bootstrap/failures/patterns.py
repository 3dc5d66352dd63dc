"""The patterns of a job's restart rules, searched in the logs of ranks."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING, Any, List, Sequence

if TYPE_CHECKING:
    from ..spec.plan import Plan

_TAIL = 1 << 20  # bytes of a log in which patterns are looked for


_LINE = 4096  # characters of a line


def patterns(plan: Plan) -> List[str]:
    """Those rules of the job that can be found in an output."""
    rules = plan["restarts"]
    return [rule for rule in [*rules["retry_on"], *rules["never_retry_on"]] if isinstance(rule, str)]


def matches(plan: Plan, log: str) -> List[str]:
    """The job's patterns that are found in the last megabyte of a log."""
    wanted = patterns(plan) if plan["restarts"]["max"] else []
    if not wanted:
        return []
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    # A progress bar may be a line of a megabyte, on which a pattern can take for ever.
    lines = [line[:_LINE] for line in re.split("[\r\n]+", text)]
    return [pattern for pattern in wanted if _is_in(pattern, lines)]


def _is_in(pattern: str, lines: Sequence[str]) -> bool:
    """Whether it is found within a second. A pattern that this Python does not know is found nowhere."""

    def too_long(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        search = re.compile(pattern).search
        return any(search(line) for line in lines)
    except (re.error, TimeoutError, RecursionError, OverflowError):
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

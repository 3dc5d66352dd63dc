"""Clocks that are wrong."""

from __future__ import annotations

from tests import engines
from tests.needs import needs


def off_by(offset: str, *, sleeps: bool = False) -> dict[str, str]:
    """The environment of a process whose clock is wrong by `offset` seconds, as "+90.5". Its monotonic clock is right,
    but for one that `sleeps`: Python sleeps by that clock, and libfaketime does not let it where only one is wrong.

    Without the program `faketime`: its semaphore has the name of a pid, and what is killed leaves it to the next one.
    """
    needs("faketime")
    wrong = {"LD_PRELOAD": str(engines.libfaketime()), "FAKETIME": offset}
    return wrong if sleeps else {**wrong, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

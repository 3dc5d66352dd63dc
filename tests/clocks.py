"""Clocks that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest


def off_by(offset: str, *, sleeps: bool = False) -> dict[str, str]:
    """The environment of a process whose clock is wrong by `offset` seconds, as "+90.5". Its monotonic clock is right,
    but for one that `sleeps`: Python sleeps by that clock, and libfaketime does not let it where only one is wrong.

    Without the program `faketime`: its semaphore has the name of a pid, and what is killed leaves it to the next one.
    """
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.fail("libfaketime is missing: run scripts/install-engines.sh")
    wrong = {"LD_PRELOAD": str(library), "FAKETIME": offset}
    return wrong if sleeps else {**wrong, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

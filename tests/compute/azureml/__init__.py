"""Runs on a local Azure ML."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def eventually(happened: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What `happened` gives once that is something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = happened()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"did not happen within {seconds:g} s")

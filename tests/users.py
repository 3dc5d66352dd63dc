"""Tests as another user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Root may read everything; as nobody, a closed folder is closed."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)

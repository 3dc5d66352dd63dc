"""Small facts of files that may be missing."""

from __future__ import annotations

import os
from typing import List


def size(path: str) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def text(path: str) -> str:
    """The text of a small file, stripped; empty where it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def listing(folder: str) -> List[str]:
    """The names in a folder, in order; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []

"""What a failed process said last, found in its output without any help from its code."""

from __future__ import annotations

import os
import re
import signal
from typing import Any, Dict, List, Optional

_TAIL = 64 << 10  # bytes of a log that are looked at
_LINES = 20
_START = re.compile(r"^(?P<indent>[ \t]*)Traceback \(most recent call last\):")


def last_words(log: str) -> Dict[str, Any]:
    """`traceback` (the last Python traceback in the file, or None), `error` (its last line) and `last_lines`."""
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return {"traceback": None, "error": None, "last_lines": []}
    lines = [line.rpartition("\r")[2] or line for line in text.rstrip().splitlines()]
    traceback = _last_traceback(lines)
    return {
        "traceback": "\n".join(traceback) if traceback else None,
        "error": traceback[-1].strip()[:300] if traceback else None,
        "last_lines": [line[:300] for line in lines[-_LINES:]],
    }


def _last_traceback(lines: List[str]) -> Optional[List[str]]:
    starts = [index for index, line in enumerate(lines) if _START.match(line)]
    if not starts:
        return None
    start = starts[-1]
    match = _START.match(lines[start])
    assert match is not None
    indent = match.group("indent")
    end = len(lines)
    for index in range(start + 1, len(lines)):
        rest = lines[index][len(indent) :]
        if rest and not rest[0].isspace():  # the exception itself; what is indented below belongs to it
            end = index + 1
            while end < len(lines) and lines[end][len(indent) :][:1].isspace():
                end += 1
            break
    return [line[len(indent) :] for line in lines[start:end]]


def describe(exit_code: int, signum: Optional[int]) -> str:
    """An exit in words: `exited with code 3`, `was killed by SIGKILL`."""
    if signum is None:
        return "exited with code %d" % exit_code
    try:
        name = signal.Signals(signum).name
    except ValueError:
        name = "signal %d" % signum
    return "was killed by %s" % name

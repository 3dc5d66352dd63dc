"""What a failed process said last, found in its output without any help from its code."""

from __future__ import annotations

import os
import re
import signal
from typing import Any, Dict, List, Mapping, Optional, Tuple

_TAIL = 64 << 10  # bytes of a log that are looked at
_LINES = 20
_START = "Traceback (most recent call last):"


def last_words(log: str) -> Dict[str, Any]:
    """`traceback` (the last Python traceback in the file, or None), `error` (its last line) and `last_lines`."""
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return {"traceback": None, "error": None, "last_lines": []}
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip().split("\n")]
    traceback = _last_traceback(lines)
    return {
        "traceback": "\n".join(traceback) if traceback else None,
        "error": _exception(traceback)[:300] if traceback else None,
        "last_lines": [line[:300] for line in lines[-_LINES:]] if text.strip() else [],
    }


def _last_traceback(lines: List[str]) -> Optional[List[str]]:
    starts = [index for index, line in enumerate(lines) if _START in line]
    if not starts:
        return None
    start = starts[-1]
    # Launchers indent what they quote, and torch writes "[rank0]: " before every line; a prompt may stand before one.
    before = lines[start].partition(_START)[0]
    prefix = before if lines[start + 1 : start + 2] and lines[start + 1].startswith(before) else ""
    found = [_START]
    ended = False  # at the exception itself; only what is indented below belongs to it
    gap = False  # TensorFlow puts a blank line between the exception and what it quotes
    for line in lines[start + 1 :]:
        text = line[len(prefix) :]
        indented = text[:1].isspace()
        if line.strip() in ("", prefix.strip()):
            if not ended or gap:
                break
            gap = True
        elif not line.startswith(prefix) or (ended and not indented):
            break
        else:
            found += ["", text] if gap else [text]
            ended, gap = ended or not indented, False
    return found


def _exception(traceback: List[str]) -> str:
    """The line that names the exception; for one raised in a tf.function, the one that it quotes."""
    if any(line.endswith(": in user code:") for line in traceback):
        return traceback[-1].strip()
    return next((line for line in reversed(traceback) if not line[:1].isspace()), "")


#: What a process says when it ended only because another had: never the cause while another failure is known.
_PEER_LOST = (
    r"(?i)Connection (was )?(closed|reset|refused)|Broken pipe|ConnectionResetError|BrokenPipeError"
    r"|ConnectionAbortedError|ConnectionRefusedError|Socket closed|socket was closed|ncclRemoteError|NCCL remote"
    r"|DistNetworkError|pair closure|UnavailableError"
)


def likelihood(cause: Mapping[str, Any]) -> Tuple[bool, bool, float]:
    """The order of failures by which is the cause of the others: the least is. `cause` is a failure's message.

    Ends come in quick succession, and the one that is seen first need not be the one that happened first.
    """
    words = cause.get("error") or "\n".join(cause.get("last_lines") or [])
    silent = cause["exit_code"] == 1 and not cause.get("error")
    return re.search(_PEER_LOST, words) is not None, silent, float(cause["t"])


def describe(exit_code: int, signum: Optional[int]) -> str:
    """An exit in words: `exited with code 3`, `was killed by SIGKILL`."""
    if signum is None:
        return "exited with code %d" % exit_code
    try:
        name = signal.Signals(signum).name
    except ValueError:
        name = "signal %d" % signum
    return "was killed by %s" % name

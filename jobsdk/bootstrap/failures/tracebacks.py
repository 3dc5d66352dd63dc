"""What a failed process said last, found in its output without any help from its code."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, NamedTuple, Optional

from ..spec.exit_codes import describe as describe

_TAIL = 128 << 10  # bytes of a log that are looked at, however long its lines are
_LINES = 20
_WIDTH = 300  # characters of a line that are kept
_LONGEST = 12 << 10  # characters of a traceback that are kept, those nearest to the exception
_MESSAGE = 12  # lines of an exception's message that are kept

_START = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.<>]*(:|$)")
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
#: Lines of a message that begin at the margin: NCCL's own error under torch's, what torch adds to CUDA errors.
_GOES_ON = re.compile(r"nccl\w+: |Last error:|CUDA kernel errors |For debugging |Compile with |Search for |Device-side")
_NATIVE = re.compile(r"frame #\d+: |Exception raised from ")  # C++ frames: nothing that a Python user can act on
#: Before a traceback that ended nothing: Python goes on after it.
_HARMLESS = ("Exception ignored in", "Error in atexit", "--- Logging error ---", "Exception ignored while")
#: The last word of a launcher inside the rank: its child's error stands before.
_LAUNCHERS = re.compile(r"([\w.]*\.)?(ChildFailedError|CalledProcessError)\b")
_THROWN = re.compile(r"terminate called after throwing an instance of '(.+)'")
_FATAL = "Fatal Python error: "
_FAR = 400  # lines; what is written so long after a traceback was written by a process that had survived it
_NEAR = 40  # lines; a traceback further before a crash has nothing to do with it

#: Escape sequences of terminals; other control characters, and those that turn the direction of writing.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class _Found(NamedTuple):
    """An error in a log: the lines [start, end) that tell of it."""

    start: int
    end: int
    lines: List[str]
    error: str


def plain(text: str) -> str:
    """Text that cannot do anything to a terminal: no escape sequences, no control characters but newline and tab."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def last_words(log: str) -> Dict[str, Any]:
    """`traceback` (the last Python traceback in the file, with those that it is chained to, or None), `error` (the line
    that names the exception, Python's or C++'s, or None) and `last_lines`."""
    lines = _tail(log)
    found = _last_error(lines)
    return {
        "traceback": "\n".join(found.lines)[-_LONGEST:] if found and found.lines else None,
        "error": found.error[:_WIDTH] if found else None,
        "last_lines": [line[:_WIDTH] for line in lines[-_LINES:]],
    }


def _tail(log: str) -> List[str]:
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    # Of what a progress bar has overwritten, the last state.
    lines = [plain(_ends(line.rstrip("\r").rpartition("\r")[2])) for line in text.rstrip().split("\n")]
    return lines if text.strip() else []


def _ends(line: str) -> str:
    """Of a very long line both ends: a traceback begins in the same line after output without a newline."""
    return line if len(line) <= 4 * _WIDTH else line[: 2 * _WIDTH] + "..." + line[-2 * _WIDTH :]


def _last_error(lines: List[str]) -> Optional[_Found]:
    found: List[_Found] = []
    harmless: List[_Found] = []
    index = 0
    while index < len(lines):
        error = _error_at(lines, index)
        if error is None:
            index += 1
            continue
        before = next((line for line in reversed(lines[max(0, index - 2) : index]) if line.strip()), "")
        if before.startswith(_HARMLESS):
            harmless.append(error)
        elif found and _is_chained(lines[found[-1].end : index]):
            link = next(line for line in lines[found[-1].end : index] if line.strip())
            both = [*found[-1].lines, "", _CHAINED[0] if _CHAINED[0] in link else _CHAINED[1], "", *error.lines]
            found[-1] = _Found(found[-1].start, error.end, both, error.error)
        else:
            found.append(error)
        index = max(error.end, index + 1)
    while len(found) > 1 and _LAUNCHERS.match(found[-1].error):
        found.pop()
    if len(found) > 1 and not found[-1].error.startswith(_FATAL) and not found[-1].lines:
        python = found[-2]  # C++'s "terminate called" may be how the interpreter ends after a Python exception
        if python.lines and found[-1].start - python.end < _NEAR:
            return python
    if len(found) > 1 and found[-1].error.startswith(_FATAL) and found[-1].start - found[-2].end < _NEAR:
        return found[-2]._replace(lines=found[-2].lines or found[-1].lines)
    last = (found or harmless or [None])[-1]  # type: ignore[list-item]
    if last is not None and sum(bool(line.strip()) for line in lines[last.end :]) > _FAR:
        return None  # it went on for long after that: it had been caught
    return last


def _is_chained(between: List[str]) -> bool:
    words = [line for line in between if line.strip()]
    return len(words) == 1 and any(chained in words[0] for chained in _CHAINED)


def _error_at(lines: List[str], index: int) -> Optional[_Found]:
    line = lines[index]
    if _START in line:
        return _group(lines, index) if "| " in line or "+ " in line else _traceback(lines, index)
    if line.startswith(_FATAL):
        return _crash(lines, index)
    thrown = _THROWN.search(line)
    if thrown:
        what = next((text for text in lines[index + 1 : index + 4] if "what():" in text), "")
        return _Found(index, index + 2, [], "%s: %s" % (thrown.group(1), what.partition("what():")[2].strip()))
    if line.startswith('  File "') and re.search(r"line \d+$", line):  # a file that does not even begin to run
        for end in range(index + 1, min(index + 5, len(lines))):
            if re.match(r"(SyntaxError|IndentationError|TabError)\b", lines[end]):
                return _Found(index, end + 1, lines[index : end + 1], lines[end])
    return None


def _traceback(lines: List[str], start: int) -> _Found:
    # Launchers indent what they quote, and torch writes "[rank0]: " before every line; a prompt may stand before one.
    before = lines[start].partition(_START)[0]
    second = lines[start + 1] if start + 1 < len(lines) else ""
    indent = max(0, len(second) - len(second.lstrip()) - 2)
    prefix = before if second.startswith(before + "  ") else second[:indent]
    marked = bool(prefix.strip())
    found = [_START]
    message: List[str] = []  # the line that names the exception, and those below it
    quotes = gap = False  # TensorFlow puts a blank line between the exception and what it quotes
    end = start + 1
    for index in range(start + 1, len(lines)):
        line = lines[index]
        text = line[len(prefix) :]
        blank = line.strip() in ("", prefix.strip())
        indented = text[:1].isspace()
        if blank:
            if not message or gap or _starts(lines, index + 1):
                break
            gap = True
            continue
        if not line.startswith(prefix):
            if message or index - end > 5:
                break
            continue  # another thread's or process's words
        if not message:
            if not indented and not _EXCEPTION.match(text):
                if index - end > 5:
                    break
                continue
            found.append(text)
            message = [] if indented else [text]
        elif _START in text or any(chained in text for chained in _CHAINED):
            break
        elif indented or (marked and not gap) or _GOES_ON.match(text) or message[-1] == "Last error:":
            if not _NATIVE.match(text):
                quotes = quotes or gap
                found += ["", text] if gap else [text]
                message.append(text)
            gap = False
        else:
            break
        end = index + 1
        if len(message) > _MESSAGE and not quotes:
            break
    return _Found(start, end, found, _summary(message, lines[end : end + 30]))


def _starts(lines: List[str], index: int) -> bool:
    """Whether what follows a blank line is something else than the message of the exception before."""
    return index < len(lines) and (_START in lines[index] or any(chained in lines[index] for chained in _CHAINED))


def _summary(message: List[str], after: List[str]) -> str:
    """The one line that says what happened."""
    if not message:
        return ""
    first = message[0]
    if first.endswith(": in user code:"):  # raised in a tf.function, which quotes it
        return message[-1].strip()
    name = first.partition(":")[0]
    if first.endswith(": Graph execution error:"):  # TensorFlow: where, and then what
        words = [line for line in after if line.strip() and not line[:1].isspace()]
        return "%s: %s" % (name, next((line for line in words if "(most recent call last)" not in line), first))
    nccl = next((index for index, line in enumerate(message) if re.match(r"nccl\w+: ", line)), None)
    if nccl is not None:
        return "%s: %s" % (name, " ".join(line.strip() for line in message[nccl : nccl + 3]))
    if first.endswith(":") and len(message) > 1:
        return "%s %s" % (first, message[1].strip())
    return first


def _group(lines: List[str], start: int) -> _Found:
    """An ExceptionGroup: a tree drawn with | and +, which names what it holds."""
    end = start + 1
    while end < len(lines) and re.match(r"\s*[|+]", lines[end]):
        end += 1
    bare = [re.sub(r"^[\s|+-]*[|+]\s?", "", line) for line in lines[start:end]]
    said = [line for line in bare if line and not line[:1].isspace() and _EXCEPTION.match(line)]
    error = said[0] if said else ""
    if len(said) > 1:
        error += ": " + "; ".join(line for line in said[1:] if "sub-exception" not in line)
    return _Found(start, end, lines[start:end], error)


def _crash(lines: List[str], start: int) -> _Found:
    """What faulthandler writes: the frames of the thread that crashed, the innermost first."""
    end = start + 1
    inside = False
    for index in range(start + 1, min(start + 110, len(lines))):
        if lines[index].startswith("Current thread"):
            inside = True
        elif inside and not lines[index].startswith("  "):
            break
        end = index + 1 if inside else end
    return _Found(start, end, [line for line in lines[start:end] if line.strip()], lines[start])

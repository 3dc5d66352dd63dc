"""The root-cause card: what a person reads when a run has not completed, from its report alone."""

from __future__ import annotations

import datetime
import os
import re
import sysconfig
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from jobsdk.bootstrap.failures.classify import traceback_tells
from jobsdk.bootstrap.failures.tracebacks import plain
from jobsdk.bootstrap.spec.text import ranges

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.report import RankEnd
    from jobsdk.runs.folder import RunFolder

_LINES = 20
_WIDTH = 200  # characters of a line
_LEAST = 6  # lines that the traceback, or what was written last, has in any case
_RESTARTS = 3
_STACKS = 5
_OTHERS = 4

_FRAME = re.compile(r'([\s|]*)File "(.+?)", line \d+')
#: Code that is not the user's: what is installed, what belongs to Python, what is built in.
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python\d|^<frozen |\.pyx$")


def text(report: Mapping[str, Any], name: str, logs: object = None) -> str:
    """The card as one text."""
    return "\n".join(render(report, name, logs))


def of_run(run: RunFolder, logs: object = None) -> str:
    """The card of a run: with its command, and first with what the run missed in its copy of the code."""
    from jobsdk.runs import left_out, provenance

    report: Mapping[str, Any] = run.report()
    cause = report.get("cause") or {}
    if cause:
        report = {**report, "command": provenance.command(run)}
    lacked = left_out.missing(run, cause)
    if lacked is not None:
        told = {"message": f"{lacked.message}; {cause.get('message')}", "advice": lacked.advice}
        report = {**report, "cause": {**cause, **told}}
    return text(report, run.name, logs)


def render(report: Mapping[str, Any], name: str, logs: object = None) -> list[str]:
    """At most 20 lines of at most 200 characters, safe for a terminal, whatever the job has written.

    The first, which may go on in a second, says how the run ended and why. The last is `advice: ...` where there is
    advice. An empty report is that of a run that left none.
    """
    cause = report.get("cause") or {}
    message = cause.get("message") or report.get("message") or "it has no report"
    head = [*_headline(f"run {name} ended as {report.get('status') or 'Lost'}: {message}"), *_where(cause)]
    if report.get("command"):
        head.append(f"command: {report['command']}")
    tail = [
        *_restarts(report.get("restarts") or []),
        *_then(report),
        *_stacks([line for line in report.get("stacks") or [] if line not in message]),
    ]
    if cause.get("advice"):
        tail.append(f"advice: {cause['advice']}")
    if logs is not None:
        tail.append(f"logs: {logs}")
    said = _said(cause, max(_LEAST, _LINES - len(head) - len(tail)))
    lines = [_fit(line) for line in (*head, *said, *tail)]
    return lines if len(lines) <= _LINES else [*lines[: _LINES - len(tail)], *lines[-len(tail) :]]


def folded(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2, 4-7`; with many gaps only the first ones, and how many there are."""
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks, 8)}"


# -- the parts -------------------------------------------------------------------------------------------------------


def _headline(text: str) -> list[str]:
    """The first line, or two if it is long: a cut in the middle would hide the message of the error."""
    lines = textwrap.wrap(_flat(text), _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return lines if len(lines) <= 2 else [lines[0], "  " + _flat(text)[len(lines[0]) :].strip()]


def _where(cause: Mapping[str, Any]) -> list[str]:
    """Where it was and when; who else had the same error."""
    words = []
    if cause.get("node") is not None:
        host = f" ({cause['host']})" if cause.get("host") else ""
        words.append(f"node {cause['node']}{host}")
    if cause.get("pid"):
        words.append(f"pid {cause['pid']}")
    if cause.get("time"):
        words.append(f"at {_clock(cause['time'])}")
    also = [rank for rank in cause.get("ranks") or [] if rank != cause.get("rank")]
    parts = [", ".join(words)] if words else []
    if also:
        parts.append(f"also on {folded(also)}")
    return ["; ".join(parts)] if parts else []


def _then(report: Mapping[str, Any]) -> list[str]:
    """What the job did about it, and what became of the others."""
    lines = [f"then: {report['then']}"] if report.get("then") else []
    others = report.get("others") or []
    if others:
        shown = [f"{folded(other['ranks'])} {other['what']}" for other in others[:_OTHERS]]
        left = sum(len(other["ranks"]) for other in others[_OTHERS:])
        if left:
            shown.append(f"{left} more: see report.json")
        lines.append(f"others: {'; '.join(shown)}")
    return lines


def _restarts(restarts: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was tried before, the last few."""
    lines = [f"before: at {_clock(one['time'])} {one['message']}; {one['decision']}" for one in restarts[-_RESTARTS:]]
    if len(restarts) > _RESTARTS:
        lines[0] = f"before: {len(restarts) - _RESTARTS + 1} restarts, see report.json; then:"
    return lines


def _stacks(stacks: Sequence[str]) -> list[str]:
    if not stacks:
        return []
    more = [f"  ... ({len(stacks) - _STACKS} more: see report.json)"] if len(stacks) > _STACKS else []
    return ["stacks:", *(f"  {line.strip()}" for line in stacks[:_STACKS]), *more]


def _said(cause: Mapping[str, Any], room: int) -> list[str]:
    """The traceback, or without one that tells why it ended, the last lines of its output."""
    record = cast("RankEnd", {"exit_code": 1, **cause})
    if cause.get("traceback") and traceback_tells(record):
        return _traceback(plain(cause["traceback"]).split("\n"), room)
    lines = [line for line in cause.get("last_lines") or [] if line.strip()]
    if not lines:
        return []
    return ["its last lines:", *(f"  {line}" for line in lines[-min(10, room - 1) :])]


# -- a traceback -----------------------------------------------------------------------------------------------------


def _traceback(lines: list[str], room: int) -> list[str]:
    """As much of it as there is room for: first the exception, then the user's frames, then those of libraries.

    Marks below source lines (^^^^) go first. Of chained exceptions the last one is shown, and what the first one said.
    """
    lines = [line for line in lines if not _is_mark(line)]
    if len(lines) <= room:
        return lines
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback (most recent call last):")]
    first: list[str] = []
    if len(starts) > 1:
        message = [line for line in lines[starts[0] + 1 : starts[1]] if line[:1].strip()]
        first = [f"caused by: {message[0]}"] if message else []
        lines = lines[starts[-1] :]
    lines = [line for line in lines if line.strip()]
    room -= len(first)
    if len(lines) > room:
        lines = _shortened_group(lines, room) if "Exception Group" in lines[0] else _shortened(lines, room)
    return [*lines, *first]


def _shortened_group(lines: list[str], room: int) -> list[str]:
    """An ExceptionGroup without the frames of libraries, and of many exceptions the first."""
    kept: list[str] = []
    within = ""  # the margin of a library's frame
    for line in lines:
        frame = _FRAME.match(line)
        if frame:
            within = frame.group(1) if _is_library([line]) else ""
        if not within or not (frame or line.startswith(within + "  ")):
            within = ""
            kept.append(line)
    return kept if len(kept) <= room else [*kept[: room - 1], "  ... (the rank's log has all of it)"]


def _shortened(lines: list[str], room: int) -> list[str]:
    frames: list[list[str]] = []  # a "File" line and its source
    head: list[str] = []
    message: list[str] = []
    for line in lines:
        if _FRAME.match(line):
            frames.append([line])
        elif frames and (line.startswith("    ") or line.strip().startswith("[Previous line")) and not message:
            frames[-1].append(line)
        elif frames:
            message.append(line)
        else:
            head.append(line)
    message = message[: max(1, room // 3)]
    left = room - len(head) - len(message) - 1  # a line says what is left out
    # The innermost frame of each kind tells most.
    order = [index for index in reversed(range(len(frames))) if not _is_library(frames[index])]
    order += [index for index in reversed(range(len(frames))) if _is_library(frames[index])]
    kept: set[int] = set()
    for index in order:
        if len(frames[index]) > left:
            break
        kept.add(index)
        left -= len(frames[index])
    shown = list(head)
    told = False
    for index, frame in enumerate(frames):
        if index in kept:
            shown += frame
        elif not told:
            shown.append(f"  ... ({len(frames) - len(kept)} frames left out; the rank's log has them)")
            told = True
    return [*shown, *message][:room]


def _is_library(frame: Sequence[str]) -> bool:
    found = _FRAME.match(frame[0])
    path = found.group(2) if found else ""
    return bool(_LIBRARY.search(path)) or path.startswith(sysconfig.get_paths()["stdlib"] + os.sep)


def _is_mark(line: str) -> bool:
    return bool(line.strip()) and not line.strip("|+ ^~")


# -- lines -----------------------------------------------------------------------------------------------------------


def _clock(seconds: float) -> str:
    """`14:03:07.123 UTC`."""
    when = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return f"{when:%H:%M:%S}.{when.microsecond // 1000:03d} UTC"


def _flat(line: str) -> str:
    return plain(line).replace("\n", " ").replace("\t", "    ").rstrip()


def _fit(line: str) -> str:
    line = _flat(line)
    if len(line) <= _WIDTH:
        return line
    end = _WIDTH // 3  # what an error says may come last: "Command '...' died with <Signals.SIGABRT: 6>."
    return f"{line[: _WIDTH - end - 5]} ... {line[-end:]}"

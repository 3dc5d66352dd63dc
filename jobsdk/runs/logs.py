"""Following what the ranks of a run write: every line whole, marked with its rank, in batches of bytes.

A rank writes to its own file, so a slow reader never holds it up; what is shown is read from these files.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, Protocol

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.failures.tracebacks import plain
from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.spec.text import duration_text
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.ranks import Ranks, counted
from jobsdk.runs.refresh import Pace, Refresh
from jobsdk.runs.state import STATUSES, EventReader, State
from jobsdk.terminal import blank, columns, painted

_CHUNK = 1 << 20  # bytes read from one file in one go
#: Seconds between two looks at the files: before the first line, while lines come, and when all is quiet.
_EAGER, _BUSY, _IDLE = 0.004, 0.02, 0.2
_EAGER_FOR_S = 5.0  # seconds
_SOON_S = 0.5  # seconds in which most jobs have ended after a failure
_QUEUE_S = 3.0  # seconds that a run may wait for its nodes before that is said, unless it was refused
_STATUS_AFTER_S = 1.0  # seconds after which a run that is followed gets a line on its ranks
_REDRAW_S = 0.1  # seconds between two pictures of a progress bar
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_COLORS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)

Write = Callable[[bytes], Any]
#: Ranks that are chosen: see `parse_ranks`; None stands for all.
Chosen = str | int | Iterable[int] | None


class Sink(Protocol):
    """Where the lines go: a binary file, or anything like one."""

    def write(self, data: bytes, /) -> Any: ...
    def flush(self) -> Any: ...


def parse_ranks(text: Chosen, world_size: int) -> list[int] | None:
    """The ranks that `"0,3-5"`, `"last"`, a number or numbers stand for, in order; None stands for all.

    Raises ValueError for anything else and for ranks that the job does not have.
    """
    if text is None:
        return None
    if isinstance(text, str):
        ranks = {rank for part in text.split(",") for rank in _range(part.strip(), text, world_size)}
    else:
        ranks = {text} if isinstance(text, int) else set(text)
    wrong = sorted(rank for rank in ranks if not 0 <= rank < world_size)
    if wrong or not ranks:
        which = f"there is no rank {wrong[0]}" if wrong else f"{text!r} names no rank"
        there = f"ranks 0 to {world_size - 1}" if world_size > 1 else "rank 0 only"
        raise ValueError(f"{which}: the job has {there}")
    return sorted(ranks)


def _range(part: str, text: str, world_size: int) -> Iterable[int]:
    bounds = part.replace("last", str(world_size - 1)).split("-")
    if len(bounds) > 2 or not all(re.fullmatch("[0-9]{1,9}", bound) for bound in bounds):
        raise ValueError(f"{text!r} names no ranks: write them as in 0,3-5 or last")
    # Not beyond the first rank that there is not: "0-999999999" is an error, but need not be slow.
    return range(int(bounds[0]), min(int(bounds[-1]), max(world_size, int(bounds[0]))) + 1)


class Shown:
    """Up to where a run has been shown: who is interrupted goes on from there, as if nothing had been."""

    def __init__(self) -> None:
        self.restart: int | None = None  # the start of the job whose lines were shown first
        self.bytes: dict[str, int] = {}  # of each file
        self.events = 0


class _File:
    """One growing file: gives its whole lines, each behind a prefix."""

    def __init__(self, path: str, rank: int | None, prefix: bytes, settled: bool, shown: dict[str, int]) -> None:
        self.path = path
        self.rank = rank  # None: a launcher's log
        self.prefix = prefix
        self._is_settled = settled
        self._shown = shown
        self._seen = self._given  # up to here the file has been searched for ends of lines

    @property
    def _given(self) -> int:
        """Up to here every line has been given."""
        return self._shown.get(self.path, 0)

    @_given.setter
    def _given(self, offset: int) -> None:
        self._shown[self.path] = offset

    @property
    def has_unended_line(self) -> bool:
        return self._seen > self._given

    def skip_to_last(self, lines: int) -> None:
        """Pass over all but the last lines that the file has now."""
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            self._given = self._seen = _start_of_last(file, lines)

    def read(self, write: Write) -> int:
        """Give the lines that are whole by now; how many bytes were new, at most a chunk."""
        try:
            if os.stat(self.path).st_size <= self._seen:
                return 0
            with open(self.path, "rb") as file:
                data = _at(file, self._seen, _CHUNK)
                end = data.rfind(b"\n") + 1
                if end:
                    self._give(file, data[:end], write)
        except FileNotFoundError:
            return 0
        if end:
            self._given = self._seen + end
        self._seen += len(data)
        return len(data)

    def finish(self, write: Write) -> None:
        """Give a last line that was never ended, with an end."""
        if self.has_unended_line:
            with open(self.path, "rb") as file:
                self._give(file, b"\n", write)
            self._given = self._seen

    def _give(self, file: BinaryIO, rest: bytes, write: Write) -> None:
        """Write the lines that begin with what was seen of an unended one and go on with `rest`."""
        if self._seen - self._given <= _CHUNK:
            lines = _at(file, self._given, self._seen - self._given) + rest
            if self._is_settled:
                lines = _settled(lines)
            write(self.prefix + lines[:-1].replace(b"\n", b"\n" + self.prefix) + b"\n")
            return
        write(self.prefix)  # a line of many megabytes goes piece by piece; nothing is written between
        for start in range(self._given, self._seen, _CHUNK):
            write(_at(file, start, min(_CHUNK, self._seen - start)))
        write(rest[:-1].replace(b"\n", b"\n" + self.prefix) + b"\n")

    def progress(self) -> str:
        """The state of a progress bar: what follows the last carriage return of an unended line."""
        start = max(self._given, self._seen - 4096)
        with open(self.path, "rb") as file:
            data = _at(file, start, self._seen - start)
        return _last_state(data).decode("utf-8", "replace") if b"\r" in data else ""


def _at(file: BinaryIO, start: int, size: int) -> bytes:
    """`size` bytes from `start`, or fewer at the end of the file."""
    file.seek(start)
    return file.read(size)


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """Where the last `lines` lines of a file begin; an unended one counts."""
    end = file.seek(0, os.SEEK_END)
    if not lines or not end:
        return end
    if _at(file, end - 1, 1) == b"\n":
        end -= 1  # it ends the last line and begins none
    while end > 0:
        start = max(0, end - _CHUNK)
        data = _at(file, start, end - start)
        found = len(data)
        while (found := data.rfind(b"\n", 0, found)) >= 0:
            lines -= 1
            if not lines:
                return start + found + 1
        end = start
    return 0


def _settled(lines: bytes) -> bytes:
    """Lines as a terminal ends up showing them: of all states of a progress bar the last."""
    if b"\r" not in lines:
        return lines
    return b"\n".join(_last_state(line) if b"\r" in line else line for line in lines.split(b"\n"))


def _last_state(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class View(NamedTuple):
    """What of the logs is shown, and how.

    `ranks` chooses ranks (see `parse_ranks`), `tail` starts with the last lines of each. `terminal`: progress bars are
    redrawn in place, and only their last state stays; of a run that is followed for longer a last line says how its
    ranks are. `settled`: neither is drawn, and only the bars' last state comes. Elsewhere every byte is kept. `color`:
    the prefixes are colored. `say` gets the warnings in the run's events. `shown`: what another view has
    shown is left out (`tail` was its affair), and what this one shows is noted.
    """

    ranks: Chosen = None
    tail: int | None = None
    terminal: bool = False
    color: bool = False
    say: Callable[[str], None] | None = None
    settled: bool = False
    shown: Shown | None = None


class Follower:
    """Shows the logs of a run in `out`. Raises ValueError if the view asks for ranks that the run does not have."""

    def __init__(
        self,
        run: RunFolder,
        out: Sink,
        view: View | None = None,
        refresh: Callable[[], None] = lambda: None,
        pace: Pace | None = None,
    ) -> None:
        self.state = State()
        self._refresh = Refresh(refresh, pace or Pace(1.0, 1.0), self._say)
        self._run = run
        self._out = out
        self._view = view or View()
        self._events = EventReader(run.events_file)
        self._shown = self._view.shown or Shown()
        self._events_read = 0
        tail = self._view.tail if self._shown.restart is None else None
        if self._shown.restart is None:
            self._shown.restart = 0 if tail is None else run.recorded_state().restarts
        self._restart = self._shown.restart  # each start of the job has its own files
        self._files = list(self._make_files(self._restart))
        if tail is not None:
            for file in self._files:
                file.skip_to_last(tail)
        self._cause: tuple[float, str] | None = None  # why the job is being stopped, and when that is to be said
        self._waits: tuple[float, str] | None = None  # what the run waits for in its queue, in the same way
        self._waits_told: set[str] = set()
        self._progress: _File | None = None  # the one whose progress bar moved last
        self._drawn = b""
        self._drawn_at = 0.0
        self._ranks = Ranks(run.plan())
        self._status_from: float | None = None  # from when on the ranks' states are shown

    def _make_files(self, restart: int) -> Iterable[_File]:
        """Those of the start after so many restarts."""
        plan, folder = self._run.plan(), str(self._run.path)
        if not plan:  # its submitter was killed before there was one
            return
        size = distributions.of(plan).world_size()
        width = len(f"[rank {size - 1}]")
        chosen, settled = parse_ranks(self._view.ranks, size), self._view.terminal or self._view.settled

        def prefix(label: str, number: int) -> bytes:
            text = label.ljust(width).encode()
            color = _COLORS[number % len(_COLORS)]
            return b"\x1b[%dm%s\x1b[0m " % (color, text) if self._view.color else text + b" "

        if chosen is None and plan["distribution"]["launcher"] != "direct":
            for node in range(plan["nodes"]):
                path = paths.launcher_log(folder, node, restart)
                yield _File(path, None, prefix(f"[node {node}]", node), settled, self._shown.bytes)
        for process in distributions.of(plan).processes():
            if chosen is None or process.rank in chosen:
                path = paths.rank_log(folder, process.node_rank, process.rank, restart)
                start = prefix(f"[rank {process.rank}]", process.rank)
                yield _File(path, process.rank, start, settled, self._shown.bytes)

    def drain(self) -> None:
        """Show all that is there now, and last lines that were never ended."""
        for event in self._events.read():
            self._begin_again(event.get("restart", 0))
        self._finish_files()
        self._erase()
        self._out.flush()

    def _finish_files(self) -> None:
        while self._round():
            pass
        for file in self._files:
            file.finish(self._write)

    def _begin_again(self, restart: int) -> None:
        """Where the job was started once more, what was written before is shown before."""
        if restart > self._restart:
            self._finish_files()
            self._restart = restart
            self._files = list(self._make_files(self._restart))

    def follow(self) -> State:
        """Show what is written until the run ends; the run's last state."""
        try:
            return self._follow()
        except BaseException:  # whatever is said of it begins on a line of its own
            with contextlib.suppress(OSError):
                self._erase()
                self._out.flush()
            raise

    def _follow(self) -> State:
        pause, started, any_shown = _EAGER, time.monotonic(), False
        self._status_from = started + _STATUS_AFTER_S
        while not self.state.is_terminal:
            self._take_events()
            moved = self._round()
            self._draw()
            self._out.flush()
            now = time.monotonic()
            self._say_cause(now)
            self._say_waits(now)
            self._refresh.when_due(now, is_busy=moved > 0)
            any_shown = any_shown or moved > 0
            if moved:
                pause = _BUSY
            elif any_shown or now - started > _EAGER_FOR_S:
                pause = min(_IDLE, max(_BUSY, pause * 1.3))
            if moved < _CHUNK and not self.state.is_terminal:
                time.sleep(pause)
        self.drain()
        return self.state

    def _say(self, text: str) -> None:
        if self._view.say is not None:
            self._erase()
            self._out.flush()
            self._view.say(text)

    def _say_cause(self, now: float) -> None:
        """Why the job is being stopped, where that takes long; at its end the card says it."""
        if self._cause is not None and now > self._cause[0] and self._view.say is not None:
            self._say(f"{self._cause[1]}; the other ranks are being stopped")
            self._cause = None

    def _say_waits(self, now: float) -> None:
        """What a run waits for that gets no nodes; once, though the engine's reasons may alternate."""
        if self._waits is None or now <= self._waits[0] or self._view.say is None:
            return
        message, self._waits = self._waits[1], None
        if self.state.status == STATUSES[0] and message not in self._waits_told:
            self._waits_told.add(message)
            self._say(f"queued: {message}")

    def _take_events(self) -> None:
        for event in self._events.read():
            self._begin_again(event.get("restart", 0))
            self.state.feed([event])
            self._ranks.feed([event])
            self._events_read += 1
            if self._view.say is None or self._events_read <= self._shown.events:
                continue
            self._shown.events = self._events_read
            if event["event"] in ("ended", "restart"):
                self._cause = None
            if event["event"] == "stopping" and event.get("message"):
                self._cause = time.monotonic() + _SOON_S, event["message"]
            elif event["event"] == "queued" and event.get("message"):
                since = time.monotonic() + (0.0 if event.get("refused") else _QUEUE_S)
                self._waits = min(since, self._waits[0]) if self._waits else since, event["message"]
            elif event["event"] in ("warning", "waiting") and not event.get("told"):
                self._say(event["message"])
            elif event["event"] == "restart":
                self._say(f"{event['message']}; {event['decision']}")

    def _round(self) -> int:
        """One look at every file; how many bytes were new."""
        moved = 0
        for file in self._files:
            new = file.read(self._write)
            moved += new
            if new and file.has_unended_line:
                self._progress = file
            elif not new and file.has_unended_line and file.rank in self.state.ended_ranks:
                file.finish(self._write)  # its rank can write no more
        return moved

    # -- the terminal ----------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        self._erase()
        self._out.write(data)

    def _erase(self) -> None:
        if self._drawn:
            self._out.write(blank(self._drawn))
            self._drawn = b""

    def _draw(self) -> None:
        """Show below the lines how the ranks are, and the progress bar that moved last."""
        now = time.monotonic()
        if not self._view.terminal or now - self._drawn_at < _REDRAW_S:
            return
        line = painted(self._pieces(now), columns(self._out) - 1)
        if line != self._drawn:
            self._erase()
            self._out.write(line)
            self._drawn, self._drawn_at = line, now

    def _pieces(self, now: float) -> Iterator[tuple[str, str]]:
        """The words of that line, each with what sets its color."""
        file = self._progress
        bar = plain(file.progress()).replace("\t", " ") if file is not None and file.has_unended_line else ""
        if self._status_from is not None and now > self._status_from:
            yield self._status(), "\x1b[2m" if self._view.color else ""
            yield "  " if bar else "", ""
        if file is not None and bar:
            prefix = file.prefix.decode()
            found = _ESCAPES.match(prefix)
            yield _ESCAPES.sub("", prefix), found.group() if found else ""
            yield bar, ""

    def _status(self) -> str:
        """`4 running, 1 failed · 12 s`, or what the run is before it has ranks."""
        counts = counted(self._ranks.states())
        words = ", ".join(f"{count} {state}" for state, count in counts.items()) if self.state.started else ""
        since = self.state.started or self.state.submitted
        passed = f" · {duration_text(int(time.time() - since)).replace('.0 s', ' s')}" if since is not None else ""
        return f"{words or self.state.status}{passed}"

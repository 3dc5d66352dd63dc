"""The logs of all ranks as one list of numbered lines, in the order in which they were written, as far as is known.

Only an index is kept: pieces of logs, each with its time and its number of lines. So a page anywhere in a million lines
is read in no time, and memory grows with the logs by some bytes for each 256 kB. A line may be of any length: of a very
long one only what is shown is ever held.
"""

from __future__ import annotations

import io
import os
import re
import time as clock
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.failures.tracebacks import plain
from jobsdk.bootstrap.spec import paths
from jobsdk.runs.folder import RunFolder

_PIECE = 256 << 10  # bytes of a piece, at most twice that, more only where one line is longer
_LONGEST = 10_000  # characters of a line that are given
_LAST = 4096  # bytes of a line that has no end yet in which its last state is looked for
_FILTERS = 8  # choices of ranks whose counts are kept
_BARS = 8  # unended lines that are given
_PATIENCE_S = 0.3  # seconds that one refresh takes, whatever the size of the logs
_SEARCH_S = 3.0  # seconds that a search takes


class Line(NamedTuple):
    """One line; `number` counts from 0 among the lines that were asked for. `rank` -1 - K is the launcher of node K."""

    number: int
    rank: int
    text: str


class Hits(NamedTuple):
    """Lines that were found, by their numbers; `is_all`: there are no more of them."""

    numbers: list[int]
    is_all: bool


def label(rank: int) -> str:
    """Who has written a line."""
    return str(rank) if rank >= 0 else f"node {-1 - rank}"


class _Piece(NamedTuple):
    time: float
    rank: int
    begin: int
    end: int
    lines: int


class _Log:
    """What is known of one log."""

    def __init__(self, rank: int, path: str, times: str) -> None:
        self.rank, self.path, self._times = rank, path, times
        self.moved = 0.0  # when its unended last line has grown
        self._upto = 0  # up to here its lines are indexed
        self._seen = 0  # up to here it has been searched for ends of lines
        self._read = 0  # of the file of times
        self._ticks: deque[tuple[float, int]] = deque()
        self._time = 0.0  # that of the last piece

    @property
    def is_unended(self) -> bool:
        return self._seen > self._upto

    def pieces(self, now: float, *, is_over: bool) -> Iterator[_Piece | None]:
        """The pieces that are new, and None after each part that has none. What is newer than any known time was
        written `now`."""
        try:
            size = os.stat(self.path).st_size
            if size > self._seen:
                self._read_ticks()
                with open(self.path, "rb", buffering=0) as file:
                    yield from self._searched(file, size, now)
        except OSError:  # taken away meanwhile
            return
        if is_over and self.is_unended:  # a last line without an end
            time = next((time for time, until in self._ticks if until >= self._seen), now)
            self._time, self._upto, begin = max(self._time, time), self._seen, self._upto
            yield _Piece(self._time, self.rank, begin, self._seen, 1)

    def _searched(self, file: io.FileIO, size: int, now: float) -> Iterator[_Piece | None]:
        while self._seen < size:
            file.seek(self._seen)
            data = file.read(min(_PIECE, size - self._seen))
            if not data:
                return  # cut short meanwhile
            base, self._seen = self._seen, self._seen + len(data)
            whole = data.rfind(b"\n") + 1
            if whole and base - self._upto > _PIECE:  # a long line ends here
                first = data.find(b"\n") + 1
                yield from self._timed(data[:first], base, now)
                base, data, whole = base + first, data[first:], whole - first
            if whole:
                yield from self._timed(data[:whole], base, now)
            else:
                yield None
            if self.is_unended:
                self.moved = now

    def _timed(self, data: bytes, base: int, now: float) -> Iterator[_Piece]:
        """Pieces of whole lines, cut where a new time begins; the first may have begun before `data`, which lies at
        `base`. A line belongs to the time at which it was whole."""
        at, end = 0, base + len(data)
        while at < len(data):
            while self._ticks and self._ticks[0][1] <= self._upto:
                self._ticks.popleft()
            time, until = self._ticks[0] if self._ticks else (now, end)
            cut = len(data) if until >= end else data.rfind(b"\n", at, max(at, until - base)) + 1
            if cut <= at:  # the line goes on beyond that time
                self._ticks.popleft()
                continue
            self._time = max(self._time, time)  # a clock may be set back
            lines = data.count(b"\n", at, cut)
            begin, self._upto, at = self._upto, base + cut, cut
            yield _Piece(self._time, self.rank, begin, self._upto, lines)

    def _read_ticks(self) -> None:
        try:
            with open(self._times, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        for line in data.splitlines():
            time, _, size = line.partition(b" ")
            try:
                self._ticks.append((float(time), int(size)))
            except ValueError:
                pass  # cut short by a full disk

    def unended(self) -> str:
        """The last state of the line that has no end yet: of a progress bar the one that is seen."""
        return shown(self.part(max(self._upto, self._seen - _LAST), self._seen))

    def part(self, begin: int, end: int) -> bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(begin)
                return file.read(end - begin)
        except OSError:
            return b""

    def raw(self, piece: _Piece) -> list[bytes]:
        """The lines of a piece; of a very long one what can be shown."""
        size = piece.end - piece.begin
        if size <= 2 * _PIECE:
            data = self.part(piece.begin, piece.end)
            return (data[:-1] if data.endswith(b"\n") else data).split(b"\n")
        state = self.part(piece.end - _LAST, piece.end).rstrip(b"\r\n").rpartition(b"\r")
        if state[1]:  # a progress bar
            return [state[2]]
        return [self.part(piece.begin, piece.begin + _LONGEST // 4) + b" ... (%d bytes)" % size]


class MergedLog:
    """`refresh` takes in what is new; lines that are known keep their numbers. Not for two threads at once, but that
    `find` may go on beside the others."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._pieces: list[_Piece] = []
        self._logs: dict[int, _Log] = {}
        self._restart = -1
        self._counts: dict[frozenset[int] | None, tuple[list[int], list[int]]] = {}
        self._round: Iterator[_Piece | None] | None = None
        self._new: list[_Piece] = []

    @property
    def is_behind(self) -> bool:
        """Whether the logs are so large that what there is has not been read yet."""
        return self._round is not None

    def refresh(self, now: float, *, is_over: bool = False, restart: int = 0) -> int:
        """How many lines there are then. `is_over`: nothing more is written; `restart`: the start of the job whose logs
        are shown: those of another one are forgotten. Of very large logs a part is read, and the rest the next times.
        """
        if restart != self._restart or not self._logs:
            self._restart, self._pieces, self._logs, self._counts = restart, [], {}, {}
            self._round, self._new = None, []
            self._find_logs(restart)
        until, is_new = clock.monotonic() + _PATIENCE_S, False
        while not is_new:  # one that was begun before knew less
            is_new = self._round is None
            if self._round is None:
                self._round = self._begin(now, is_over)
            for piece in self._round:
                if piece is not None:
                    self._new.append(piece)
                if clock.monotonic() > until:
                    return self.count()
            self._pieces += sorted(self._new, key=lambda piece: (piece.time, piece.rank, piece.begin))
            self._round, self._new = None, []
        return self.count()

    def _begin(self, now: float, is_over: bool) -> Iterator[_Piece | None]:
        """Once through all logs, before anything of it is shown: for the sake of the order."""
        for log in self._logs.values():
            yield from log.pieces(now, is_over=is_over)

    def _find_logs(self, restart: int) -> None:
        folder, plan = str(self._run.path), self._run.plan()
        if not plan:  # it is just being made
            return
        if plan["distribution"]["launcher"] != "direct":
            for node in range(plan["nodes"]):
                self._logs[-1 - node] = _Log(-1 - node, paths.launcher_log(folder, node, restart), "")
        for process in distributions.of(plan).processes():
            place = folder, process.node_rank, process.rank, restart
            self._logs[process.rank] = _Log(process.rank, paths.rank_log(*place), paths.times(*place))

    def unended(self) -> list[tuple[int, str]]:
        """(rank, text) of last lines that have no end yet, as of progress bars; the one that moved last comes last."""
        logs = sorted((log for log in self._logs.values() if log.is_unended), key=lambda log: (log.moved, -log.rank))
        return [(log.rank, text) for log in logs[-_BARS:] if (text := log.unended()).strip()]

    def count(self, ranks: Iterable[int] | None = None) -> int:
        """The number of lines of all ranks, or of these."""
        _, ends = self._index(ranks)
        return ends[-1] if ends else 0

    def lines(self, first: int, count: int, ranks: Iterable[int] | None = None) -> list[Line]:
        """At most `count` lines from number `first` on."""
        places, ends = self._index(ranks)
        found: list[Line] = []
        at = bisect_right(ends, first)
        while at < len(places) and len(found) < count:
            piece = self._pieces[places[at]]
            begin = ends[at] - piece.lines
            for number, raw in enumerate(self._logs[piece.rank].raw(piece), begin):
                if number >= first and len(found) < count:
                    found.append(Line(number, piece.rank, shown(raw)))
            at += 1
        return found

    def find(self, words: str, ranks: Iterable[int] | None = None, most: int = 1000) -> Hits:
        """The first `most` lines that hold `words`, in any letter case; fewer where that takes too long."""
        return self.search(ranks)(words, most)

    def search(self, ranks: Iterable[int] | None = None) -> Callable[[str, int], Hits]:
        """The same of the log as it is now, which may grow meanwhile."""
        places, ends = self._index(ranks)
        return partial(_search, self._pieces, self._logs, places[:], ends[:])

    def _index(self, ranks: Iterable[int] | None) -> tuple[list[int], list[int]]:
        """The pieces of some ranks, by their places in the list, and up to which number each goes."""
        key = None if ranks is None else frozenset(ranks)
        if key not in self._counts:
            if len(self._counts) >= _FILTERS:
                self._counts.clear()
            self._counts[key] = ([], [])
        places, ends = self._counts[key]
        known = places[-1] + 1 if places else 0
        total = ends[-1] if ends else 0
        for place in range(known, len(self._pieces)):
            piece = self._pieces[place]
            if key is None or piece.rank in key:
                total += piece.lines
                places.append(place)
                ends.append(total)
        return places, ends


def _search(
    pieces: list[_Piece], logs: dict[int, _Log], places: list[int], ends: list[int], words: str, most: int
) -> Hits:
    if not words:
        return Hits([], True)
    pattern = re.compile(re.escape(words.encode("utf-8", "replace")), re.IGNORECASE)
    found: list[int] = []
    until = clock.monotonic() + _SEARCH_S
    for place, end in zip(places, ends, strict=True):
        piece = pieces[place]
        data = b"\n".join(logs[piece.rank].raw(piece))
        number, at = end - piece.lines, 0
        for hit in pattern.finditer(data):
            number += data.count(b"\n", at, hit.start())
            at = hit.start()
            if not found or found[-1] != number:
                found.append(number)
                if len(found) >= most:
                    return Hits(found, False)
        if clock.monotonic() > until:
            return Hits(found, False)
    return Hits(found, True)


def shown(raw: bytes, mask: Callable[[str], str] = str) -> str:
    """A line as text: of a progress bar its last state, no control sequences, not longer than anybody reads.

    `mask` takes out what is not to be seen, before anything is cut off.
    """
    last = raw.rstrip(b"\r").rpartition(b"\r")[2]
    text = mask(plain(last.decode("utf-8", "replace")))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text)} characters)"

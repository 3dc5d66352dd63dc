"""The logs of all ranks as one list of numbered lines, in the order in which they were written, as far as is known.

Only an index is kept: pieces of logs, each with its time and its number of lines. So a page anywhere in a million lines
is read in no time, and memory grows with the logs by some bytes for each 256 kB.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jobsdk.bootstrap import contract, layout
from jobsdk.runs import RunFolder

_PIECE = 256 << 10  # bytes of a piece, more only where one line is longer
_LONGEST = 10_000  # characters of a line that are given
_FILTERS = 8  # choices of ranks whose counts are kept


class Line(NamedTuple):
    """One line; `number` counts from 0 among the lines of the ranks that were asked for."""

    number: int
    rank: int
    text: str


class _Piece(NamedTuple):
    time: float
    rank: int
    begin: int
    end: int
    lines: int


class _Log:
    """What is known of one rank's log."""

    def __init__(self, rank: int, path: str, times: str) -> None:
        self.rank, self.path, self._times = rank, path, times
        self._upto = 0  # up to here its lines are indexed
        self._read = 0  # of the file of times
        self._ticks: list[tuple[float, int]] = []
        self._time = 0.0  # that of the last piece

    def pieces(self, now: float, *, is_over: bool) -> Iterator[_Piece]:
        """The pieces that are new. What is newer than any known time was written `now`."""
        try:
            size = os.stat(self.path).st_size
        except OSError:
            return
        if size <= self._upto:
            return
        self._read_ticks()
        with open(self.path, "rb") as file:
            while self._upto < size:
                file.seek(self._upto)
                data = file.read(min(_PIECE, size - self._upto))
                while b"\n" not in data and self._upto + len(data) < size:
                    data += file.read(min(_PIECE, size - self._upto - len(data)))
                whole = data.rfind(b"\n") + 1
                if not whole and is_over:
                    whole = len(data)  # a last line without an end
                if not whole:
                    return
                yield from self._timed(data[:whole], now)
                if self._upto + len(data) >= size and not is_over:
                    return

    def _timed(self, data: bytes, now: float) -> Iterator[_Piece]:
        """Pieces of whole lines, cut where a new time begins. A line belongs to the time at which it was whole."""
        at, end = 0, self._upto + len(data)
        while at < len(data):
            while self._ticks and self._ticks[0][1] <= self._upto:
                self._ticks.pop(0)
            time, until = self._ticks[0] if self._ticks else (now, end)
            cut = len(data) if until >= end else data.rfind(b"\n", at, at + until - self._upto) + 1
            if cut <= at:  # the line goes on beyond that time
                self._ticks.pop(0)
                continue
            self._time = max(self._time, time)  # a clock may be set back
            lines = data.count(b"\n", at, cut) + (cut == len(data) and not data.endswith(b"\n"))
            begin, self._upto = self._upto, self._upto + cut - at
            at = cut
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


class MergedLog:
    """`refresh` takes in what is new; lines that are known keep their numbers. Not for two threads at once."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._pieces: list[_Piece] = []
        self._logs: list[_Log] = []
        self._restart = -1
        self._counts: dict[frozenset[int] | None, tuple[list[int], list[int]]] = {}

    def refresh(self, now: float, *, is_over: bool = False, restart: int = 0) -> int:
        """How many lines there are then. `is_over`: nothing more is written; `restart`: the job's latest start, whose
        logs are shown: those of earlier ones are forgotten."""
        if restart != self._restart:
            self._restart, self._pieces, self._logs, self._counts = restart, [], [], {}
            folder, plan = str(self._run.path), self._run.plan()
            for process in contract.processes(plan) if plan else ():
                place = folder, process.node_rank, process.rank, restart
                self._logs.append(_Log(process.rank, layout.rank_log(*place), layout.times(*place)))
        new = [piece for log in self._logs for piece in log.pieces(now, is_over=is_over)]
        self._pieces += sorted(new, key=lambda piece: (piece.time, piece.rank, piece.begin))
        return self.count()

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
            for number, raw in enumerate(self._raw(piece), begin):
                if number >= first and len(found) < count:
                    found.append(Line(number, piece.rank, shown(raw)))
            at += 1
        return found

    def find(self, words: str, ranks: Iterable[int] | None = None, most: int = 1000) -> list[int]:
        """The numbers of the first `most` lines that hold `words`, in any letter case."""
        if not words:
            return []
        pattern = re.compile(re.escape(words.encode()), re.IGNORECASE)
        places, ends = self._index(ranks)
        found: list[int] = []
        for place, end in zip(places, ends, strict=True):
            piece = self._pieces[place]
            data = self._data(piece)
            number, at = end - piece.lines, 0
            for hit in pattern.finditer(data):
                number += data.count(b"\n", at, hit.start())
                at = hit.start()
                if not found or found[-1] != number:
                    found.append(number)
                    if len(found) >= most:
                        return found
        return found

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

    def _data(self, piece: _Piece) -> bytes:
        log = next(log for log in self._logs if log.rank == piece.rank)
        try:
            with open(log.path, "rb") as file:
                file.seek(piece.begin)
                return file.read(piece.end - piece.begin)
        except OSError:
            return b""

    def _raw(self, piece: _Piece) -> list[bytes]:
        data = self._data(piece)
        return (data[:-1] if data.endswith(b"\n") else data).split(b"\n")


_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shown(raw: bytes) -> str:
    """A line as text: of a progress bar its last state, no control sequences, not longer than anybody reads."""
    last = raw.rstrip(b"\r").rpartition(b"\r")[2]
    text = _ESCAPES.sub("", last.decode("utf-8", "replace"))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text)} characters)"

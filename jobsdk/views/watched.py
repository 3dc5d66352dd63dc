"""What is known of a run: read once, then only what is new. Of few runs at a time, so that memory is bounded."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from typing import Any

from jobsdk import card, timeline
from jobsdk.bootstrap import layout
from jobsdk.errors import ComputeError
from jobsdk.metrics import last
from jobsdk.run import Run
from jobsdk.runs import EventReader, RunFolder, State
from jobsdk.views import charts
from jobsdk.views.merged import MergedLog, shown
from jobsdk.views.ranks import Ranks, RankState, counted

_RUNS = 8  # runs whose index is kept
_LAST = 4096  # bytes at the end of a log in which its last line is looked for


class Watched:
    """One run. Its methods may be called from several threads."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.plan = folder.plan()
        self._lock = threading.Lock()
        self._reader = EventReader(folder.events_file)
        self._state = State()
        self._ranks = Ranks(self.plan)
        self._warnings: list[str] = []
        self._log = MergedLog(folder)
        self._asked = 0.0
        self._pause = 0.0
        self._trouble = ""

    def refresh(self) -> None:
        """Take in what is new; the engine is asked at the pace that it can bear."""
        with self._lock:
            self._ask_engine()
            self._read()

    def _ask_engine(self) -> None:
        if self._state.is_terminal or time.monotonic() - self._asked < self._pause:
            return
        try:
            target = Run(self.folder).target
            target.refresh(self.folder)
            self._pause, self._trouble = target.pace.shortest, ""
        except ComputeError as error:
            self._pause, self._trouble = 10.0, str(error)
        self._asked = time.monotonic()

    def _read(self) -> None:
        if not self.plan:
            self.plan = self.folder.plan()
            self._ranks = Ranks(self.plan)
        events = self._reader.read()
        self._state.feed(events)
        self._ranks.feed(events)
        self._warnings += [event["message"] for event in events if event["event"] == "warning"]
        self._log.refresh(time.time(), is_over=self._state.is_terminal, restart=self._state.restarts)

    def summary(self) -> dict[str, Any]:
        """How it is now: what the head of its page and the grid of its ranks show."""
        with self._lock:
            state, states = self._state, self._ranks.states()
            report = self.folder.report() if state.is_terminal else {}
            return {
                "status": state.status,
                "is_over": state.is_terminal,
                "exit_code": state.exit_code,
                "message": state.message,
                "submitted": state.submitted,
                "started": state.started,
                "ended": state.ended,
                "now": time.time(),
                "restarts": state.restarts,
                "trouble": self._trouble,
                "warnings": self._warnings[-20:],
                "lines": self._log.count(),
                "counts": counted(states),
                "ranks": [[one.rank, one.node, one.state, one.exit_code] for one in states],
                "card": card.text(report, self.folder.name) if report.get("cause") else "",
                "culprit": (report.get("cause") or {}).get("rank"),
            }

    def states(self) -> list[RankState]:
        """Every rank."""
        with self._lock:
            return self._ranks.states()

    def rank(self, number: int) -> dict[str, Any]:
        """All that is known of one rank, with what it wrote last. Raises IndexError if there is none."""
        from jobsdk.explain import Explanation

        with self._lock:
            states = self._ranks.states()
            if not 0 <= number < len(states):
                raise IndexError(number)
            one, restarts = states[number], self._state.restarts
        path = layout.rank_log(str(self.folder.path), one.node, one.rank, restarts)
        explained = Explanation(self.plan, "", "cores of the node", {})[number]
        return {
            **one._asdict(),
            "last": last_line(path),
            "environment": explained.environment,
            "command": explained.command,
        }

    def count(self, ranks: list[int] | None) -> int:
        with self._lock:
            return self._log.count(ranks)

    def lines(self, first: int, count: int, ranks: list[int] | None) -> list[list[Any]]:
        """Lines as [number, rank, text]."""
        with self._lock:
            return [list(line) for line in self._log.lines(first, count, ranks)]

    def find(self, words: str, ranks: list[int] | None) -> list[int]:
        with self._lock:
            return self._log.find(words, ranks)

    def timeline(self) -> dict[str, Any]:
        """Where the time went, as data and as a drawing."""
        found = timeline.of_run(self.folder)
        return {**found.to_dict(), "svg": charts.timeline(found)}

    def metrics(self) -> dict[str, Any]:
        """The value of each metric, and a drawing of all."""
        found = Run(self.folder).metrics
        return {"last": {name: last(points).value for name, points in found.items()}, "svg": charts.curves(found)}


def last_line(path: str) -> str:
    """The last line of a log that is not blank."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST))
        for line in reversed(file.read().split(b"\n")):
            if line.strip():
                return shown(line)[-300:]
    return ""


class Watch:
    """The runs that are looked at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Watched] = OrderedDict()

    def of(self, name: str) -> Watched:
        """The run of a whole name, refreshed. Raises RunNotFound."""
        folder = RunFolder.find(name)
        with self._lock:
            found = self._known.pop(folder.name, None) or Watched(folder)
            self._known[folder.name] = found
            while len(self._known) > _RUNS:
                self._known.popitem(last=False)
        found.refresh()
        return found

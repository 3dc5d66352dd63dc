"""What is known of a run: read once, then only what is new. Of few runs at a time, so that memory is bounded."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from jobsdk.bootstrap.failures.tracebacks import plain
from jobsdk.bootstrap.spec import paths
from jobsdk.client.run import Run
from jobsdk.errors import ComputeError, RunNotFound
from jobsdk.planning.recognition import Mask
from jobsdk.runs import card, silence, timeline
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.logs import View
from jobsdk.runs.metrics import last
from jobsdk.runs.ranks import Ranks, RankState, counted
from jobsdk.runs.state import EventReader, State
from jobsdk.views import charts
from jobsdk.views.merged import Hits, MergedLog, label, shown

_RUNS = 8  # runs whose index is kept
_LAST = 4096  # bytes at the end of a log in which its last line is looked for
_AGAIN_S = 10.0  # seconds until an engine that did not answer is asked again
_VALUES = 4  # metrics of the last report that are named


class Watched:
    """One run. Its methods may be called from several threads, and wait for no engine."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.plan = folder.plan()
        self._lock = threading.Lock()
        self._reader = EventReader(folder.events_file)
        self._state = State()
        self._ranks = Ranks(self.plan)
        self._warnings: list[str] = []
        self._known: dict[str, str] = {}  # what is found out at the start only
        self._log = MergedLog(folder)
        self._before: dict[int, MergedLog] = {}  # the logs of earlier starts that were asked for
        self._asking = threading.Lock()  # held while the engine is asked
        self._due = 0.0
        self._following = contextlib.ExitStack()  # ends with this object
        self._bring: Callable[[], None] | None = None
        self._trouble = ""
        self._telling = threading.Lock()
        self._news: dict[str, Any] = {}
        self._told = float("-inf")

    def refresh(self) -> None:
        """Take in what is new here, and have the engine asked, in the background, at the pace that it can bear."""
        with self._lock:
            is_over = self._state.is_terminal
            self._read()
        if not is_over and time.monotonic() >= self._due and self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask_engine, daemon=True, name="jobsdk-ask").start()

    def _ask_engine(self) -> None:
        pause = _AGAIN_S
        try:
            target = Run(self.folder).target
            if self._bring is None:
                self._bring = self._following.enter_context(target.following(self.folder, View()))
            self._bring()
            pause, self._trouble = target.pace.shortest, ""
        except ComputeError as error:
            self._trouble = str(error)
        except Exception as error:  # the run was deleted meanwhile, an engine's own library
            self._trouble = f"{type(error).__name__}: {error}"
        finally:
            self._due = time.monotonic() + pause
            self._asking.release()

    def _read(self) -> None:
        if not self.plan:
            self.plan = self.folder.plan()
            self._ranks = Ranks(self.plan)
        events = self._reader.read()
        self._state.feed(events)
        self._ranks.feed(events)
        for event in events:
            if event["event"] == "started":
                address, port = event.get("master_addr"), event.get("master_port")
                self._known = {"<address of node 0>": str(address), "<free port 0 on node 0>": str(port)}
        self._warnings += [event["message"] for event in events if event["event"] == "warning"]
        self._log.refresh(time.time(), is_over=self._state.is_terminal, restart=self._state.restarts)

    def news(self, age: float) -> dict[str, Any]:
        """The summary, at most `age` seconds old: the same for all who follow the run."""
        with self._telling:
            if time.monotonic() - self._told > age:
                self.refresh()
                self._news, self._told = self.summary(), time.monotonic()
            return self._news

    def summary(self) -> dict[str, Any]:
        """How it is now: what the head of its page and the grid of its ranks show."""
        with self._lock:
            state, states = self._state, self._ranks.states()
            report = self.folder.report() if state.is_terminal else {}
            bars = [] if state.is_terminal else self._log.unended()
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
                "is_behind": self._log.is_behind,
                "bars": [f"[{label(rank)}] {text}" for rank, text in bars],
                "step": self._last_report(),
                "silence": None if state.is_terminal else silence.text(self._last_outputs(states), time.time()),
                "counts": counted(states),
                "ranks": [[one.rank, one.node, one.state, one.exit_code] for one in states],
                "card": card.of_run(self.folder) if report.get("cause") else "",
                "culprit": (report.get("cause") or {}).get("rank"),
            }

    def _last_outputs(self, states: list[RankState]) -> dict[int, float]:
        return silence.last_outputs(self.folder, states, self._state.restarts)

    def _last_report(self) -> str:
        """`step 12: loss 0.5`, as rank 0 has reported it last."""
        path = paths.reports(str(self.folder.path), 0, 0, self._state.restarts)
        try:
            found = json.loads(_tail(path, _LAST)[0].rstrip(b"\n").rpartition(b"\n")[2])
            values = [
                f"{name} {value:.4g}" for name, value in found["metrics"].items() if isinstance(value, int | float)
            ]
            return plain(f"step {int(found['step'])}: {', '.join(values[:_VALUES])}").rstrip(": ")[:300]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return ""  # there is none, or it is just being written

    def states(self) -> list[RankState]:
        """Every rank."""
        with self._lock:
            return self._ranks.states()

    def rank(self, number: int) -> dict[str, Any]:
        """All that is known of one rank, with what it wrote last. Raises IndexError if there is none."""
        from jobsdk.client.explain import Explanation

        with self._lock:
            states = self._ranks.states()
            if not 0 <= number < len(states):
                raise IndexError(f"there is no rank {number}" + ("" if states else " yet"))
            one, restarts = states[number], self._state.restarts
        path = paths.rank_log(str(self.folder.path), one.node, one.rank, restarts)
        explained = Explanation(self.plan, "", "cores of the node", {})[number]
        return {
            **one._asdict(),
            "last": last_line(path),
            "last_output": self._last_outputs([one]).get(number),
            "environment": {name: self._filled(value) for name, value in explained.environment.items()},
            "command": explained.command,
        }

    def _filled(self, value: str) -> str:
        for unknown, known in self._known.items():
            value = value.replace(unknown, known)
        return value

    def count(self, ranks: list[int] | None, start: int | None = None) -> int:
        with self._lock:
            return self._log_of(start).count(ranks)

    def lines(self, first: int, count: int, ranks: list[int] | None, start: int | None = None) -> list[list[Any]]:
        """Lines as [number, rank, text]; `start` 0 are those of the job's first start, None those of its latest."""
        with self._lock:
            return [list(line) for line in self._log_of(start).lines(first, count, ranks)]

    def find(self, words: str, ranks: list[int] | None, start: int | None = None, most: int = 1000) -> Hits:
        """The lines that hold some words, by their numbers."""
        with self._lock:
            search = self._log_of(start).search(ranks)
        return search(words, most)

    def _log_of(self, start: int | None) -> MergedLog:
        """The log of one start of the job. Raises IndexError where it has not been started so often."""
        latest = self._state.restarts
        if start is None or start == latest:
            return self._log
        if not 0 <= start < latest:
            raise IndexError(f"there was no start {start}")
        log = self._before.setdefault(start, MergedLog(self.folder))
        log.refresh(self._state.ended or 0.0, is_over=True, restart=start)
        return log

    def timeline(self) -> dict[str, Any]:
        """Where the time went, as data and as a drawing."""
        found = timeline.of_run(self.folder)
        return {**found.to_dict(), "svg": charts.timeline(found)}

    def metrics(self) -> dict[str, Any]:
        """The value of each metric, and a drawing of all."""
        found = Run(self.folder).metrics
        return {"last": {name: last(points).value for name, points in found.items()}, "svg": charts.curves(found)}


def last_line(path: str, mask: Mask | None = None) -> str:
    """The last line of a log that is not blank."""
    return next((line[-300:] for line in last_lines(path, _LAST, mask) if line.strip()), "")


def last_lines(path: str, size: int, mask: Mask | None = None) -> Iterator[str]:
    """The lines in the last `size` bytes of a log, as they are shown, the last one first. Of a line that begins before
    those its end is shown if it is the only one."""
    margin = mask.longest if mask else 0  # of what a value's end may stand at the beginning
    data, is_cut = _tail(path, size + margin)
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    if is_cut and len(lines) > 1:
        del lines[0]
        is_cut = False
    for line in reversed(lines):
        yield shown(line, mask or str)[margin if is_cut else 0 :]


def _tail(path: str, size: int) -> tuple[bytes, bool]:
    """The end of a file, and whether there is more before it."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        begin = max(0, os.fstat(file.fileno()).st_size - size)
        file.seek(begin)
        return file.read(), begin > 0
    return b"", False


class Watch:
    """The runs that are looked at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[Any, Watched]] = OrderedDict()

    def of(self, name: str) -> Watched:
        """The run of a whole name, refreshed. Raises RunNotFound."""
        found = self.known(name)
        found.refresh()
        return found

    def known(self, name: str) -> Watched:
        """The same as it was when somebody looked at it last."""
        folder = RunFolder.find(name)
        key = _identity(folder)
        with self._lock:
            known, found = self._known.pop(folder.name, (None, None))
            if found is None or known != key:
                found = Watched(folder)
            self._known[folder.name] = key, found
            while len(self._known) > _RUNS:
                self._known.popitem(last=False)
        return found


def _identity(folder: RunFolder) -> Any:
    """Another one where a run was deleted and a new one has taken its name."""
    try:
        return os.stat(folder.path).st_ino, folder.facts().get("created")
    except FileNotFoundError:
        raise RunNotFound(f"run {folder.name} has just been deleted") from None

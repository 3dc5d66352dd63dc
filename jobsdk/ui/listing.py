"""The list of runs. It waits for no engine: those of runs that go on are asked in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from jobsdk.compute.refreshing import refresh
from jobsdk.home import runs_folder
from jobsdk.runs import silence
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.history import History
from jobsdk.runs.state import STATUSES, TERMINAL

_MOST = 500  # runs of a list
_KEPT = 4096  # ended runs whose times are kept
_PAUSE, _AGAIN = 5.0, 30.0  # seconds between two rounds of questions, and after one that was not answered
_VIEWS: Mapping[str, bool | None] = {"archived": True, "all": None}
_SHOWN = ("name", "display_name", "experiment", "compute", "processes", "created", "status", "exit_code", "ended")


class Listing:
    """The runs of this machine. Its methods may be called from several threads."""

    def __init__(self) -> None:
        self._asking = threading.Lock()  # held while the engines are asked
        self._due = 0.0
        self._trouble: dict[str, str] = {}
        self._started: dict[str, float | None] = {}  # of runs that have ended

    def runs(self, wanted: Mapping[str, str]) -> dict[str, Any]:
        """Those that fit `status`, `experiment`, `compute`, `tag`, `view` and `words` (in the name), the newest first;
        `is_all` false: there are more. `trouble`: engines that did not answer."""
        status, words = wanted.get("status"), wanted.get("words", "").lower()
        filters: dict[str, Any] = {key: wanted[key] for key in ("experiment", "compute", "tag") if wanted.get(key)}
        if status in STATUSES:
            filters["status"] = status
        archived = _VIEWS.get(wanted.get("view", ""), False)
        rows = History().list(**filters, archived=archived)
        self._ask(archived)
        fits = [row for row in rows if words in f"{row['name']} {row.get('display_name') or ''}".lower()]
        runs = [
            {**{key: row.get(key) for key in _SHOWN}, "started": self._begun(row), "silence": _silence(row)}
            for row in fits[:_MOST]
        ]
        trouble = "; ".join(f"{name}: {why}" for name, why in self._trouble.items())
        return {"runs": runs, "is_all": len(fits) <= _MOST, "trouble": trouble}

    def _begun(self, row: Mapping[str, Any]) -> float | None:
        """When its ranks were started."""
        name = row["name"]
        if name in self._started:
            return self._started[name]
        started = RunFolder(runs_folder() / name).recorded_state().started
        if row["ended"]:
            if len(self._started) >= _KEPT:
                self._started.clear()
            self._started[name] = started
        return started

    def _ask(self, archived: bool | None) -> None:
        if time.monotonic() >= self._due and self._asking.acquire(blocking=False):
            threading.Thread(target=self._refresh, args=(archived,), daemon=True, name="jobsdk-ask").start()

    def _refresh(self, archived: bool | None) -> None:
        try:
            rows = History().list(archived=archived)
            going = (RunFolder(runs_folder() / row["name"]) for row in rows if row["status"] not in TERMINAL)
            self._trouble = refresh(going)
        finally:
            self._due = time.monotonic() + (_AGAIN if self._trouble else _PAUSE)
            self._asking.release()


def _silence(row: Mapping[str, Any]) -> str | None:
    """When a run that goes on wrote last."""
    if row["ended"] or row["status"] in TERMINAL:
        return None
    return silence.of_run(RunFolder(runs_folder() / row["name"]), time.time())

"""The state of a run, derived from its events."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.event import Event

#: The states in which a run can end.
TERMINAL = ("Completed", "Failed", "Canceled", "TimedOut", "Preempted", "Lost")


#: The states before, each with the event that brings it, in the order in which a run goes through them.
_STEPS = (
    ("submitted", "Queued"),
    ("preparing", "Preparing"),
    ("bootstrap_up", "Starting"),
    ("started", "Running"),
    ("cancel_requested", "CancelRequested"),
)


_STEP = {event: index for index, (event, _) in enumerate(_STEPS)}


STATUSES = (*(status for _, status in _STEPS), *TERMINAL)


class EventReader:
    """Reads a run's events as they are written: each `read()` gives those that are new since the last."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._offset = 0

    def read(self) -> list[Event]:
        """The new events. A line that is not whole yet is left for the next time."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        return [event for event in map(_event, data.splitlines()) if event is not None]


def _event(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        # Only a full disk can cut an event short; the next one then stands on the same line.
        start = line.rfind(b'{"t":')
        return _event(line[start:]) if start > 0 else None
    return cast("Event", event) if isinstance(event, dict) and "event" in event else None


class State:
    """What the events say so far: feed it events in their order."""

    def __init__(self) -> None:
        self.status = STATUSES[0]
        self.exit_code: int | None = None
        self.message: str | None = None
        self.submitted: float | None = None
        self.started: float | None = None
        self.ended: float | None = None
        self.restarts = 0  # how often the job has been started again
        self.ended_ranks: set[int] = set()  # since the last start
        self.supervisor: Event | None = None
        self._step = 0
        self._moved = 0.0  # when it came to that step

    @property
    def is_terminal(self) -> bool:
        return self.ended is not None

    def feed(self, events: list[Event]) -> None:
        """Take in more events. The first `ended` is the last word; before it a run only goes forward."""
        for event in events:
            kind = event["event"]
            if kind == "rank_ended":
                self.ended_ranks.add(event["rank"])
            elif self.is_terminal:
                continue
            elif kind == "ended":
                self.status, self.exit_code = event["status"], event["exit_code"]
                self.message, self.ended = event.get("message"), event["t"]
            elif kind == "supervisor_started":
                self.supervisor = event
            elif kind == "queued":
                # Also once its nodes were taken away; but not where it has got nodes since the engine was asked.
                if event["t"] >= self._moved and self.status != "CancelRequested":
                    self._step, self.status, self.message = 0, STATUSES[0], event.get("message")
            elif kind == "restart":
                self._moved, self.message = event["t"], None
                self.restarts = event["restart"]
                self.ended_ranks = set()
                if self.status != "CancelRequested":
                    self._step = _STEP["bootstrap_up"]
                    self.status = _STEPS[self._step][1]
            elif kind in _STEP:
                # Not every writer waits for the others: the last bootstrap_up may follow started.
                self._moved, self.message = event["t"], None
                self._step = max(self._step, _STEP[kind])
                self.status = _STEPS[self._step][1]
                if kind == "submitted":
                    self.submitted = event["t"]
                elif kind == "started" and self.started is None:
                    self.started = event["t"]

"""Writing the run's folder so that a crash at any moment leaves it readable."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, List, Mapping, Optional

from ..system import private

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .event import Event, Facts
    from .report import RunReport


def append(run_dir: str, event: str, **facts: Unpack[Facts]) -> None:
    """Add one event to the run's stream: a single append of a whole line, so that writers never mix."""
    record = {"t": round(facts.pop("t", time.time()), 4), "event": event}
    record.update(facts)
    line = json.dumps(record, separators=(",", ":")) + "\n"
    file = private.open_file(run_dir + "/events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def note(run_dir: str, event: str, **facts: Unpack[Facts]) -> None:
    """As `append`; but a full disk, which must not keep a job from being ended in order, is only said on stderr."""
    try:
        append(run_dir, event, **facts)
    except OSError as error:
        os.write(2, ("event %s not written: %s\n" % (event, error)).encode())


def write_report(run_dir: str, content: RunReport) -> None:
    """report.json, as `note`: where there is no room for it, the event `ended` may find some."""
    try:
        write_json(run_dir + "/report.json", content)
    except OSError as error:
        os.write(2, ("report.json not written: %s\n" % error).encode())


def of(run_dir: str, kind: str) -> List[Event]:
    """The events of one kind that have been written so far."""
    found: List[Event] = []
    try:
        with open(run_dir + "/events.jsonl", "rb") as file:
            lines = [line for line in file if b'"event":"%s"' % kind.encode() in line]
    except OSError:
        return []  # none yet
    for line in lines:
        try:
            found.append(json.loads(line[max(0, line.rfind(b'{"t":')) :]))  # behind one that a full disk has cut short
        except ValueError:
            pass
    return [event for event in found if event.get("event") == kind]


def said_by(run_dir: str, node: int) -> Optional[Event]:
    """The last failure that a node's bootstrap itself has written down, as it does where there is no coordinator."""
    return next((one for one in reversed(of(run_dir, "failure")) if one["node"] == node and one.get("alone")), None)


def read_json(path: str) -> Any:
    """The content of a JSON file. Raises OSError, ValueError."""
    with open(path) as file:
        return json.load(file)


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Replace a file as a whole: readers see the old or the new one, never a part."""
    private.replace(path, (json.dumps(content, indent=1) + "\n").encode())

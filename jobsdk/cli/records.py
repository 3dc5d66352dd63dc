"""A run as a record, for people and for programs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from jobsdk.bootstrap.spec.text import duration_text
from jobsdk.findings import shorten
from jobsdk.runs import silence

if TYPE_CHECKING:
    from jobsdk.client.run import Run
    from jobsdk.runs.metrics import Point

COLUMNS = ("NAME", "DISPLAY NAME", "STATUS", "CODE", "EXPERIMENT", "COMPUTE", "NODES", "RANKS", "OWNER", "CREATED",
           "TOOK", "LAST OUTPUT", "MESSAGE")  # fmt: skip
#: What a narrow terminal does without, the first of them first.
DISPENSABLE = ("OWNER", "COMPUTE", "NODES", "RANKS", "EXPERIMENT", "CREATED", "MESSAGE", "DISPLAY NAME", "LAST OUTPUT",
               "TOOK", "CODE")  # fmt: skip
#: Columns that a table has only if a run has something there.
OPTIONAL = ("DISPLAY NAME", "OWNER", "LAST OUTPUT", "MESSAGE")
_MESSAGE = 80  # characters


def run_record(run: Run) -> dict[str, Any]:
    """Everything that is known of a run."""
    state = run.state()
    return {
        "name": run.name,
        "display_name": run.display_name,
        "status": state.status,
        "exit_code": state.exit_code,
        "message": state.message,
        "experiment_name": run.experiment_name,
        "compute": run.compute,
        "distribution": run.distribution,
        "nodes": run.nodes,
        "processes": run.processes,
        "command": run.command,
        "created": run.creation_context.created_at.isoformat(),
        "created_by": run.creation_context.created_by,
        "seconds": _seconds(run),
        "tags": run.tags,
        "properties": run.properties,
        "description": run.description,
        "archived": run.archived,
        "studio_url": run.studio_url,
        "outputs": {name: output.path for name, output in run.outputs.items()},
        "folder": str(run.folder.path),
    }


def rank_records(run: Run) -> list[dict[str, object]]:
    """Each rank: where it is, how it is or ended, and when it wrote last while it runs (seconds since 1970)."""
    from jobsdk.runs.ranks import Ranks
    from jobsdk.runs.silence import last_outputs

    ranks = Ranks(run.folder.plan())
    ranks.feed(run.folder.events())
    states = ranks.states()
    outputs = last_outputs(run.folder, states, run.folder.recorded_state().restarts)
    return [{**state._asdict(), "last_output": outputs.get(state.rank)} for state in states]


def metric_records(metrics: Mapping[str, list[Point]]) -> dict[str, list[dict[str, Any]]]:
    """All points of each metric; a value that JSON has no number for is a text."""
    return {
        name: [point._asdict() | ({} if isfinite(point.value) else {"value": str(point.value)}) for point in points]
        for name, points in metrics.items()
    }


def run_row(run: Run) -> tuple[str, ...]:
    """A run as a line of a table; see COLUMNS."""
    state = run.state()
    code = "" if state.exit_code is None else str(state.exit_code)
    created = run.creation_context.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    seconds = _seconds(run)
    shown = run.display_name if run.display_name != run.name else ""
    where = (run.experiment_name or "", run.compute, str(run.nodes or ""), str(run.processes or ""))
    owner = run.creation_context.created_by or ""
    took = "" if seconds is None else duration_text(seconds)
    wrote = "" if state.is_terminal else silence.of_run(run.folder, time.time()) or ""
    message = shorten(state.message or "", _MESSAGE) if state.status != "Completed" else ""
    return run.name, shown, state.status, code, *where, owner, created, took, wrote, message


def run_table(runs: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[str, ...]], tuple[str, ...]]:
    """Columns, rows and dispensable columns of a table of runs. One owner of all of them needs no column."""
    rows = [run_row(run) for run in runs]
    owners = {row[COLUMNS.index("OWNER")] for row in rows}
    empty = {name for name in OPTIONAL if not any(row[COLUMNS.index(name)] for row in rows)}
    if len(owners) < 2:
        empty.add("OWNER")
    kept = [at for at, name in enumerate(COLUMNS) if name not in empty]
    columns = tuple(COLUMNS[at] for at in kept)
    return columns, [tuple(row[at] for at in kept) for row in rows], tuple(n for n in DISPENSABLE if n in columns)


def _seconds(run: Run) -> float | None:
    """From the start of the ranks to the end, or to now."""
    state = run.state()
    if state.started is None:
        return None
    return round((state.ended or time.time()) - state.started, 2)

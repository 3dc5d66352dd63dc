"""Deleting runs, on request and by the user's retention: what `JobOperations.delete` and `prune` do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from jobsdk import compute as computes
from jobsdk.bootstrap.spec.text import bytes_text
from jobsdk.client.run import Run
from jobsdk.errors import JobsdkError, RunNotFound
from jobsdk.home import home
from jobsdk.runs import deletion
from jobsdk.runs.deletion import Deleted, Retention
from jobsdk.runs.folder import RunFolder

_DAY_S = 86400.0
_NAMED = 3  # runs that need another one


def whole(name: str) -> Run:
    """The run of a name that is not cut: what is deleted is named in full."""
    found = RunFolder.find(name)
    if found.name != name:
        raise RunNotFound(f"there is no run named {name!r}: did you mean {found.name!r}?")
    return Run(found)


def delete(runs: list[Run], force: bool) -> tuple[Deleted, ...]:
    """See `JobOperations.delete`."""
    if not force:
        needed = deletion.users()
        problems = [why for run in runs if (why := _kept(run, needed, runs))]
        if problems:
            raise JobsdkError("\n".join(problems))
    for run in runs:
        if not run.done():
            run.cancel().wait()
    return _remove([run.folder for run in runs])


def _kept(run: Run, needed: Mapping[str, Iterable[str]], going: Iterable[Run]) -> str:
    """Why a run is not deleted; "" if it may be."""
    if not run.done():
        return f"run {run.name} is {run.status}. Fix: cancel it first, or delete it with --force (force=True)"
    others = sorted(set(needed.get(run.name, ())) - {one.name for one in going})
    if not others:
        return ""
    more = " and others" if len(others) > _NAMED else ""
    what = f"run {run.name} has outputs that are inputs of {', '.join(others[:_NAMED])}{more}"
    return f"{what}. Fix: delete it with --force (force=True) if they are no longer needed"


def _remove(folders: Iterable[RunFolder]) -> tuple[Deleted, ...]:
    gone = []
    for folder in folders:
        gone.append(deletion.describe(folder))
        deletion.remove(folder)
    return tuple(gone)


def prune(given: Retention, dry_run: bool) -> tuple[Deleted, ...]:
    """See `JobOperations.prune`."""
    retention = computes.retention() if given == Retention() else given
    if retention is None:
        raise JobsdkError(
            "nothing says which runs may go. Fix: give older_than (--older-than 30d), keep (--keep 20) or failed "
            f"(--failed), or write 'retention: {{older_than: 30d}}' in {computes.user_file()}"
        )
    found = deletion.expired(retention)
    return tuple(map(deletion.describe, found)) if dry_run else _remove(found)


def retain(warn: Callable[[str], None]) -> None:
    """Once a day, delete what the user's retention lets go, and say so."""
    try:
        if computes.retention() is None or not _is_new_day(home() / "pruned"):
            return
        gone = prune(Retention(), dry_run=False)
    except (JobsdkError, OSError) as error:
        warn(f"retention: {error}")
        return
    if gone:
        names = ", ".join(one.name for one in gone[:_NAMED]) + (", ..." if len(gone) > _NAMED else "")
        warn(f"retention: deleted {len(gone)} old runs ({names}), {bytes_text(sum(one.size for one in gone))}")


def _is_new_day(stamp: Path) -> bool:
    """Whether a day has passed since this was true."""
    if stamp.exists() and time.time() - stamp.stat().st_mtime < _DAY_S:
        return False
    stamp.touch()
    return True

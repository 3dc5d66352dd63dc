"""Deleting runs: which may go by a retention, which are kept for others, and how a folder goes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from jobsdk.bootstrap.spec import package_lists
from jobsdk.bootstrap.spec import paths as layout
from jobsdk.errors import JobsdkError
from jobsdk.home import home, locked, make_folder, runs_folder
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.history import History
from jobsdk.runs.state import TERMINAL


class Retention(NamedTuple):
    """Which ended runs may go: all that every field lets go."""

    older_than: float | None = None  # seconds since the run's end
    keep: int | None = None  # how many of the newest stay
    failed: bool = False  # only those that have not completed


class Deleted(NamedTuple):
    """A run that is gone, or would be."""

    name: str
    status: str
    size: int  # bytes


def expired(retention: Retention) -> list[RunFolder]:
    """The ended runs that a retention lets go and that no other run needs, the newest first."""
    rows = [row for row in History().list(archived=None) if row["status"] in TERMINAL]
    if retention.failed:
        rows = [row for row in rows if row["status"] != "Completed"]
    rows = rows[retention.keep or 0 :]
    if retention.older_than is not None:
        latest = time.time() - retention.older_than
        rows = [row for row in rows if (row["ended"] or row.get("created") or 0.0) < latest]
    names = [row["name"] for row in rows]
    known = users()
    while needed := [name for name in names if known.get(name, set()) - set(names)]:
        names = [name for name in names if name not in needed]
    return [RunFolder(runs_folder() / name) for name in names]


def users() -> dict[str, set[str]]:
    """By the name of a run: the other runs that have what lies in its folder as inputs."""
    found: dict[str, set[str]] = {}
    for run in RunFolder.all():
        for given in run.plan().get("inputs", {}).values():
            owner = _owner(given.get("uri"))
            if owner is not None and owner != run.name:
                found.setdefault(owner, set()).add(run.name)
    return found


def _owner(uri: str | None) -> str | None:
    """The name of the run in whose folder a path lies."""
    if uri is None or layout.is_remote(uri):
        return None
    runs = str(runs_folder())
    for root, path in ((runs, uri), (os.path.realpath(runs), os.path.realpath(uri))):
        if path.startswith(root + "/"):
            return path[len(root) + 1 :].partition("/")[0]
    return None


def describe(run: RunFolder) -> Deleted:
    """A run as it is before it goes."""
    return Deleted(run.name, run.recorded_state().status, sum(_sizes(str(run.path))))


def _sizes(folder: str) -> Iterable[int]:
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                yield os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                pass  # gone meanwhile


def remove(run: RunFolder) -> None:
    """Delete a run's folder; of what its inputs link to nothing is touched. Raises JobsdkError.

    The run is gone at once, by one rename: whoever is interrupted leaves a rest that the next deletion takes away.
    """
    import shutil

    waste = home() / "deleted"
    try:
        with locked(home() / "deleted.lock"):
            shutil.rmtree(waste, ignore_errors=True)  # what one that was killed has left
            make_folder(waste)
            if run.path.is_symlink():  # to a folder elsewhere
                there = run.path.resolve()
                run.path.unlink()
                shutil.rmtree(there)
            else:
                run.path.rename(waste / run.name)
            shutil.rmtree(waste)
            package_lists.sweep(str(home()))
    except OSError as error:
        raise JobsdkError(f"run {run.name} cannot be deleted: {error.filename or run.path}: {error.strerror}") from None

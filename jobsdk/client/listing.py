"""The runs of this machine's history, with those that others have submitted to an engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jobsdk.client.run import Run
from jobsdk.compute.refreshing import refresh
from jobsdk.errors import ComputeError
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.history import History
from jobsdk.runs.state import TERMINAL

if TYPE_CHECKING:
    from jobsdk.compute.azureml.workspace import Workspace
    from jobsdk.compute.base import Compute, Wanted

_MOST = 100  # runs that are brought of an engine, where nobody says how many


def archived_of(list_view_type: Any) -> bool | None:
    """What Azure's `list_view_type` means for archived runs; None: all. Raises ValueError."""
    views = {"activeonly": False, "archivedonly": True, "all": None}
    view = getattr(list_view_type, "value", list_view_type).replace("_", "").lower()
    if view not in views:
        raise ValueError(f"there is no list_view_type {list_view_type!r}; there are ActiveOnly, ArchivedOnly, All")
    return views[view]


def list_runs(
    workspace: Workspace | None,
    resolve: Callable[[str | None], Compute],
    compute: str | None,
    wanted: Wanted,
    most: int | None,
) -> list[Run]:
    """See `JobOperations.list`. `resolve` gives the compute of a name."""
    if compute is not None or workspace is not None:
        _bring(workspace, resolve, compute, wanted, most or _MOST)
    known = History().list(compute=compute, experiment=wanted.experiment, archived=wanted.archived)
    for name, why in refresh(RunFolder.find(row["name"]) for row in known if row["status"] not in TERMINAL).items():
        _log(f"compute {name}: {why}")
    rows = History().list(**wanted._asdict(), compute=compute, max_results=most)
    return [Run(RunFolder.find(row["name"])) for row in rows]


def _bring(
    workspace: Workspace | None,
    resolve: Callable[[str | None], Compute],
    compute: str | None,
    wanted: Wanted,
    most: int,
) -> None:
    """Make folders of the runs that are asked for and not known here."""
    try:
        target = resolve(compute)
    except ComputeError:  # one that was configured once, or whose type is not installed
        return
    if compute is None and workspace is not None:
        from jobsdk.compute.azureml.compute import of_workspace

        target = of_workspace(workspace, None)
    try:
        target.bring_all(most, wanted, is_of_target=compute is not None)
    except ComputeError as error:
        _log(f"compute {target.name}: {error}")


def _log(text: str) -> None:
    logging.getLogger("jobsdk").warning("%s", text)

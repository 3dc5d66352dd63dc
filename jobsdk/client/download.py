"""Copying what a run has left to a folder of the user's choice."""

from __future__ import annotations

import os
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from jobsdk.bootstrap.spec import stores
from jobsdk.bootstrap.transport.extraction import LeftOut, Tree
from jobsdk.errors import JobsdkError
from jobsdk.runs.outputs import entries

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import DataPlan
    from jobsdk.compute.base import Compute
    from jobsdk.runs.folder import RunFolder


_NAMED = 3  # files that a warning names


def download(
    run: RunFolder,
    compute: Compute,
    target: Path,
    output_name: str | None,
    everything: bool,
    warn: Callable[[str], None],
) -> Path:
    """Copy logs and ./outputs, or one named output, or all; see `JobOperations.download`."""
    outputs = compute.outputs(run)
    if output_name is not None and output_name not in outputs and output_name != "default":
        from jobsdk.findings import meant

        hint = meant(output_name, outputs, f"it has {', '.join(outputs) or 'none'}")
        raise JobsdkError(f"run {run.name} has no output {output_name!r}: {hint}")
    places = {"default": Path("artifacts/outputs"), **{name: Path("named-outputs") / name for name in outputs}}
    wanted = [name for name in places if everything or name == (output_name or "default")]
    given = run.plan().get("outputs", {})
    stored = [name for name in wanted if stores.store_of(given.get(name, {}).get("uri")) is not None]
    kept = [name for name in wanted if name not in stored]
    here = compute.fetch(run, kept) if kept else {}
    try:
        left = []
        if output_name in (None, "default"):
            left += _copy(run.logs, target / "artifacts/logs", "result-*.log")  # these are for `Run.result`
        for name in stored:
            _fetch(given[name], target / places[name])
        for name in kept:
            # A path that the user gave may be a link; what the job made in its own folder may not.
            source = Path(here[name])
            is_given = given.get(name, {}).get("uri") is not None
            left += _copy(source.resolve() if is_given else source, target / places[name])
            left += run.left_out(name)
    except OSError as error:
        raise JobsdkError(f"cannot copy the outputs of run {run.name} to {target}: {error}") from error
    if left:
        more = f", and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        warn(f"left out of the download: {', '.join(text[:120] for text in left[:_NAMED])}{more}")
    return target


def _fetch(output: DataPlan, target: Path) -> None:
    """Copy what a job has uploaded to an object store to the folder `target`. Raises JobsdkError."""
    from jobsdk.bootstrap.transport import store

    try:
        store.fetch(str(output["uri"]), str(target), False)
    except store.StoreError as error:
        raise JobsdkError(str(error)) from error


def _copy(source: Path, target: Path, but: str = "") -> list[str]:
    """Copy a folder, or a file into the folder `target`; what was left out."""
    left = []
    with Tree(str(target.resolve())) as tree:
        tree.folder(())
        for entry in entries(source):
            parts = (source.name,) if entry.path == "." else tuple(entry.path.split("/"))
            if entry.left_out is not None:
                left.append(str(LeftOut(str(Path(target.name, *parts)), entry.left_out.reason)))
            elif entry.link is not None:
                tree.link(parts, entry.link)
            elif entry.file is None:
                tree.folder(() if entry.path == "." else parts)
            else:
                with entry.file as file:
                    if not fnmatch(parts[-1], but):
                        facts = os.fstat(file.fileno())
                        tree.write(parts, file, facts.st_mode, facts.st_mtime)
    return left

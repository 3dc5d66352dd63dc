"""Copying what a run has left to a folder of the user's choice."""

from __future__ import annotations

import os
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from jobsdk.bootstrap.transport.extraction import LeftOut, Tree
from jobsdk.errors import JobsdkError
from jobsdk.runs.outputs import entries

if TYPE_CHECKING:
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
    here = compute.fetch(run, wanted)
    try:
        left = []
        if output_name in (None, "default"):
            left += _copy(run.logs, target / "artifacts/logs", "result-*.log")  # these are for `Run.result`
        for name in wanted:
            # A path that the user gave may be a link; what the job made in its own folder may not.
            source = Path(here[name])
            is_given = run.plan().get("outputs", {}).get(name, {}).get("uri") is not None
            left += _copy(source.resolve() if is_given else source, target / places[name])
            left += run.left_out(name)
    except OSError as error:
        raise JobsdkError(f"cannot copy the outputs of run {run.name} to {target}: {error}") from error
    if left:
        more = f", and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        warn(f"left out of the download: {', '.join(text[:120] for text in left[:_NAMED])}{more}")
    return target


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

"""Copying what a run has left to a folder of the user's choice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from jobsdk.errors import JobsdkError

if TYPE_CHECKING:
    from jobsdk.compute.base import Compute
    from jobsdk.runs import RunFolder


def download(run: RunFolder, compute: Compute, target: Path, output_name: str | None, everything: bool) -> Path:
    """Copy logs and ./outputs, or one named output, or all; see `JobOperations.download`."""
    outputs = compute.outputs(run)
    if output_name is not None and output_name not in outputs and output_name != "default":
        from jobsdk.job.findings import nearest

        near = nearest(output_name, outputs)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(outputs) or 'none'}"
        raise JobsdkError(f"run {run.name} has no output {output_name!r}: {hint}")
    places = {"default": Path("artifacts/outputs"), **{name: Path("named-outputs") / name for name in outputs}}
    wanted = [name for name in places if everything or name == (output_name or "default")]
    here = compute.fetch(run, wanted)
    try:
        if output_name in (None, "default"):
            _copy(run.logs, target / "artifacts/logs", "result-*.log")  # these are for `Run.result`
        for name in wanted:
            _copy(Path(here[name]), target / places[name])
    except (OSError, shutil.Error) as error:
        raise JobsdkError(f"cannot copy the outputs of run {run.name} to {target}: {error}") from error
    return target


def _copy(source: Path, target: Path, *but: str) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*but))
    elif source.exists():
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    else:
        target.mkdir(parents=True, exist_ok=True)

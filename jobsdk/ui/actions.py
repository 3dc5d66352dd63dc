"""What the page shows of runs besides their live state, and what it can do with them."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping
from typing import Any

from starlette.background import BackgroundTask
from starlette.responses import FileResponse, HTMLResponse, Response

from jobsdk.client import JobOperations
from jobsdk.errors import JobsdkError
from jobsdk.run import Run
from jobsdk.runs import STATUSES, RunFolder

_MOST = 500  # runs of a list


def listed(wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    """The runs that fit `status`, `experiment`, `compute`, `tag` and `words` (in the name), the newest first."""
    status = wanted.get("status")
    filters = {key: wanted[key] for key in ("experiment", "compute", "tag") if wanted.get(key)}
    given = {"status": status} if status in STATUSES else {}
    found = JobOperations().list(**filters, **given, max_results=_MOST)
    words = wanted.get("words", "").lower()
    return [facts(run.folder) | _state(run) for run in found if words in f"{run.name} {run.display_name}".lower()]


def _state(run: Run) -> dict[str, Any]:
    state = run.folder.recorded_state()
    names = ("status", "exit_code", "message", "submitted", "started", "ended")
    return {name: getattr(state, name) for name in names}


def facts(folder: RunFolder) -> dict[str, Any]:
    """What does not change while it runs."""
    run = Run(folder)
    names = ("name", "display_name", "description", "experiment_name", "compute", "command", "distribution", "nodes")
    found: dict[str, Any] = {name: getattr(run, name) for name in names}
    return found | {"processes": run.processes, "tags": run.tags, "folder": str(folder.path)}


def native(folder: RunFolder) -> dict[str, Any]:
    """The job file, and what the compute was given."""
    run, job = Run(folder), folder.path / "job.yml"
    try:
        spec = run.target.native(folder.read_json("native.json"))
    except Exception as error:  # of a type that is not installed any more
        spec = f"it cannot be shown: {error}"
    return {"job": job.read_text("utf-8", "replace") if job.exists() else "", "native": spec}


def cancel(folder: RunFolder) -> dict[str, Any]:
    """Ask that the run be ended."""
    return {"status": Run(folder).cancel().status}


def rerun(folder: RunFolder) -> dict[str, Any]:
    """Submit the same job again, with the code that is there now, under a new name."""
    from jobsdk.job.yaml_file import load_job

    file = folder.path / "job.yml"
    if not file.exists():
        raise JobsdkError(f"run {folder.name} has no job.yml: it was not submitted from here")
    job = load_job(file)
    job.name = None
    return {"name": JobOperations().create_or_update(job).name}


def stacks(folder: RunFolder) -> dict[str, Any]:
    """Where the ranks are now."""
    return Run(folder).stacks()


def report(folder: RunFolder) -> Response:
    """The run as one HTML file."""
    from jobsdk.views.report import document

    name = f'attachment; filename="{folder.name}.html"'
    return HTMLResponse(document(Run(folder)), headers={"content-disposition": name})


def archive(folder: RunFolder) -> Response:
    """The logs and outputs that are here, as a zip file."""
    handle, path = tempfile.mkstemp(suffix=".zip")
    with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for part in ("logs", "outputs"):
            for top, _, names in os.walk(folder.path / part):  # links to folders elsewhere are not followed
                for name in sorted(names):
                    whole = os.path.join(top, name)
                    if os.path.isfile(whole) and not os.path.islink(whole):
                        archive.write(whole, os.path.relpath(whole, folder.path))
    done = BackgroundTask(os.unlink, path)
    return FileResponse(path, filename=f"{folder.name}.zip", media_type="application/zip", background=done)

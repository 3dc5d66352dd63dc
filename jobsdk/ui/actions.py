"""What the page shows of runs besides their live state, and what it can do with them."""

from __future__ import annotations

from typing import Any

from starlette.responses import HTMLResponse, Response, StreamingResponse

from jobsdk.client.operations import JobOperations
from jobsdk.client.run import Run
from jobsdk.runs import provenance
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.ranks import layout_text
from jobsdk.ui.zipped import zipped


def facts(folder: RunFolder) -> dict[str, Any]:
    """What does not change while it runs."""
    run = Run(folder)
    names = ("name", "display_name", "description", "experiment_name", "compute", "distribution", "nodes")
    found: dict[str, Any] = {name: getattr(run, name) for name in names}
    shape = {"processes": run.processes, "layout": layout_text(run.nodes, run.processes)}
    origin = provenance.of_run(folder)
    ran = {"command": origin.command, **origin.summary()}
    return found | shape | ran | {"tags": run.tags, "folder": str(folder.path)}


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
    """Submit the same job again, under a new name."""
    return {"name": JobOperations().rerun(Run(folder)).name}


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
    headers = {"content-disposition": f'attachment; filename="{folder.name}.zip"'}
    return StreamingResponse(zipped(folder.path, ("logs", "outputs")), media_type="application/zip", headers=headers)

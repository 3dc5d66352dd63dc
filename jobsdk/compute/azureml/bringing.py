"""Runs of a workspace that were not submitted from here: their folders, made of what the service has of the job."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.agent import azureml_node
from jobsdk.bootstrap.spec import secrets
from jobsdk.compute.azureml import following
from jobsdk.compute.azureml.connection import Connection
from jobsdk.errors import JobsdkError, RunExists, RunNotFound, ValidationError
from jobsdk.home import runs_folder
from jobsdk.runs.folder import RunFolder

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.compute.base import Wanted
    from jobsdk.job.command import CommandJob

_DISTRIBUTIONS = {"PyTorch": "pytorch", "Mpi": "mpi", "TensorFlow": "tensorflow", "Ray": "ray"}
_COUNTS = {
    "processCountPerInstance": "process_count_per_instance",
    "workerCount": "worker_count",
    "parameterServerCount": "parameter_server_count",
}
#: The states of Azure ML's runs, as jobsdk calls them.
STATUSES = {
    "NotStarted": "Queued",
    "Paused": "Queued",
    "Provisioning": "Preparing",
    "Finalizing": "Running",
    "NotResponding": "Lost",
}


def status_of(job: Mapping[str, Any]) -> str:
    status = str(job["properties"].get("status"))
    return STATUSES.get(status, status)


def found(connection: Connection, wanted: Wanted, *, target: str | None) -> Iterator[dict[str, Any]]:
    """The command jobs of the workspace that fit all that is given, the newest first, as the service has them."""
    key, equals, value = (wanted.tag or "").partition("=")
    view = {False: "ActiveOnly", True: "ArchivedOnly", None: "All"}[wanted.archived]
    query = {"listViewType": view, **({"tag": key} if key else {})}
    for job in connection.pages("/jobs", **query):
        properties = job.get("properties") or {}
        tags = properties.get("tags") or {}
        compute = str(properties.get("computeId") or "").rpartition("/")[2]
        if (
            str(properties.get("jobType")) == "Command"
            and (wanted.status is None or status_of(job).lower() == wanted.status.lower())
            and (not key or (key in tags and (not equals or str(tags[key]) == value)))
            and (wanted.experiment is None or properties.get("experimentName") == wanted.experiment)
            and (target is None or compute == target)
        ):
            yield job


def bring(
    connection: Connection, name: str, place: Callable[[Mapping[str, Any]], tuple[str, dict[str, Any]]]
) -> RunFolder:
    """The folder of the workspace's job `name`; `place` gives a job's compute: its name, and its settings.

    Raises RunNotFound, JobsdkError for a job of another kind.
    """
    from jobsdk.compute.azureml.failures import AzureError

    try:
        job = connection.job(name)
    except AzureError as error:
        if error.kind != "gone":
            raise
        workspace = connection.workspace.workspace_name
        raise RunNotFound(
            f"there is no run named {name!r} here, and no such job in the workspace {workspace}"
        ) from None
    return bring_job(job, *place(job))


def bring_job(job: Mapping[str, Any], compute: str, settings: Mapping[str, Any]) -> RunFolder:
    """The folder of a job that the service has given; made, unless it is there."""
    if re.fullmatch(r"[\w-][\w.-]*", job["name"]) and (runs_folder() / job["name"]).is_dir():
        return RunFolder(runs_folder() / job["name"])
    properties = job["properties"]
    kind = properties.get("jobType")
    if kind != "Command":
        raise JobsdkError(f"{job['name']} is a job of the kind {kind}: only command jobs can be followed")
    variables = properties.get("environmentVariables") or {}
    is_bootstrap = azureml_node.PLAN in variables
    if is_bootstrap:
        plan = _without_secrets(azureml_node.unpacked(variables[azureml_node.PLAN]))
    else:
        from jobsdk.planning.plan import make_plan

        plan = make_plan(_job_of(properties), name=job["name"])
    try:
        run = RunFolder.create(job["name"])
    except RunExists:
        return RunFolder(runs_folder() / job["name"])
    try:
        run.write_json("plan.json", plan)
        launcher = "bootstrap" if is_bootstrap else "native"
        run.write_json("native.json", {"compute": compute, "type": "azureml", "launcher": launcher})
        run.write_private("compute.json", dict(settings))
        run.write_json("run.json", _facts(job, plan, compute))
        run.write_json(following.PLACE, {**following.facts_of(job), "launcher": launcher})
        run.append_event("submitted", by="Azure ML", t=_created(job))
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    return run


def _without_secrets(plan: Plan) -> Plan:
    """A plan as the nodes have got it, to be kept here."""
    names = plan.get("secrets") or []
    public: Plan = secrets.Redactor(plan.pop("secret_values", [])).data(plan)
    variables = {name: value for name, value in public["environment"].items() if name not in names}
    return {**public, "environment": variables, "secrets": names, "sealed": []}


def _created(job: Mapping[str, Any]) -> float:
    import time

    moment = (job.get("systemData") or {}).get("createdAt")
    return following.seconds(moment) or time.time()


def _facts(job: Mapping[str, Any], plan: Plan, compute: str) -> dict[str, Any]:
    properties = job["properties"]
    return {
        "name": job["name"],
        "created": _created(job),
        "display_name": properties.get("displayName") or job["name"],
        "experiment": properties.get("experimentName"),
        "tags": dict(properties.get("tags") or {}),
        "properties": dict(properties.get("properties") or {}),
        "description": properties.get("description"),
        "compute": compute,
        "distribution": plan["distribution"]["type"],
        "nodes": plan["nodes"],
        "processes": distributions.of(plan).world_size(),
        "archived": bool(properties.get("isArchived")),
        "command": properties.get("command"),
        "host": os.uname().nodename,
    }


def _job_of(properties: Mapping[str, Any]) -> CommandJob:
    """What of a job matters for following it, from Azure ML's body."""
    from jobsdk.findings import Report
    from jobsdk.job.command import CommandJob

    given = properties.get("distribution") or {}
    kind = _DISTRIBUTIONS.get(str(given.get("distributionType")))
    counts = {ours: given[theirs] for theirs, ours in _COUNTS.items() if given.get(theirs)}
    data: dict[str, Any] = {
        "command": properties.get("command"),
        "distribution": {"type": kind, **(counts if kind != "ray" else {})} if kind else None,
        "resources": {"instance_count": (properties.get("resources") or {}).get("instanceCount") or 1},
        "inputs": {name: _input(one) for name, one in (properties.get("inputs") or {}).items() if _has_value(one)},
        "outputs": {
            name: {"type": one.get("jobOutputType") or "uri_folder", **({"path": one["uri"]} if one.get("uri") else {})}
            for name, one in (properties.get("outputs") or {}).items()
            if name != "default"
        },
    }
    report = Report()
    job = CommandJob.structure(data, (), report)
    ValidationError.raise_for(report)
    return job


def _has_value(given: Mapping[str, Any]) -> bool:
    return given.get("value") is not None or bool(given.get("uri"))


def _input(given: Mapping[str, Any]) -> Any:
    if given.get("jobInputType") == "literal":
        return given.get("value")
    return {"type": given.get("jobInputType") or "uri_folder", "path": given.get("uri")}

"""What jobsdk knows of a job and Azure ML does not, and how it travels there and back.

Fields of jobsdk's own go as JSON in one property of the job, `jobsdk`. Properties are free text that the service keeps
as it is, cannot be changed afterwards, and do not stand among a user's tags. A job that has none of these fields has
no such property, so what is sent for it is what azure-ai-ml sends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jobsdk.errors import JobsdkError

if TYPE_CHECKING:
    from jobsdk.job.command import CommandJob

#: The property that holds what Azure ML does not know of a job.
PROPERTY = "jobsdk"

_JOB = "secrets preload max_restarts max_preemptions max_no_progress restart_delay retry_on never_retry_on".split()
_INNER = {
    "resources": ("gpus_per_process",),
    "limits": ("hang_timeout", "grace_period", "rendezvous_timeout"),
    "environment": ("requirements",),
}
#: What Azure ML knows of each type of distribution.
DISTRIBUTION = {
    "pytorch": ("type", "process_count_per_instance"),
    "tensorflow": ("type", "parameter_server_count", "worker_count"),
    "mpi": ("type", "process_count_per_instance"),
    "ray": (
        *("type", "port", "address", "include_dashboard", "dashboard_port"),
        *("head_node_additional_args", "worker_node_additional_args"),
    ),
}


def fields(job: CommandJob) -> dict[str, Any]:
    """The fields of a job that Azure ML does not know, as plain data; local paths are absolute. Raises JobsdkError."""
    data = job.to_dict(lambda path: str(job.resolve(path)))
    found = {name: data[name] for name in _JOB if name in data}
    for home, names in _INNER.items():
        given = data.get(home)
        inner = {name: given[name] for name in names if name in given} if isinstance(given, dict) else {}
        found.update({home: inner} if inner else {})
    distribution = data.get("distribution")
    if distribution is not None:
        known = DISTRIBUTION.get(distribution["type"])
        if known is None:
            raise JobsdkError(
                f"distribution: Azure ML has none of the type {distribution['type']}. Fix: submit the job with jobsdk "
                "(on an azureml compute its bootstrap starts the processes), or write type: pytorch"
            )
        extra = {name: value for name, value in distribution.items() if name not in known}
        found.update({"distribution": extra} if extra else {})
    return found


def properties(job: CommandJob) -> dict[str, str | None]:
    """The properties of a job as Azure ML gets them: its own, and PROPERTY where one is needed. Raises JobsdkError."""
    found = fields(job)
    given = dict(job.properties)
    return {**given, PROPERTY: json.dumps(found, sort_keys=True)} if found else given


def restore(data: dict[str, Any]) -> dict[str, Any]:
    """A job's plain data as Azure ML gave it, with what PROPERTY holds put back. Raises JobsdkError."""
    given = data.get("properties") or {}
    if PROPERTY not in given:
        return data
    try:
        found = json.loads(given[PROPERTY])
        merged = _merged(data, found)
    except (TypeError, ValueError):
        raise JobsdkError(f"properties.{PROPERTY}: is not what jobsdk writes there. Fix: remove it") from None
    merged["properties"] = {name: value for name, value in given.items() if name != PROPERTY}
    return merged


def _merged(data: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(data)
    for name, value in found.items():
        known = result.get(name)
        result[name] = _merged(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return result

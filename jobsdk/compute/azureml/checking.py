"""Whether jobs can be submitted to a workspace and run there: what `jobsdk compute check` says of it."""

from __future__ import annotations

from typing import Any

from jobsdk.compute.azureml.connection import Connection, connect
from jobsdk.compute.azureml.failures import told
from jobsdk.compute.azureml.workspace import Workspace
from jobsdk.compute.base import Check
from jobsdk.errors import ComputeError


def check(workspace: Workspace, target: str, datastore: str) -> list[Check]:
    """One line for the login, the workspace, the compute `target` and the datastore; ends where going on is useless."""
    found: list[Check] = []
    try:
        connection = Connection(workspace, connect(workspace).credential)  # a new one: nothing is known from before
        with told("login"):
            connection.credential.get_token("https://management.azure.com/.default")
        found.append(Check("login", True, type(connection.credential).__name__))
    except ComputeError as error:
        return [Check.failed("login", error)]
    try:
        facts = connection.get("")
        place = facts.get("location") or "an unknown region"
        found.append(Check(f"workspace {workspace.workspace_name}", True, f"in {place}"))
    except ComputeError as error:
        return [*found, Check.failed(f"workspace {workspace.workspace_name}", error)]
    return [*found, _of_compute(connection, target), _of_datastore(connection, datastore)]


def _of_compute(connection: Connection, target: str) -> Check:
    what = f"compute {target}"
    if target == "serverless":
        return Check(what, True, "machines are taken as a job asks for them")
    if target.startswith("virtualClusters/"):
        return Check(what, True, "a virtual cluster: not asked")
    try:
        facts = connection.get(f"/computes/{target}")["properties"]
    except ComputeError as error:
        return Check.failed(what, error)
    inner: dict[str, Any] = facts.get("properties") or {}
    state = str(facts.get("provisioningState") or "Succeeded")
    scale = inner.get("scaleSettings") or {}
    said = [str(facts.get("computeType") or "compute"), str(inner.get("vmSize") or "")]
    if scale.get("maxNodeCount") is not None:
        said.append(f"{inner.get('currentNodeCount', 0)} of {scale['maxNodeCount']} nodes")
    errors = [str((one.get("error") or one).get("message")) for one in inner.get("errors") or () if one]
    is_well = state == "Succeeded" and not errors and scale.get("maxNodeCount") != 0
    found = ", ".join(filter(None, [*said, "" if state == "Succeeded" else state, *errors]))
    return Check(what, is_well, found, "" if is_well else "look at it in the studio; its quota may be used up")


def _of_datastore(connection: Connection, datastore: str) -> Check:
    what = f"datastore {datastore}"
    try:
        connection.list_blobs(datastore, "jobsdk-check/")
    except ComputeError as error:
        return Check.failed(what, error)
    return Check(what, True, "can be read")

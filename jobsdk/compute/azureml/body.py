"""The body that Azure ML's REST interface takes for a job: `PUT .../jobs/NAME`, version 2025-01-01-preview.

For a job that azure-ai-ml accepts, it is what azure-ai-ml 1.35.2 sends; docs/azureml-differences.md lists where it is
not. Nothing is sent or asked, and azure-ai-ml is not imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobsdk.compute.azureml import body_data, own
from jobsdk.job import durations, expressions, secret_rules
from jobsdk.job.distribution import Distribution, RayDistribution, TensorFlowDistribution
from jobsdk.job.identity import AmlTokenConfiguration, ManagedIdentityConfiguration
from jobsdk.job.paths import is_local, working_directory
from jobsdk.job.services import JobService

if TYPE_CHECKING:
    from jobsdk.compute.azureml.workspace import Workspace
    from jobsdk.job.command import CommandJob
    from jobsdk.job.resources import CommandJobLimits, JobResourceConfiguration, QueueSettings

#: What stands for the job's code: its id is made when it is uploaded.
CODE = "azureml:code-of-this-job"

_DISTRIBUTIONS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "mpi": "Mpi", "ray": "Ray"}
_SERVICES = {"ssh": "SSH", "jupyter_lab": "JupyterLab", "tensor_board": "TensorBoard", "vs_code": "VSCode"}
_PRIORITIES = {"low": 1, "medium": 2, "high": 3}
#: Names that Azure ML takes in any letter case, and an older name of its own for one of them.
_PROPERTY_NAMES = {
    "aisupercomputer": "AISuperComputer",
    "singularity": "AISuperComputer",
    "itp": "itp",
    "target_selector": "target_selector",
}
#: A property that the service sets: a job that was read from there has it, and azure-ai-ml does not send it back.
_READ_ONLY = "_azureml.ComputeTargetType"
#: What azure-ai-ml adds to a job whose compute is called local.
_LOCAL_VARIABLES = {"AZUREML_COMPUTE_USE_COMMON_RUNTIME": "true"}
_LOCAL = {"IsLocal": {"IsLocal": True}}


def rest_body(job: CommandJob, workspace: Workspace, *, target: str | None) -> dict[str, Any]:
    """The body for a job; `target` is the compute in the workspace, None for a serverless one.

    Local inputs and environments written in the job have the ids that their content gives them. The code, whose id is
    random, is CODE; a label (`name@latest`) stays one. A job without a name has no displayName: it is the name that
    will be made. Secrets are masked. Raises JobsdkError for what Azure ML has no words for, or a file that cannot be
    read.
    """
    job = secret_rules.shown(job)
    is_here = (target or "").lower() == "local"
    body = {
        "displayName": job.display_name or job.name,
        "description": job.description,
        "command": expressions.current(job.command or ""),
        "codeId": _code(job, workspace),
        "computeId": None if target is None or is_here else compute_id(target, workspace),
        "properties": {name: value for name, value in own.properties(job).items() if name != _READ_ONLY},
        "experimentName": job.experiment_name or default_experiment(),
        "isArchived": False,
        "inputs": body_data.inputs(job, workspace),
        "outputs": body_data.outputs(job),
        "environmentId": body_data.environment(job, workspace),
        "distribution": _distribution(job.distribution),
        "tags": dict(job.tags),
        "identity": _identity(job.identity),
        "environmentVariables": {**job.environment_variables, **(_LOCAL_VARIABLES if is_here else {})},
        "resources": _resources(job.resources, is_here),
        "limits": _limits(job.limits),
        "services": None if job.services is None else {name: _service(one) for name, one in job.services.items()},
        "queueSettings": _queue(job.queue_settings),
        "parentJobName": job.parent_job_name,
        "jobType": "Command",
    }  # fmt: skip
    return {"properties": {name: value for name, value in body.items() if value is not None}}


def compute_id(target: str, workspace: Workspace) -> str:
    """The id of a compute of the workspace, of a virtual cluster (`virtualClusters/NAME`), or the id given."""
    name = target.removeprefix("azureml:")
    if name.startswith("/"):
        return name
    group, _, cluster = name.partition("/")
    if cluster and group.lower() == "virtualclusters":
        above = workspace.id.rpartition("/workspaces/")[0]
        return f"{above}/virtualclusters/{cluster}"
    return f"{workspace.id}/computes/{name}"


def default_experiment() -> str:
    """The experiment of jobs that name none: as azure-ai-ml has it, the name of the working directory."""
    from pathlib import Path

    return Path(working_directory()).resolve().stem.replace(" ", "") or "Default"


def _code(job: CommandJob, workspace: Workspace) -> str | None:
    if job.code is None:
        return None
    named = CODE if is_local(job.code) else body_data.asset(job.code, "codes", workspace)
    return named if named.startswith("/subscriptions/") else CODE


def _distribution(given: Distribution | None) -> dict[str, Any] | None:
    if given is None:
        return None
    names = {"processCountPerInstance": given.process_count_per_instance}
    if isinstance(given, TensorFlowDistribution):
        names = {"parameterServerCount": given.parameter_server_count, "workerCount": given.worker_count}
    found: dict[str, Any] = names
    if isinstance(given, RayDistribution):
        found = {
            "port": given.port,
            "address": given.address,
            "includeDashboard": given.include_dashboard,
            "dashboardPort": given.dashboard_port,
            "headNodeAdditionalArgs": given.head_node_additional_args,
            "workerNodeAdditionalArgs": given.worker_node_additional_args,
        }
    return {**_given(found), "distributionType": _DISTRIBUTIONS[given.type]}


def _identity(given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    if isinstance(given, ManagedIdentityConfiguration):
        ids = {"clientId": given.client_id, "objectId": given.object_id, "resourceId": given.msi_resource_id}
        return {**_given(ids), "identityType": "Managed"}
    return {"identityType": "AMLToken" if isinstance(given, AmlTokenConfiguration) else "UserIdentity"}


def _resources(given: JobResourceConfiguration, is_here: bool) -> dict[str, Any] | None:
    """The resources that were given; Azure ML's own defaults are left to it."""
    if not given.is_given and not is_here:
        return None
    properties = {  # of two names for one property the second counts, also where it is empty
        _PROPERTY_NAMES.get(name.lower(), name): value
        for name, value in (given.properties or {}).items()
        if value is not None and not name.startswith("_")  # such a key never leaves azure-ai-ml
    }
    listed = isinstance(given.docker_args, list) and bool(given.docker_args)
    body = {
        "instanceCount": given.instance_count if given.is_count_given else None,
        "instanceType": given.instance_type,
        "properties": {**_plain(properties), **(_LOCAL if is_here else {})},
        "shmSize": given.shm_size,
        "dockerArgsList" if listed else "dockerArgs": given.docker_args,
        # With a list of Docker's arguments, azure-ai-ml leaves these two out.
        "locations": None if listed else given.locations,
        "maxInstanceCount": None if listed else given.max_instance_count,
    }
    return _given(body)


def _plain(value: Any) -> Any:
    """The value without what is null or an empty mapping in it."""
    if isinstance(value, dict):
        return {name: kept for name, one in value.items() if (kept := _plain(one)) not in (None, {})}
    return [kept for one in value if (kept := _plain(one)) not in (None, {})] if isinstance(value, list) else value


def _limits(given: CommandJobLimits | None) -> dict[str, Any] | None:
    if given is None:
        return None
    timeout = None if given.timeout is None else duration(durations.whole(given.timeout))
    return {**_given({"timeout": timeout}), "jobLimitsType": "Command"}


def duration(seconds: int) -> str:
    """Seconds as ISO 8601 writes a duration: 3600 is PT1H."""
    days, rest = divmod(seconds, 86400)
    parts = ((rest // 3600, "H"), (rest // 60 % 60, "M"), (rest % 60, "S"))
    time = "".join(f"{number}{unit}" for number, unit in parts if number)
    return f"P{days}D{'T' + time if time else ''}" if days else f"PT{time}"


def _service(given: JobService) -> dict[str, Any]:
    further = {
        "sshPublicKeys": getattr(given, "ssh_public_keys", None),
        "logDir": getattr(given, "log_dir", None),
    }
    properties = {**(given.properties or {}), **_given(further)}
    body = {
        "jobServiceType": _SERVICES[given.type],
        "nodes": {"nodesValueType": "All"} if given.nodes else None,
        "port": given.port,
        "properties": properties if properties or given.properties is not None else None,
    }
    return _given(body)


def _queue(given: QueueSettings | None) -> dict[str, Any] | None:
    if given is None:
        return None
    tier = given.job_tier.capitalize() if given.job_tier else None
    return _given({"jobTier": tier, "priority": _PRIORITIES[given.priority] if given.priority else None})


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}

"""Jobs as azure-ai-ml's own objects, there and back.

What Azure ML knows of a job becomes its fields; what only jobsdk knows travels as `own` says. Both ways make new
objects: what is given is not changed. Local paths are absolute afterwards, since the objects may be used elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jobsdk.compute.azureml import body_data, own
from jobsdk.errors import JobsdkError, ValidationError
from jobsdk.findings import Report, show
from jobsdk.installation import install_command
from jobsdk.job import durations, machines, workers
from jobsdk.job.environment import is_file
from jobsdk.job.io import Input, Output
from jobsdk.job.paths import is_local

if TYPE_CHECKING:
    from azure.ai.ml.entities import Command

    from jobsdk.job.command import CommandJob

_DISTRIBUTIONS = {
    "pytorch": "PyTorchDistribution",
    "tensorflow": "TensorFlowDistribution",
    "mpi": "MpiDistribution",
    "ray": "RayDistribution",
}
_SERVICES = {
    "ssh": "SshJobService",
    "jupyter_lab": "JupyterLabJobService",
    "tensor_board": "TensorBoardJobService",
    "vs_code": "VsCodeJobService",
}
#: Services that Azure ML itself adds to a job that it has.
_SERVICE_OF_AZURE = ("Studio", "Tracking", "RayDashboard", "custom")
_IO = "type path mode path_on_compute datastore default optional min max enum description name version".split()


def to_azure(job: CommandJob) -> Command:
    """The job as `azure.ai.ml.command()` makes it, for `azure.ai.ml.MLClient.jobs.create_or_update`.

    What that sends is what `job compile` shows. Fields of jobsdk's own go with it as a property, and come back with
    `from_azure`; azure-ai-ml and Azure ML itself take no notice of them. Workers of `scaling` are laid out in nodes and
    processes, and variables stand for `torch_config`. Raises JobsdkError for what Azure ML has no
    words for, and ValidationError if the job is not valid in itself.
    """
    report = Report()
    job.check((), report)
    ValidationError.raise_for(report)
    layout = workers.lay_out(job, workers.room_of(machines.known().find(job.resources.instance_type)))
    report.findings += layout.findings if layout is not None else ()
    ValidationError.raise_for(report)
    job = workers.applied(job, layout)
    ml, entities = _azure()
    resources, limits, queue = job.resources, job.limits, job.queue_settings
    made = ml.command(
        name=job.name,
        display_name=job.display_name,
        experiment_name=job.experiment_name,
        description=job.description,
        tags=dict(job.tags),
        properties=own.properties(job),
        command=job.command,
        code=_path(job, job.code),
        environment=_environment(job, entities),
        environment_variables=dict(job.environment_variables),
        compute=job.compute.removeprefix("azureml:") if job.compute else None,
        inputs={name: _input(job, item, ml) for name, item in job.given_inputs().items()},
        outputs={name: _output(output, ml) for name, output in job.outputs.items()},
        distribution=_distribution(job, ml),
        identity=_identity(job, ml),
        services=None if job.services is None else {n: _service(s, entities) for n, s in job.services.items()},
        parent_job_name=job.parent_job_name,
    )
    made._name = job.name  # azure-ai-ml would turn it into small letters, and the run is called as it is here
    if resources.is_given:
        fields = {name: _plain(getattr(resources, name)) for name in resources._fields if name != "gpus_per_process"}
        fields["instance_count"] = resources.instance_count if resources.is_count_given else None
        made.resources = entities.JobResourceConfiguration(**fields)
    if limits is not None:
        made.limits = entities.CommandJobLimits(
            timeout=None if limits.timeout is None else durations.whole(limits.timeout)
        )
    if queue is not None:
        made.queue_settings = entities.QueueSettings(job_tier=queue.job_tier, priority=queue.priority)
    result: Command = made
    return result


def from_azure(job: object) -> CommandJob:
    """The job that one of azure-ai-ml's `command()`, `load_job()`, `CommandJob(...)` or `jobs.get()` is.

    Raises JobsdkError if it is another kind of object, or has lost what it was (azure-ai-ml forgets the type of a
    service that is given as a dict), and ValidationError for what azure-ai-ml lets pass though it cannot be.
    """
    from jobsdk.job.command import CommandJob

    _, entities = _azure()
    if isinstance(job, CommandJob):
        raise JobsdkError("from_azure: this is a job of jobsdk already. Fix: use it as it is")
    given: Any = job
    if isinstance(job, entities.Command):
        if isinstance(job.component, str):
            raise JobsdkError(f"from_azure: the job is the component {job.component}. Fix: give its command itself")
        given = job._to_job()  # what azure-ai-ml itself makes of it when it is submitted
    if not isinstance(given, entities.CommandJob):
        kind = type(job).__name__
        raise JobsdkError(f"from_azure: {kind} is no command job of azure-ai-ml. Fix: give a Command or CommandJob")
    base = getattr(job, "_base_path", None)
    data = own.restore({name: value for name, value in _data(given).items() if value is not None})
    report = Report()
    result = CommandJob.structure(data, (), report)
    ValidationError.raise_for(report)
    result.base_path = base
    return result


def _azure() -> tuple[Any, Any]:
    try:
        from azure.ai import ml
        from azure.ai.ml import entities
    except ImportError as error:
        raise JobsdkError(f"azure-ai-ml cannot be used: {error}. Fix: {install_command('azure')}") from None
    return ml, entities


# There.


def _path(job: CommandJob, path: str | None) -> str | None:
    """A local path as an absolute one; URIs and assets as `_name` has them."""
    if path is None:
        return None
    return str(job.resolve(path)) if is_local(path) else _name(path)


def _name(text: str) -> str:
    """An asset's name without the prefix `azureml:`, which azure-ai-ml takes off in YAML and takes for a part of the
    name in Python; URIs stay as they are."""
    return text if text.startswith("azureml://") else text.removeprefix("azureml:")


def _input(job: CommandJob, item: Any, ml: Any) -> Any:
    if not isinstance(item, Input):
        return item
    fields = {name: getattr(item, name) for name in item._fields if name != "path"}
    return ml.Input(path=_path(job, item.path), **fields)


def _output(output: Output, ml: Any) -> Any:
    return ml.Output(**{name: getattr(output, name) for name in output._fields})


def _environment(job: CommandJob, entities: Any) -> Any:
    given = job.environment
    if isinstance(given, str) and not is_file(given):
        return _name(given)
    source, inline = body_data.described(job)
    named = {"name": inline.name, "version": inline.version} if inline.name and inline.version else {}
    build = inline.build
    conda = inline.conda_file
    return entities.Environment(
        image=inline.image,
        conda_file=_path(source, conda) if isinstance(conda, str) else _plain(conda),
        build=build and entities.BuildContext(path=_path(source, build.path), dockerfile_path=build.dockerfile_path),
        os_type=inline.os_type,
        inference_config=_plain(inline.inference_config),
        datastore=inline.datastore,
        description=inline.description,
        tags=dict(inline.tags),
        properties=dict(inline.properties),
        **named,
    )


def _distribution(job: CommandJob, ml: Any) -> Any:
    given = job.distribution
    if given is None:
        return None
    names = own.DISTRIBUTION[given.type]
    return getattr(ml, _DISTRIBUTIONS[given.type])(**{name: getattr(given, name) for name in names if name != "type"})


def _identity(job: CommandJob, ml: Any) -> Any:
    given: Any = job.identity
    if given is None:
        return None
    if given.type == "managed":
        ids = {"client_id": given.client_id, "object_id": given.object_id, "resource_id": given.msi_resource_id}
        return ml.ManagedIdentityConfiguration(**ids)
    return ml.AmlTokenConfiguration() if given.type == "aml_token" else ml.UserIdentityConfiguration()


def _service(given: Any, entities: Any) -> Any:
    fields = {name: _plain(getattr(given, name)) for name in given._fields if name != "type"}
    return getattr(entities, _SERVICES[given.type])(**fields)


def _plain(value: Any) -> Any:
    """A copy of plain data of the job's."""
    import copy

    return copy.deepcopy(value)


# Back.


def _data(job: Any) -> dict[str, Any]:
    """The job's plain data, as a job file of jobsdk has it."""
    same = (
        *("name", "display_name", "experiment_name", "description", "command", "parent_job_name"),
        *("tags", "properties", "environment_variables"),
    )
    return {
        **{name: getattr(job, name) for name in same},
        "code": _code_data(job.code),
        "environment": _environment_data(job.environment),
        "compute": job.compute,
        "inputs": {name: _io_data(item) for name, item in (job.inputs or {}).items()},
        "outputs": {name: _io_data(output) or {} for name, output in (job.outputs or {}).items()},
        "distribution": _fields(job.distribution, _distribution_names(job.distribution)),
        "resources": _fields(
            job.resources,
            "instance_count instance_type properties locations shm_size max_instance_count docker_args".split(),
        ),
        "limits": _fields(job.limits, ["timeout"]),
        "queue_settings": _fields(job.queue_settings, ["job_tier", "priority"]),
        "services": _services_data(job.services),
        "identity": _identity_data(job.identity),
    }


def _get(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def _fields(given: Any, names: list[str]) -> dict[str, Any] | None:
    if given is None:
        return None
    values = {name: _get(given, name) for name in names}
    if not values.get("properties"):  # azure-ai-ml's resources always have some, if only empty ones
        values.pop("properties", None)
    return {name: _tree(value) for name, value in values.items() if value is not None}


def _tree(value: Any) -> Any:
    """Plain data of azure-ai-ml's, which has dict classes of its own."""
    if isinstance(value, Mapping):
        return {str(name): _tree(one) for name, one in value.items()}
    return [_tree(one) for one in value] if isinstance(value, list | tuple) else value


def _distribution_names(given: Any) -> list[str]:
    if given is None:
        return []
    kind = str(_get(given, "type")).lower()
    return list(given) if isinstance(given, Mapping) else list(own.DISTRIBUTION.get(kind, ("type",)))


def _code_data(path: Any) -> str | None:
    if path is None:
        return None
    return f"azureml:{path}" if str(path).startswith("/subscriptions/") else str(path)


def _reference(path: Any) -> str:
    """The path of an input: of an asset with the prefix that tells it from a file, which azure-ai-ml has taken off."""
    text = str(path)
    is_asset = text.startswith("/subscriptions/") or re.fullmatch(r"(?!azureml:)[^/:@]+(:[^/:]+|@[^/@]+)", text)
    return f"azureml:{text}" if is_asset else text


def _io_data(given: Any) -> Any:
    if given is None or isinstance(given, str | bool | int | float):
        return given
    data = {name: _get(given, name) for name in _IO}
    data = {name: _tree(value) for name, value in data.items() if value is not None}
    if "path" in data:
        data["path"] = _reference(data["path"])
    return data


def _environment_data(given: Any) -> Any:
    if given is None or isinstance(given, str):
        return given and (f"azureml:{given}" if not given.startswith("azureml:") else given)
    names = "image os_type inference_config datastore description tags properties".split()
    data = {name: _tree(value) for name in names if (value := getattr(given, name, None)) not in (None, {})}
    if data.get("os_type"):
        data["os_type"] = str(data["os_type"]).capitalize()
    if not getattr(given, "_is_anonymous", False):
        data.update(name=given.name, version=given.version)
    conda = getattr(given, "_conda_file_path", None) or given.conda_file
    if conda:
        data["conda_file"] = _tree(conda) if isinstance(conda, Mapping) else str(conda)
    if given.build is not None:
        local = getattr(given, "path", None)  # the folder, which azure-ai-ml has resolved
        build = {"path": str(local or given.build.path), "dockerfile_path": given.build.dockerfile_path}
        data["build"] = {name: value for name, value in build.items() if value is not None}
    return data


def _services_data(given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    found = {}
    for name, service in given.items():
        kind = _get(service, "type")
        if kind in _SERVICES:
            data = _fields(service, ["type", "port", "nodes", "ssh_public_keys", "log_dir"]) or {}
            properties = _get(service, "properties")
            found[name] = data if properties is None else {**data, "properties": _tree(properties)}
        elif kind not in _SERVICE_OF_AZURE and not _get(service, "endpoint"):
            raise JobsdkError(
                f"services.{name}: has lost its type, which azure-ai-ml forgets when a service is given as a dict. "
                "Fix: give it as an object, such as JupyterLabJobService()"
            )
    return found


def _identity_data(given: Any) -> dict[str, Any] | None:
    if given is None or isinstance(given, Mapping):
        return None if given is None else dict(given)
    kind = type(given).__name__
    if kind == "ManagedIdentityConfiguration":
        ids = {"client_id": given.client_id, "object_id": given.object_id, "msi_resource_id": given.resource_id}
        return {"type": "managed", **{name: value for name, value in ids.items() if value is not None}}
    types = {"AmlTokenConfiguration": "aml_token", "UserIdentityConfiguration": "user_identity"}
    if kind not in types:
        raise JobsdkError(f"identity: {show(given)} is none that a job can have. Fix: give one of azure-ai-ml's")
    return {"type": types[kind]}

"""The REST body of a command job -> what is run here. Pure; what cannot be run is refused as the service refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from jobsdk.emulator.server import Refused

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")
_REFERENCE = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w.-]+)\s*\}\}")
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
#: What a job may be changed in when it is sent again.
CHANGEABLE = ("displayName", "description", "tags", "properties", "isArchived")
#: What the service itself adds.
ADDED = ("status", "services", "provisioningState")


class Data(NamedTuple):
    """An input or output that is a file, a folder or an address."""

    kind: str  # as jobInputType has it: uri_file, uri_folder, ...
    uri: str | None
    mode: str
    asset: str | None = None  # an output's name as a data asset
    version: str | None = None

    @property
    def is_file(self) -> bool:
        return self.kind == "uri_file"


class LocalJob(NamedTuple):
    """What a body asks for, in the words of this machine."""

    command: str
    code_id: str | None
    environment_id: str
    nodes: int
    distribution: str | None  # as distributionType has it
    processes: int  # on each node
    workers: int
    parameter_servers: int
    variables: dict[str, str]
    literals: dict[str, str]
    inputs: dict[str, Data]
    outputs: dict[str, Data]
    timeout: int | None

    @property
    def world_size(self) -> int:
        if self.distribution == "TensorFlow":
            return self.workers + self.parameter_servers
        return self.nodes * self.processes

    def rendered(self, paths: Mapping[str, Mapping[str, str]]) -> str:
        """The command with the values of inputs and outputs in their places, as text: nothing is quoted."""
        return _REFERENCE.sub(lambda found: paths[found.group(1)].get(found.group(2), found.group()), self.command)


def read(name: str, properties: Mapping[str, Any]) -> LocalJob:
    """The job in a body's `properties`. Raises Refused."""
    if not _JOB_NAME.fullmatch(name):
        raise invalid(
            f"The job name {name!r} is invalid: it must be 1 to 255 letters, digits, - and _, and begin with a letter "
            "or digit."
        )
    if properties.get("jobType") != "Command":
        raise _unable(f"jobs of the type {properties.get('jobType')}; it runs those of the type Command")
    command = properties.get("command")
    if not isinstance(command, str) or not command.strip():
        raise invalid("The job has no command.")
    if not properties.get("environmentId"):
        raise invalid("The job has no environmentId.")
    if properties.get("services"):
        raise _unable(f"the services {', '.join(properties['services'])} beside a job")
    resources = properties.get("resources") or {}
    if any(key.lower() == "islocal" for key in resources.get("properties") or {}):
        raise _unable("jobs with compute: local, which take Docker and a service of their own; any other name will do")
    nodes = _whole(resources.get("instanceCount"), "resources.instanceCount", 1)
    literals, inputs = _inputs(properties.get("inputs") or {})
    outputs = _outputs(properties.get("outputs") or {})
    for found in _REFERENCE.finditer(command):
        known: Mapping[str, Any] = {**literals, **inputs} if found.group(1) == "inputs" else outputs
        if found.group(2) not in known:
            raise invalid(f"The command refers to {found.group()}, and the job has no such {found.group(1)[:-1]}.")
    given = properties.get("environmentVariables") or {}
    return LocalJob(
        command=command,
        code_id=properties.get("codeId"),
        environment_id=str(properties["environmentId"]),
        nodes=nodes,
        **_distribution(properties.get("distribution") or {}, nodes),
        variables={str(key): str(value) for key, value in given.items() if value is not None},
        literals=literals,
        inputs=inputs,
        outputs=outputs,
        timeout=_seconds((properties.get("limits") or {}).get("timeout")),
    )


def same_job(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two bodies ask for the same, but for what may be changed."""
    return _fixed(one) == _fixed(other)


def _fixed(properties: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in properties.items() if key not in (*CHANGEABLE, *ADDED)}
    kept["outputs"] = {name: value for name, value in (kept.get("outputs") or {}).items() if name != "default"}
    return {key: value for key, value in kept.items() if value not in (None, {}, [])}


def invalid(message: str) -> Refused:
    """What the service says of a job that is wrong."""
    return Refused(400, "UserError", message)


def _unable(what: str) -> Refused:
    return invalid(f"jobsdk azure-emulator cannot run {what}. Fix: test this against a workspace of Azure ML")


def _distribution(given: Mapping[str, Any], nodes: int) -> dict[str, Any]:
    kind = given.get("distributionType")
    found = {"distribution": kind, "processes": 1, "workers": 0, "parameter_servers": 0}
    if kind in ("PyTorch", "Mpi"):
        where = "distribution.processCountPerInstance"
        return {**found, "processes": _whole(given.get("processCountPerInstance"), where, 1)}
    if kind == "TensorFlow":
        workers = _whole(given.get("workerCount"), "distribution.workerCount", nodes)
        servers = _whole(given.get("parameterServerCount"), "distribution.parameterServerCount", 0, least=0)
        if workers > nodes:
            raise invalid(f"distribution.workerCount is {workers}, more than the {nodes} instances of the job.")
        return {**found, "workers": workers, "parameter_servers": servers}
    if kind is not None:
        raise _unable(f"a distribution of the type {kind}")
    return found


def _inputs(given: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Data]]:
    literals: dict[str, str] = {}
    inputs: dict[str, Data] = {}
    for name, value in given.items():
        kind = (value or {}).get("jobInputType")
        if kind == "literal":
            literals[name] = str(value.get("value", ""))
        elif not kind or not value.get("uri"):
            raise invalid(f"The input {name} has no jobInputType or no uri.")
        else:
            inputs[name] = Data(str(kind), str(value["uri"]), str(value.get("mode") or "ReadOnlyMount"))
    return literals, inputs


def _outputs(given: Mapping[str, Any]) -> dict[str, Data]:
    outputs: dict[str, Data] = {}
    for name, value in given.items():
        if name == "default":  # comes back with a job that was shown by the service
            continue
        value = value or {}
        kind, mode = str(value.get("jobOutputType") or "uri_folder"), str(value.get("mode") or "ReadWriteMount")
        outputs[name] = Data(kind, value.get("uri"), mode, value.get("assetName"), value.get("assetVersion"))
    return outputs


def _whole(value: Any, where: str, default: int, least: int = 1) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise invalid(f"{where} is {value!r}; it must be a whole number, at least {least}.")
    return value


def _seconds(value: Any) -> int | None:
    """An ISO 8601 duration in seconds, at least 1."""
    if value is None:
        return None
    found = _DURATION.fullmatch(str(value))
    if not found or not any(found.groups()):
        raise invalid(f"limits.timeout is {value!r}; it must be a duration such as PT1H.")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return max(1, round(((days * 24 + hours) * 60 + minutes) * 60 + seconds))

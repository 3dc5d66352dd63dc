"""What all computes that start jobsdk's own bootstrap say alike of a job that is valid by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jobsdk.bootstrap import layout
from jobsdk.errors import ValidationError
from jobsdk.job.distribution import RayDistribution
from jobsdk.job.findings import Finding, show

if TYPE_CHECKING:
    from jobsdk.job.command import CommandJob
    from jobsdk.plan import Plan

Path = tuple[str, ...]


def is_in_a_cloud(uri: str | None) -> bool:
    """Whether only Azure ML's own compute could read it. An https URL any node can."""
    return uri is not None and layout.is_remote(uri) and not uri.lower().startswith(("http://", "https://"))


def what_none_can(compute: str, job: CommandJob, plan: Plan, instead: str) -> Iterator[Finding]:
    """Errors. `instead` says what an input may be in the place of a URI of a cloud."""
    if isinstance(job.distribution, RayDistribution):
        message = f"no Ray cluster can be started on the compute {compute}"
        yield Finding("error", ("distribution",), message, "call ray.init() in the script, without a distribution")
    if job.code is not None and layout.is_remote(job.code) and not job.code.lower().startswith("file:"):
        message = f"{show(job.code)} is not on this machine"
        yield Finding("error", ("code",), message, "give a local folder: --set code=FOLDER")
    for name, given in plan["inputs"].items():
        uri = given.get("uri")
        if is_in_a_cloud(uri):
            message = f"{show(uri)} can be read only in its cloud"
            yield Finding("error", ("inputs", name, "path"), message, instead.format(name=name))


def raise_errors(compute: str, findings: Iterable[Finding], *, in_place: bool) -> None:
    """Raises ValidationError for the errors that a compute without a folder of this machine has found in a job."""
    errors = [one for one in findings if one.is_error]
    if in_place:
        message = f"the compute {compute} cannot run in this machine's folder"
        errors.append(Finding("error", (), message, "leave out in_place=True"))
    if errors:
        raise ValidationError(errors)


def unheeded_fields(compute: str, job: CommandJob, heeded: Collection[Path] = ()) -> Iterator[Finding]:
    """Warnings for what is given and has no effect; a compute that heeds some of it says so."""
    resources: Any = job.resources
    given: dict[Path, bool] = {
        ("resources", "shm_size"): resources.shm_size is not None,
        ("resources", "docker_args"): bool(resources.docker_args),
        ("resources", "locations"): bool(resources.locations),
        ("resources", "properties"): bool(resources.properties),
        ("resources", "max_instance_count"): resources.max_instance_count is not None,
        ("services",): bool(job.services),
        ("queue_settings",): job.queue_settings is not None,
        ("identity",): job.identity is not None,
    }
    for path, is_given in given.items():
        if is_given and path not in heeded:
            yield Finding("warning", path, f"has no effect on the compute {compute}")


def unheeded_outputs(compute: str, job: CommandJob, plan: Plan) -> Iterator[Finding]:
    """Warnings for outputs that are to be registered, or written to a cloud."""
    for name, output in job.outputs.items():
        here = f"has no effect on the compute {compute}: the output is kept with the run"
        if output.name is not None:
            yield Finding("warning", ("outputs", name, "name"), f"{here}, not registered")
        uri = plan["outputs"][name]["uri"]
        if uri is not None and layout.is_remote(uri):
            yield Finding("warning", ("outputs", name, "path"), f"{here}, not at {show(uri)}")

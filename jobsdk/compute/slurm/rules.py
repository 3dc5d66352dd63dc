"""What a Slurm cluster does not support in a job, or ignores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jobsdk.compute import job_rules
from jobsdk.findings import Finding
from jobsdk.job import durations
from jobsdk.job.environment import Environment

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.job.command import CommandJob

_PROPERTY = "slurm"
_KILL_WAIT_S = 30  # seconds; Slurm's own default


def findings(name: str, settings: Mapping[str, Any], job: CommandJob, plan: Plan, build_env: bool) -> list[Finding]:
    """All of them. `name` is the compute's, `settings` are those that hold for the job."""
    return [
        *job_rules.of_settings(_PROPERTY, job),
        *job_rules.what_none_can(name, job, plan, "give a path on the cluster, or an https URL"),
        *_environment(name, settings, job, build_env),
        *_grace(settings, plan),
        *_spare(job, plan),
        *job_rules.ignored_fields(name, job, [("resources", "properties", _PROPERTY)]),
        *job_rules.ignored_outputs(name, job, plan),
    ]


def image_of(settings: Mapping[str, Any], job: CommandJob) -> str | None:
    """The image that the job's nodes run in; None without a container."""
    if "container" not in settings:
        return None
    own = job.environment.image if isinstance(job.environment, Environment) else None
    return own or settings["container"].get("image")


def _environment(name: str, settings: Mapping[str, Any], job: CommandJob, build_env: bool) -> Iterator[Finding]:
    if build_env:
        message = "no environment is built on a cluster of Slurm"
        fix = "leave out --build-env, and make one there: set python, or setup: [module load ...], or a container"
        yield Finding("error", ("environment",), message, fix)
    container = settings.get("container")
    if container is not None and image_of(settings, job) is None:
        message = f"the compute {name} runs jobs in containers, and the job names no image"
        yield Finding("error", ("environment",), message, "set environment.image, or container.image of the compute")
    elif job.environment is not None and (container is None or not isinstance(job.environment, Environment)):
        message = f"is not used on the compute {name}: the job runs with {settings.get('python', 'python3')} there"
        fix = "see that this Python has the job's packages" if container is None else "set environment.image"
        yield Finding("warning", ("environment",), message, fix)
    elif isinstance(job.environment, Environment) and (job.environment.conda_file or job.environment.requirements):
        message = f"on the compute {name} only the image is used; no packages are added to it"
        yield Finding("warning", ("environment",), message)


def _spare(job: CommandJob, plan: Plan) -> Iterator[Finding]:
    own = (job.resources.properties or {}).get(_PROPERTY)
    if isinstance(own, Mapping) and "spare" in own and not plan["restarts"]["max"]:
        path = ("resources", "properties", _PROPERTY, "spare")
        yield Finding("warning", path, "has no effect: max_restarts is 0", "set max_restarts")


def _grace(settings: Mapping[str, Any], plan: Plan) -> Iterator[Finding]:
    """Once Slurm has sent SIGTERM it kills what is left: after its KillWait, or where its time ends."""
    seconds = max(_KILL_WAIT_S, durations.seconds(settings.get("signal")) or 0)
    if plan["grace_s"] >= seconds - 5:
        message = f"Slurm kills what is left about {seconds:g} s after its SIGTERM (KillWait, or signal of the compute)"
        yield Finding("warning", ("limits", "grace_period"), message, f"set less than {seconds - 5:g} s")

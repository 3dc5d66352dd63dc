"""What Spark does not support in a job, or ignores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.spec import ranks
from jobsdk.compute import job_rules
from jobsdk.compute.spark import settings as spark_settings
from jobsdk.findings import Finding

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.job.command import CommandJob
    from jobsdk.job.workers import Layout


def findings(name: str, settings: Mapping[str, Any], job: CommandJob, plan: Plan, build_env: bool) -> list[Finding]:
    """All of them. `name` is the compute's."""
    return [
        *_session(name, settings),
        *job_rules.what_none_can(name, job, plan, "give a path of the executors' machines, or an https URL"),
        *_data(name, settings, plan),
        *_environment(name, job, build_env),
        *_gpus(settings, plan),
        *job_rules.ignored_fields(name, job),
        *job_rules.ignored_preemptions(name, job),
        *job_rules.ignored_outputs(name, job, plan),
        *job_rules.ignored_scaling(name, job, ("CPU",)),
    ]


def gpus_of_node(settings: Mapping[str, Any], plan: Plan) -> int:
    """How many GPUs a node takes; 0 where neither the compute nor the job says it."""
    given = settings.get("gpus_per_node")
    return int(given) if given is not None else _gpus_needed(plan)


def cpus_of_node(settings: Mapping[str, Any], job: CommandJob, layout: Layout | None) -> int | None:
    """How many cores a node takes; None where neither the compute nor the job says it."""
    given = settings.get("cpus_per_node")
    if given is None and layout is not None and "CPU" in (getattr(job.scaling, "resources_per_worker", None) or {}):
        return layout.cpus or None
    return given


def _gpus_needed(plan: Plan) -> int:
    return ranks.gpus_of(plan, max(len(distributions.of(plan).node_processes(node)) for node in range(plan["nodes"])))


def _session(name: str, settings: Mapping[str, Any]) -> Iterator[Finding]:
    why = spark_settings.never_starts(settings.get("master"), settings.get("conf", {}))
    if why:
        message, _, fix = why.partition(". Fix: ")
        yield Finding("error", ("compute",), f"conf of {name}: {message}", fix)


def _data(name: str, settings: Mapping[str, Any], plan: Plan) -> Iterable[Finding]:
    is_local = spark_settings.is_local(settings.get("master"))
    return () if is_local else job_rules.inputs_not_sent(plan, f"the executors' machines of {name}")


def _environment(name: str, job: CommandJob, build_env: bool) -> Iterator[Finding]:
    if build_env:
        message = f"cannot be built on the compute {name}: its executors' Python runs the job"
        yield Finding("error", ("environment",), message, "set python of the compute, and leave out --build-env")
    elif job.environment is not None:
        message = f"has no effect on the compute {name}: its executors' Python runs the job"
        yield Finding("warning", ("environment",), message)


def _gpus(settings: Mapping[str, Any], plan: Plan) -> Iterator[Finding]:
    given, needed = settings.get("gpus_per_node"), _gpus_needed(plan)
    if given is not None and needed > given:
        message = f"each node needs {needed} GPUs, and the compute gives it {given}"
        yield Finding("error", ("resources", "gpus_per_process"), message, "start fewer processes")

"""job -> plan: the job made concrete, one small JSON document for every compute. Pure.

The plan is what the bootstrap reads in the container. Its size does not depend on the number of ranks. Paths of inputs
and outputs are not in it, since they differ from node to node: the command is kept in parts, and the bootstrap puts
the paths in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobsdk.bootstrap.spec.plan import DataPlan, DistributionPlan, NetworkPlan, Plan
    from jobsdk.job.command import CommandJob
    from jobsdk.job.io import Input, Output
    from jobsdk.job.workers import Layout

Default = TypeVar("Default", float, None)

#: Seconds between SIGTERM and SIGKILL when a job is stopped; below the 30 s that Slurm and Kubernetes give.
GRACE_S = 10.0
#: Seconds that nodes wait for one another, as torchrun's join timeout.
RENDEZVOUS_TIMEOUT_S = 600.0
#: Seconds of silence after which a node counts as lost.
HEARTBEAT_S = 15.0


def make_plan(job: CommandJob, *, name: str) -> Plan:
    """The plan of `job` as the run `name`, without its secrets, where no compute is known."""
    from jobsdk.planning.secrets import seal

    return seal(whole_plan(job, name=name), job)[0]


def whole_plan(
    job: CommandJob,
    *,
    name: str,
    preload: str | Sequence[str] | None = None,
    network: NetworkPlan | None = None,
    layout: Layout | None = None,
) -> Plan:
    """The plan of `job` as the run `name`, with its secrets, which `planning.secrets` takes out. The job must be valid.

    `preload` is the compute's setting, for a job without its own; `network` is `jobsdk.compute.network`'s; `layout`
    is that of a job with `scaling` where more is known of the nodes than the job itself says.
    """
    from jobsdk.bootstrap.spec.stores import store_of
    from jobsdk.job.expressions import text_of
    from jobsdk.job.io import Input

    if job.scaling is not None or job.torch_config is not None:
        from jobsdk.job import workers

        if layout is None and job.scaling is not None:
            layout = workers.lay_out(job)
        job = workers.applied(job, layout)

    plan: Plan = {
        "plan": 1,
        "run": name,
        "display_name": job.display_name or name,
        "experiment": job.experiment_name,
        "command": _command(job),
        "nodes": job.resources.instance_count or 1,
        "distribution": _distribution(job),
        "environment": dict(job.environment_variables),
        "inputs": {
            key: _data(job, value) if isinstance(value, Input) else {"literal": text_of(value)}
            for key, value in job.given_inputs().items()
        },
        "outputs": {key: _data(job, value) for key, value in job.outputs.items()},
        "preload": _listed(preload if job.preload is None else job.preload),
        "gpus_per_process": job.resources.gpus_per_process,
        "timeout_s": job.limits.timeout if job.limits else None,
        "hang_timeout_s": _limit(job, "hang_timeout", None),
        "grace_s": _limit(job, "grace_period", GRACE_S),
        "rendezvous_timeout_s": _limit(job, "rendezvous_timeout", RENDEZVOUS_TIMEOUT_S),
        "heartbeat_s": HEARTBEAT_S,
        "restarts": {
            "max": job.max_restarts,
            "max_preemptions": job.max_preemptions,
            "max_no_progress": job.max_no_progress,
            "delay_s": None if job.restart_delay is None else float(job.restart_delay),
            "retry_on": _listed(job.retry_on),
            "never_retry_on": _listed(job.never_retry_on),
        },
    }
    if network:
        plan["network"] = network
    if job.code is not None and store_of(job.code) is not None:
        plan["code"] = job.code
    return plan


def _limit(job: CommandJob, name: str, default: Default) -> float | Default:
    """One of the job's limits, in seconds."""
    value = getattr(job.limits, name, None)
    return default if value is None else float(value)


def _listed(given: Any) -> list[Any]:
    """A value that may stand alone or be left out, as a list."""
    return list(given) if isinstance(given, list | tuple) else [] if given is None else [given]


def _command(job: CommandJob) -> list[Any]:
    """The command's parts: text, and references to inputs and outputs that are paths. Literals are text already."""
    from jobsdk.job.expressions import parse, render_optional, text_of
    from jobsdk.job.io import Input

    parts: list[Any] = []
    for part in parse(render_optional(job.command or "", job.given_inputs())):
        if isinstance(part, str):
            piece: Any = part
        elif part.namespace == "outputs":
            piece = {"output": part.name}
        else:
            value = job.inputs[part.name]
            piece = {"input": part.name} if isinstance(value, Input) else text_of(value)
        if isinstance(piece, str) and parts and isinstance(parts[-1], str):
            parts[-1] += piece
        else:
            parts.append(piece)
    return parts


def _data(job: CommandJob, value: Input | Output) -> DataPlan:
    """An input or output that is a file, a folder or a URI. Local paths become absolute."""
    from jobsdk.job.io import is_local

    path = value.path
    if path is not None and is_local(path):
        path = str(job.resolve(path))
    return {"type": value.type or "uri_folder", "mode": value.mode, "uri": path}


def _distribution(job: CommandJob) -> DistributionPlan:
    """What the environment contract needs to know. Without a distribution every node runs the command once."""
    from jobsdk.job.distribution import DeepSpeedDistribution, RayDistribution, TensorFlowDistribution

    distribution, nodes = job.distribution, job.resources.instance_count or 1
    if distribution is None:
        return {"type": "none", "processes": 1, "launcher": "direct"}
    if isinstance(distribution, TensorFlowDistribution):
        return {
            "type": "tensorflow",
            "launcher": "direct",
            "workers": distribution.worker_count or nodes,
            "parameter_servers": distribution.parameter_server_count or 0,
            "chief": bool(distribution.chief),
        }
    if isinstance(distribution, RayDistribution):
        given = {name: getattr(distribution, name) for name in RayDistribution._fields if name != "type"}
        chosen = {name: value for name, value in given.items() if value is not None}
        return cast("DistributionPlan", {"type": "ray", "processes": 1, "launcher": "direct", **chosen})
    planned: DistributionPlan = {
        "type": distribution.type,
        "processes": distribution.process_count_per_instance or 1,
        "launcher": getattr(distribution, "launcher", None) or "direct",
    }
    if isinstance(distribution, DeepSpeedDistribution):
        if distribution.config is not None:
            planned["config"] = distribution.config
        if distribution.autotuning is not None:
            planned["autotuning"] = distribution.autotuning
    return planned

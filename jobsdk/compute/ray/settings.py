"""What can be set for a compute of type ray, and what a job needs of a cluster by that."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.spec import ranks
from jobsdk.compute.settings import FLAG, Setting, duration, mistakes_in, must_be

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.job.command import CommandJob

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
#: Bytes of outputs that a submitted job may send back with its log.
OUTPUTS_LIMIT = 16 << 20
_ADDRESS = re.compile(r"auto|local|(https?|ray)://[^\s/]+.*|[^\s:/]+:\d+|\[[0-9A-Fa-f:]+\]:\d+")
#: What Ray knows in a runtime_env. It takes any other name, too, without a word.
_OF_RUNTIME_ENV = (
    *("pip", "uv", "conda", "env_vars", "working_dir", "py_modules", "py_executable", "excludes", "config"),
    *("image_uri", "container", "java_jars", "nsight", "mpi", "rocprof_sys", "worker_process_setup_hook"),
)
_LEAST = {"CPU": 0.001}  # Ray refuses a bundle of nothing


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


_text = must_be("a text", lambda value: isinstance(value, str) and bool(value.strip()))
_address = must_be(
    "http(s)://HOST:PORT, auto, HOST:PORT or ray://HOST:PORT",
    lambda value: isinstance(value, str) and _ADDRESS.fullmatch(value) is not None,
)
_amount = must_be("a number of at least 0", _is_amount)
_count = must_be("a whole number of at least 0", lambda value: _is_amount(value) and isinstance(value, int))
_texts = must_be(
    "a mapping of texts",
    lambda value: isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair),
)
_mapping = must_be("a mapping", lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value))
_strategy = must_be(f"{', '.join(STRATEGIES[:-1])} or {STRATEGIES[-1]}", lambda value: value in STRATEGIES)


def _amounts(value: Any) -> str:
    if isinstance(value, Mapping) and all(isinstance(key, str) and _is_amount(one) for key, one in value.items()):
        clash = {"CPU", "GPU"} & set(value)
        return f"has {min(clash)}, which cpus_per_node and gpus_per_node are for" if clash else ""
    return "must be a mapping of amounts"


def _init(value: Any) -> str:
    taken = {"address", "namespace", "runtime_env"} & set(value if isinstance(value, Mapping) else ())
    return f"cannot have {min(taken)}" if taken else _mapping(value)


def _runtime_env(value: Any) -> str:
    from jobsdk.findings import nearest

    wrong = _mapping(value)
    if wrong:
        return wrong
    for name in value:
        near = nearest(name, _OF_RUNTIME_ENV)
        if name not in _OF_RUNTIME_ENV and near:  # others may be of a plugin
            return f"has {name}: did you mean {near!r}?"
    variables = value.get("env_vars", {})
    if not isinstance(variables, Mapping):
        return "has env_vars, which must be a mapping of texts"
    for name, one in variables.items():
        if not isinstance(one, str) or not isinstance(name, str):
            return f"has env_vars.{name}, which must be a text. Fix: write it in quotes, as '{one}'"
    return ""


SETTINGS: dict[str, Setting] = {
    "address": Setting(
        "http(s)://HOST:8265, the cluster's job submission API; or auto, HOST:PORT, ray://HOST:PORT, to connect to it; "
        "without it: the session that this process has open, or a Ray of the run's own on this machine",
        _address,
        False,
    ),
    "headers": Setting("headers of requests to the job submission API, such as those of a gateway", _texts, False),
    "verify": Setting(
        "false, or a file of certificates, for an https address",
        lambda value: "" if isinstance(value, bool) else _text(value) and "must be true, false or a file",
        False,
    ),
    "python": Setting("the interpreter of the cluster that runs a submitted job's driver; without it python", _text),
    "entrypoint_num_cpus": Setting("CPUs that a submitted job's driver holds; without it 0: the head node", _amount),
    "entrypoint_resources": Setting("resources that a submitted job's driver holds, as {driver: 1}", _amounts),
    "outputs_limit": Setting(f"bytes of outputs that a submitted job sends back; without it {OUTPUTS_LIMIT}", _count),
    "init": Setting("further arguments of ray.init(), as {num_gpus: 2}; not with the job submission API", _init, False),
    "cpus_per_node": Setting("CPUs of a bundle; without it one for each process of the node", _amount),
    "gpus_per_node": Setting("GPUs of a bundle; without it processes x gpus_per_process", _amount),
    "resources_per_node": Setting("further resources of a bundle, as {memory: 8000000000, special: 1}", _amounts),
    "placement_strategy": Setting("PACK, SPREAD, STRICT_PACK or STRICT_SPREAD; without it SPREAD", _strategy),
    "placement_timeout": Setting("how long a job may wait for its place, as 300 or 5m; default: no limit", duration),
    "autoscaling": Setting("true: what the cluster does not have it may get, so that jobs wait for it", FLAG),
    "runtime_env": Setting("Ray's runtime_env of the nodes' processes: pip, env_vars, ...", _runtime_env),
}


def mistakes(settings: Mapping[str, Any], *, of_job: bool = False) -> Iterator[tuple[str, str]]:
    """What is wrong: (setting, words)."""
    return mistakes_in(SETTINGS, settings, of_job=of_job)


class Demand(NamedTuple):
    """A placement group: `size` equal bundles, one for each node of the job, or with `per_rank` for each rank."""

    bundle: dict[str, float]
    size: int
    strategy: str
    per_rank: bool
    labels: list[dict[str, str]] | None


def is_placed_by_ray(job: CommandJob) -> bool:
    """Whether the job leaves to Ray how many nodes it has."""
    given = getattr(job.distribution, "process_count_per_instance", None)
    return job.scaling is not None and not job.resources.is_count_given and given is None


def demand(job: CommandJob, plan: Plan, settings: Mapping[str, Any]) -> Demand:
    """What a valid job needs of the cluster. `settings` are the compute's, and over them the job's own."""
    distribution, nodes = plan["distribution"], plan["nodes"]
    processes = int(distribution.get("processes", 1))
    if job.scaling is None:
        if distribution["type"] == "tensorflow":
            processes = max(len(distributions.of(plan).node_processes(rank)) for rank in range(min(nodes, 2)))
        gpus = settings.get("gpus_per_node") or ranks.gpus_of(plan, processes)
        bundle = {"CPU": settings.get("cpus_per_node", processes), "GPU": gpus}
        bundle.update(settings.get("resources_per_node", {}))
        return Demand(_sound(bundle), nodes, settings.get("placement_strategy", "SPREAD"), False, None)
    scaling = job.scaling
    bundle = {"CPU": scaling.num_cpus_per_worker, "GPU": scaling.num_gpus_per_worker}
    bundle.update(scaling.additional_resources_per_worker)
    strategy, given = scaling.placement_strategy, scaling.label_selector
    if is_placed_by_ray(job):
        labels = [given] * scaling.num_workers if isinstance(given, dict) else given
        return Demand(_sound(bundle), scaling.num_workers, strategy, True, labels)
    whole = {name: amount * (1 if ":" in name else processes) for name, amount in bundle.items()}
    whole["GPU"] = ranks.gpus_of(plan, processes)
    labels = [given] * nodes if isinstance(given, dict) else None
    return Demand(_sound(whole), nodes, "STRICT_SPREAD" if strategy.startswith("STRICT") else "SPREAD", False, labels)


def _sound(bundle: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in bundle.items() if amount} or dict(_LEAST)

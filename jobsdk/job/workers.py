"""Where the workers of a job with `scaling` go: nodes, processes on each, and what a node must have. Pure.

A job that is laid out (`applied`) says the same in nodes and processes, so that all that comes after knows one form.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from jobsdk.bootstrap.spec import ranks
from jobsdk.findings import Finding, Path
from jobsdk.job.distribution import PyTorchDistribution, RayDistribution, TensorFlowDistribution
from jobsdk.job.scaling import ScalingConfig

if TYPE_CHECKING:
    from jobsdk.job.command import CommandJob
    from jobsdk.job.machines import Machine

_WORKERS: Path = ("scaling", "num_workers")
_EACH: Path = ("scaling", "resources_per_worker")
_COUNT: Path = ("resources", "instance_count")
_PROCESSES: Path = ("distribution", "process_count_per_instance")
#: Few machines have more GPUs than this.
_MANY_GPUS = 8


class NodeCapacity(NamedTuple):
    """What a node of a compute has, as far as it is known; `memory` is in bytes, `name` says where that is from.

    `nodes` is how many there are in all.
    """

    name: str
    gpus: int | None = None
    cpus: int | None = None
    memory: float | None = None
    nodes: int | None = None


def room_with(compute: str, gpus: int | None, of_machine: NodeCapacity | None) -> NodeCapacity | None:
    """What a node of a compute has: `gpus` where its settings say it, the rest as is known of the machine."""
    if gpus is None:
        return of_machine
    return (of_machine or NodeCapacity(""))._replace(name=f"a node of {compute}", gpus=gpus)


class Layout(NamedTuple):
    """`nodes` with `processes` workers each; `gpus`, `cpus`, `memory` (bytes) and `custom` are what each node needs.

    `findings` is what is wrong or doubtful about it. With an error among them the layout is one that could be meant.
    """

    nodes: int
    processes: int
    gpus_per_process: int | float | None
    gpus: int
    cpus: int
    memory: int
    custom: dict[str, int]
    findings: tuple[Finding, ...] = ()


def room_of(machine: Machine | None) -> NodeCapacity | None:
    """What a node has if it is this machine."""
    if machine is None:
        return None
    return NodeCapacity(machine.name, machine.gpus, machine.cpus or None, machine.memory * 2**30 or None)


def lay_out(job: CommandJob, room: NodeCapacity | None = None) -> Layout | None:
    """The layout of a job whose fields are sound; None for a job without `scaling`.

    What the job says of nodes and processes holds. Where it says nothing, SPREAD gives each worker a node, and PACK
    takes as few nodes as have `room` for the workers; all go on one node where that is not known.
    """
    scaling = job.scaling
    if scaling is None:
        return None
    findings: list[Finding] = []
    if isinstance(job.distribution, RayDistribution):
        message = "a Ray cluster starts the command once, on its head, so that there are no workers"
        findings.append(Finding("error", ("scaling",), message, "remove it, or the distribution"))
        nodes, processes = job.resources.instance_count, 1
    elif isinstance(job.distribution, TensorFlowDistribution):
        nodes, processes = _of_tensorflow(job, scaling, findings), 1
    else:
        nodes, processes = _of_processes(job, scaling, room, findings)
    if not any(one.is_error for one in findings):
        findings += _strictly(scaling, nodes, processes)
        findings += _without_room(scaling, processes, room) if room is not None else ()
        findings += _of_one_gpu_count(job, scaling)
    return _needing(scaling, nodes, processes, findings)


def applied(job: CommandJob, layout: Layout | None) -> CommandJob:
    """The job that says by nodes, processes and variables what `layout` and its `torch_config` come to; a copy, unless
    it has neither."""
    if layout is None and job.torch_config is None:
        return job
    job = copy.copy(job)
    if job.torch_config is not None:
        job.environment_variables = {**job.torch_config.variables(), **job.environment_variables}
        job.torch_config = None
    if layout is not None:
        job.scaling = None
        job.resources = copy.copy(job.resources)
        job.resources.instance_count = layout.nodes
        job.resources.gpus_per_process = layout.gpus_per_process
        job.distribution = copy.copy(job.distribution) or PyTorchDistribution()
        if isinstance(job.distribution, TensorFlowDistribution):
            job.distribution.worker_count = layout.nodes
        elif not isinstance(job.distribution, RayDistribution):
            job.distribution.process_count_per_instance = layout.processes
    return job


def described(job: CommandJob, layout: Layout | None) -> str:
    """`8 workers, PACK: 2 nodes x 4; each 1 GPU, 2 CPUs`; nothing for a job without `scaling`."""
    scaling = job.scaling
    if scaling is None or layout is None:
        return ""
    each = [
        *([f"{_plural(scaling.num_gpus_per_worker, 'GPU')}"] if scaling.num_gpus_per_worker else []),
        *([f"{_plural(scaling.num_cpus_per_worker, 'CPU')}"] if scaling.num_cpus_per_worker else []),
        *(
            f"{_gib(amount)} of memory" if name == "memory" else f"{amount:g} {name}"
            for name, amount in scaling.additional_resources_per_worker.items()
            if not name.startswith("accelerator_type:")
        ),
        *([f"on nodes with {scaling.accelerator_type}"] if scaling.accelerator_type else []),
    ]
    size = f"{_plural(scaling.num_workers, 'worker')}, {scaling.placement_strategy}"
    return f"{size}: {_plural(layout.nodes, 'node')} x {layout.processes}; each {', '.join(each) or 'nothing'}"


def of_nodes(scaling: ScalingConfig, layout: Layout, nodes: int) -> ScalingConfig:
    """What asks for as many nodes, each with one process that has all that the workers of a node have."""
    amounts = {"GPU": layout.gpus, "CPU": layout.cpus, "memory": layout.memory, **layout.custom}
    labels = scaling.label_selector
    return ScalingConfig(
        num_workers=nodes,
        use_gpu=layout.gpus > 0,
        resources_per_worker={name: amount for name, amount in amounts.items() if amount},
        placement_strategy="SPREAD",
        accelerator_type=scaling.accelerator_type,
        label_selector=labels[0] if isinstance(labels, list) else labels,
    )


# -- nodes and processes -----------------------------------------------------------------------------------------------


def _of_tensorflow(job: CommandJob, scaling: ScalingConfig, findings: list[Finding]) -> int:
    """A node runs one worker of TensorFlow, whatever the placement."""
    workers = scaling.num_workers
    given = getattr(job.distribution, "worker_count", None)
    if given is not None and given != workers:
        message = f"says {workers}, and distribution.worker_count {given}"
        findings.append(Finding("error", _WORKERS, message, "leave out one of them"))
    elif job.resources.is_count_given and job.resources.instance_count != workers:
        message = f"says {workers}, and resources.instance_count {job.resources.instance_count}: a node runs one worker"
        findings.append(Finding("error", _WORKERS, message, f"set instance_count to {workers}, or leave it out"))
    return workers


def _of_processes(
    job: CommandJob, scaling: ScalingConfig, room: NodeCapacity | None, findings: list[Finding]
) -> tuple[int, int]:
    workers = scaling.num_workers
    nodes = job.resources.instance_count if job.resources.is_count_given else None
    processes = job.distribution.process_count_per_instance if job.distribution is not None else None
    if nodes is not None and processes is not None:
        if nodes * processes != workers:
            message = f"says {workers}, and {_plural(nodes, 'node')} x {processes} processes are {nodes * processes}"
            fix = f"set it to {nodes * processes}, or leave out instance_count or process_count_per_instance"
            findings.append(Finding("error", _WORKERS, message, fix))
        return nodes, processes
    for given, path, what in ((nodes, _COUNT, "nodes"), (processes, _PROCESSES, "processes on each node")):
        if given is not None and workers % given:
            message = f"{workers} workers do not go evenly with {given} {what}"
            findings.append(Finding("error", path, message, f"set it to {_divisors_near(workers, given)}"))
    if nodes is not None:
        return nodes, max(1, workers // nodes)
    if processes is not None:
        return max(1, workers // processes), processes
    return _placed(scaling, room, findings)


def _placed(scaling: ScalingConfig, room: NodeCapacity | None, findings: list[Finding]) -> tuple[int, int]:
    """By the placement alone."""
    workers = scaling.num_workers
    if scaling.placement_strategy == "STRICT_SPREAD":
        return workers, 1
    if scaling.placement_strategy == "SPREAD":  # as far as there are nodes, which is what Ray does
        nodes = max(one for one in _divisors(workers) if room is None or one <= max(1, room.nodes or workers))
        return nodes, workers // nodes
    hold = None if room is None else _hold(scaling, room)
    if hold is None:
        gpus = _needing(scaling, 1, workers, ()).gpus
        if gpus > _MANY_GPUS and scaling.placement_strategy == "PACK":
            message = f"how many GPUs a node has is not known: one node is asked for, with {gpus} GPUs"
            fix = "set resources.instance_count or instance_type, or the compute's instance_type"
            findings.append(Finding("warning", _WORKERS, message, fix))
        return 1, workers
    each = max(one for one in _divisors(workers) if one <= max(1, hold))
    fewest = math.ceil(workers / max(1, hold))
    if workers // each > fewest and scaling.placement_strategy == "PACK":
        message = f"{workers} workers go evenly only on {workers // each} nodes x {each}, though a node holds {hold}"
        fix = f"{fewest * (workers // fewest)} or {fewest * math.ceil(workers / fewest)} workers need {fewest} nodes"
        findings.append(Finding("warning", _WORKERS, message, fix))
    return workers // each, each


def _strictly(scaling: ScalingConfig, nodes: int, processes: int) -> Iterator[Finding]:
    path = ("scaling", "placement_strategy")
    if scaling.placement_strategy == "STRICT_PACK" and nodes > 1:
        message = f"asks for one node, and {scaling.num_workers} workers are on {nodes} nodes x {processes}"
        yield Finding("error", path, message, "write PACK, or ask for what one node has")
    if scaling.placement_strategy == "STRICT_SPREAD" and processes > 1:
        message = f"asks for a node for each worker, and {processes} of the {scaling.num_workers} would be on each"
        yield Finding("error", path, message, f"write SPREAD, or set resources.instance_count to {scaling.num_workers}")


# -- what a node has ---------------------------------------------------------------------------------------------------


def _hold(scaling: ScalingConfig, room: NodeCapacity) -> int | None:
    """How many workers a node has room for; None where what they need is not known of it."""
    each = scaling.additional_resources_per_worker
    found = []
    if scaling.num_gpus_per_worker and room.gpus is not None:
        share = scaling.num_gpus_per_worker
        found.append(room.gpus * ranks.sharers(share) if share < 1 else int(room.gpus // share))
    if scaling.num_gpus_per_worker and not found:
        return None  # a node's GPUs are what counts
    if scaling.num_cpus_per_worker and room.cpus:
        found.append(int(room.cpus / scaling.num_cpus_per_worker + 1e-9))
    if each.get("memory") and room.memory:
        found.append(int(room.memory / each["memory"]))
    return min(found, default=None)


def _without_room(scaling: ScalingConfig, processes: int, room: NodeCapacity) -> Iterator[Finding]:
    """What the workers of a node need and it does not have."""
    needed = _needing(scaling, 1, processes, ())
    who = f"{_plural(processes, 'worker')} on a node take{'s' * (processes == 1)}"
    has = {"GPU": (needed.gpus, room.gpus), "CPU": (needed.cpus, room.cpus)}
    for name, (wanted, there) in has.items():
        if there is not None and (there or name == "GPU") and wanted > there:
            message = f"{who} {_plural(wanted, name)}, and {room.name} has {_plural(there, name) if there else 'none'}"
            yield Finding("error", _EACH, message, f"fewer workers on each node, less {name}, or other nodes")
    if room.memory and needed.memory > room.memory:
        message = f"{who} {_gib(needed.memory)} of memory, and {room.name} has {_gib(room.memory)}"
        yield Finding("error", _EACH, message, "fewer workers on each node, less memory, or other nodes")


def _of_one_gpu_count(job: CommandJob, scaling: ScalingConfig) -> Iterator[Finding]:
    given, needed = job.resources.gpus_per_process, scaling.num_gpus_per_worker
    if given is not None and given != needed:
        message = f"says {given:g}, and scaling {needed:g} GPUs for each worker"
        yield Finding("error", ("resources", "gpus_per_process"), message, "leave it out")


def _needing(
    scaling: ScalingConfig, nodes: int, processes: int, findings: list[Finding] | tuple[Finding, ...]
) -> Layout:
    gpus = scaling.num_gpus_per_worker or None
    custom = scaling.additional_resources_per_worker
    memory = custom.pop("memory", 0)
    return Layout(
        nodes,
        processes,
        gpus,
        ranks.gpus_for(gpus, processes),
        _up(scaling.num_cpus_per_worker * processes),
        _up(memory * processes),
        {name: _up(amount * processes) for name, amount in custom.items() if not name.startswith("accelerator_type:")},
        tuple(findings),
    )


# -- words and numbers -------------------------------------------------------------------------------------------------


def _up(amount: float) -> int:
    return math.ceil(amount - 1e-9)


def _divisors(number: int) -> list[int]:
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def _divisors_near(number: int, given: int) -> str:
    """`2 or 4`: the divisors of the number next to what was given."""
    divisors = _divisors(number)
    below = max((one for one in divisors if one < given), default=None)
    above = min((one for one in divisors if one > given), default=None)
    return " or ".join(str(one) for one in (below, above) if one is not None)


def _plural(count: float, word: str) -> str:
    return f"{count:g} {word}{'' if count == 1 or 0 < count < 1 else 's'}"


def _gib(size: float) -> str:
    return f"{size / 2**30:.4g} GiB"

"""What a job asks of a machine that is known: GPUs for its processes, and InfiniBand between its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.spec import ranks
from jobsdk.findings import Finding, Path, one_of

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.job.machines import Catalogue, Machine
    from jobsdk.job.scaling import ScalingConfig


def findings(
    plan: Plan, machine: Machine, catalogue: Catalogue, where: Path, scaling: ScalingConfig | None = None
) -> Iterator[Finding]:
    """What does not fit. `where` is the field that names the machine.

    That of a job with `scaling` the workers of a node do not fit is for its layout to say.
    """
    if scaling is None:
        yield from _gpus(plan, machine)
    else:
        yield from _accelerator(scaling, machine, catalogue, where)
    yield from _network(plan, machine, catalogue, where)


def _gpus(plan: Plan, machine: Machine) -> Iterator[Finding]:

    nodes = range(min(plan["nodes"], 64))  # further ones have no more
    processes = max(len(distributions.of(plan).node_processes(node)) for node in nodes)
    needed = ranks.gpus_of(plan, processes)
    has = f"{machine.name} has {_gpus_text(machine.gpus)}"
    count = "1 process" if processes == 1 else f"{processes} processes"
    if needed > machine.gpus:
        message = f"{count} on a node take{'s' * (processes == 1)} {_gpus_text(needed)}, and {has}"
        fix = "lower gpus_per_process or the processes on each node, or take another instance_type"
        yield Finding("error", ("resources", "gpus_per_process"), message, fix)
    elif not needed and 0 < machine.gpus < processes and distributions.of(plan).has_gpu_per_rank:
        message = f"a node has {count}, and {has}: a script that takes cuda:LOCAL_RANK fails"
        path = ("distribution", "process_count_per_instance")
        yield Finding("warning", path, message, f"set it to {machine.gpus}")


def _accelerator(scaling: ScalingConfig, machine: Machine, catalogue: Catalogue, where: Path) -> Iterator[Finding]:
    wanted = scaling.accelerator_type
    if wanted is None or machine.is_with(wanted) is not False:
        return
    found = f"{machine.name} has {machine.gpu or 'no GPU'}, and the job asks for {wanted}"
    fitting = [one.name for one in catalogue if one.is_with(wanted) and one.gpus >= max(1, machine.gpus)]
    fitting = fitting or [one.name for one in catalogue if one.is_with(wanted)]
    known = f"take {one_of(fitting[:4])}" if fitting else "see `jobsdk compute machines`"
    yield Finding("error", where if fitting else ("scaling", "accelerator_type"), found, known)


def _gpus_text(count: int) -> str:
    return f"{count or 'no'} GPU{'' if count == 1 else 's'}"


def _network(plan: Plan, machine: Machine, catalogue: Catalogue, where: Path) -> Iterator[Finding]:
    if plan["nodes"] == 1 or machine.has_infiniband or not distributions.of(plan).communicates:
        return
    if machine.infiniband:
        lacks = f"{machine.name} has InfiniBand without SR-IOV, which NCCL and UCX cannot use"
    else:
        lacks = f"{machine.name} has no InfiniBand"
    message = f"{lacks}: {plan['nodes']} nodes exchange all gradients over Ethernet"
    sibling = catalogue.sibling(machine)
    fix = f"{sibling.name} has it ({sibling.describe()})" if sibling else "take fewer nodes with more processes each"
    yield Finding("warning", where, message, fix)

"""What starts a job's ranks: one module, with one class, for each launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional

from .. import distributions
from .base import Launcher as Launcher

if TYPE_CHECKING:  # a node imports only the module that its job needs
    from ..control.loop import Loop
    from ..spec.facts import Facts
    from ..spec.plan import Plan
    from .abort import Abort as Abort
    from .ray_cluster import Assembly as Assembly
    from .ray_cluster import ClusterFailure as ClusterFailure
    from .ray_cluster import Member

    Cluster = Member


def of(plan: Plan, node_rank: int) -> Launcher:
    """The launcher of one node, for one attempt."""
    if "autotuning" in plan["distribution"]:
        from .deepspeed_tuner import Tuner

        return Tuner(plan, node_rank)
    launcher = plan["distribution"]["launcher"]
    if launcher == "direct":
        from .direct import Direct

        return Direct(plan, node_rank)
    if launcher == "deepspeed":
        from .deepspeed import DeepSpeedLauncher

        return DeepSpeedLauncher(plan, node_rank)
    from .mpirun import Mpirun

    return Mpirun(plan, node_rank)


def cluster_of(plan: Plan, node_rank: int, facts: Facts, sharers: int, token: bytes) -> Optional[Member]:
    """One node's part in the cluster of the job's own that its command needs; None if it needs none.

    `sharers` is how many nodes of the job share this machine on the local compute, 0 elsewhere; `token` is the run's.
    """
    if not distributions.of(plan).has_cluster:
        return None
    from .ray_cluster import Member

    return Member(plan, node_rank, facts, sharers, token)


def assembly_of(
    plan: Plan,
    loop: Loop,
    hosts: Dict[int, str],
    tell: Callable[[Optional[int], Dict[str, Any]], object],
    wait: Callable[[str, List[int]], None],
    failed: Callable[[ClusterFailure, List[int]], None],
) -> Optional[Assembly]:
    """On node 0, how the nodes' parts become the cluster of `cluster_of`; None where there is none."""
    if not distributions.of(plan).has_cluster:
        return None
    from .ray_cluster import Assembly

    return Assembly(loop, plan, hosts, tell, wait, failed)


def clean_up(plan: Plan, token: bytes, inherited: Mapping[str, str]) -> None:
    """Remove what bootstraps that were killed have left of the job's own cluster. `token` was their run's."""
    if distributions.of(plan).has_cluster:
        from ..distributions import ray

        ray.remove(ray.folder(plan, token, inherited))


def watch_launched(loop: Loop, pid: int, inherited: Mapping[str, str], failed: Callable[[str, str], None]) -> None:
    """Check a rank that another's launcher has started, while it runs: `failed(kind, error)` if it is alone.

    A world of size 1 in every rank is no failure for the program, so it must be one here.
    """
    from . import mpirun

    program = mpirun.started_by(inherited)
    if program is not None and program.family:
        from . import mpi_library

        mpi_library.watch_launched(loop, pid, program, failed)

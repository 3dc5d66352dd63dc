"""Which processes a plan has: ranks, nodes, roles and sizes. Pure arithmetic, as in torch.distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import ranks as ranks_

if TYPE_CHECKING:
    from .plan import Plan


class Process(NamedTuple):
    """One process of the job: its global rank, its place on its node, and its role there."""

    rank: int
    local_rank: int
    node_rank: int
    local_size: int
    role: str  # "worker", or TensorFlow's "chief" / "ps"
    role_index: int


def node_processes(plan: Plan, node_rank: int) -> List[Process]:
    """The processes of one node in the order of their local ranks."""
    distribution = plan["distribution"]
    if distribution["type"] == "tensorflow":
        first = sum(len(_tensorflow_roles(plan, node)) for node in range(node_rank))
        roles = _tensorflow_roles(plan, node_rank)
    elif "autotuning" in distribution:  # the tuner starts the processes of its trials itself, and says who they are
        return [Process(0, 0, 0, distribution["processes"], "tuner", 0)] if node_rank == 0 else []
    else:
        first = first_rank(plan, node_rank)
        roles = [("worker", first + local) for local in range(size_of(plan, node_rank))]
    return [
        Process(first + local, local, node_rank, len(roles), role, index) for local, (role, index) in enumerate(roles)
    ]


def size_of(plan: Plan, node_rank: int) -> int:
    """How many processes a node has, of a job whose processes are all alike.

    `per_node` is in the plan where an engine has placed them and not every node has got as many. Over a Ray cluster
    there is one, on its head.
    """
    distribution = plan["distribution"]
    if distribution["type"] == "ray":
        return int(node_rank == 0)
    return int(distribution["per_node"][node_rank] if "per_node" in distribution else distribution["processes"])


def first_rank(plan: Plan, node_rank: int) -> int:
    """The rank of a node's first process."""
    distribution = plan["distribution"]
    if distribution["type"] == "ray":
        return min(1, node_rank)
    if "per_node" in distribution:
        return int(sum(distribution["per_node"][:node_rank]))
    return int(node_rank * distribution["processes"])


def node_of(plan: Plan, rank: int) -> int:
    """The node of a rank; of one that there is not, the one that it would be on."""
    distribution = plan["distribution"]
    if "per_node" not in distribution or distribution["type"] == "ray":
        return rank // max(1, int(distribution["processes"]))
    for node_rank, size in enumerate(distribution["per_node"]):
        if rank < size:
            return node_rank
        rank -= size
    return len(distribution["per_node"])


def gpus_of(plan: Plan, processes: int) -> int:
    """How many GPUs so many processes of one node take, 0 where the job does not say; of 0.5 each two share one."""
    return gpus_for(plan["gpus_per_process"], processes)


def gpus_for(gpus_per_process: Optional[float], processes: int) -> int:
    """The same of GPUs for each process."""
    count = gpus_per_process or 0
    return -(-processes // sharers(count)) if 0 < count < 1 else int(count) * processes


def sharers(share: float) -> int:
    """How many processes have room on one GPU of which each takes a share below 1: 3 of 0.3."""
    return int(1 / share + 1e-6)


def processes(plan: Plan) -> Iterator[Process]:
    """Every process of the job in the order of global ranks."""
    for node_rank in range(plan["nodes"]):
        yield from node_processes(plan, node_rank)


def world_size(plan: Plan) -> int:
    """The number of processes of the job, all roles counted."""
    distribution = plan["distribution"]
    if distribution["type"] == "tensorflow":
        return int(distribution["workers"] + distribution["parameter_servers"] + bool(distribution["chief"]))
    if "autotuning" in distribution:
        return 1
    return first_rank(plan, plan["nodes"])


def has_shell(plan: Plan) -> bool:
    """Whether a job's nodes reach one another by `ssh`: launchers of MPI and DeepSpeed ask for it."""
    return plan["distribution"]["type"] in ("mpi", "deepspeed") and plan["nodes"] > 1


def has_cluster(plan: Plan) -> bool:
    """Whether a job's nodes form a Ray cluster; with an `address` it uses one that is there."""
    return plan["distribution"]["type"] == "ray" and "address" not in plan["distribution"]


def _tensorflow_roles(plan: Plan, node_rank: int) -> List[Any]:
    """(role, index) of each TensorFlow task of a node.

    Workers go to the nodes in order, parameter servers to the nodes after the last worker and round again, so that
    with as many workers as nodes server 0 shares node 0 with worker 0, as on Azure ML; a chief is extra, on node 0.
    """
    nodes, distribution = plan["nodes"], plan["distribution"]
    workers, servers = distribution["workers"], distribution["parameter_servers"]
    roles = [("chief", 0)] if distribution["chief"] and node_rank == 0 else []
    roles += [("worker", index) for index in range(node_rank, workers, nodes)]
    roles += [("ps", index) for index in range((node_rank - workers) % nodes, servers, nodes)]
    return roles


class Rank(NamedTuple):
    """A rank to be started."""

    process: ranks_.Process
    environment: Dict[str, str]
    log: str


#: A rank's process: its pid, and the node that started it, or the host where a launcher did.
ProcessLocation = Tuple[int, Union[int, str, None]]

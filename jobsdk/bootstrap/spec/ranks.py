"""A process of a job, and how many GPUs processes take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Optional, Tuple, Union

if TYPE_CHECKING:
    from .plan import Plan


class Process:
    """One process of the job: its global rank, its place on its node, and its role there."""

    __slots__ = ("local_rank", "local_size", "node_rank", "rank", "role", "role_index")

    def __init__(self, rank: int, local_rank: int, node_rank: int, local_size: int, role: str, role_index: int) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.node_rank = node_rank
        self.local_size = local_size
        self.role = role  # "worker", or TensorFlow's "chief" / "ps"
        self.role_index = role_index


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


class Rank:
    """A rank to be started."""

    __slots__ = ("environment", "log", "process")  # a NamedTuple would cost every start a quarter of a millisecond

    def __init__(self, process: Process, environment: Dict[str, str], log: str) -> None:
        self.process = process
        self.environment = environment
        self.log = log


#: A rank's process: its pid, and the node that started it, or the host where a launcher did.
ProcessLocation = Tuple[int, Union[int, str, None]]

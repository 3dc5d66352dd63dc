"""The rank of this process, as its launcher tells it. One small function of the environment for each launcher.

An environment may hold what an outer launcher has said, too: torchrun's processes in a step of Slurm, mpirun's in a job
of jobsdk. So the order is that in which launchers are found within each other, the innermost first.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Mapping, NamedTuple, Optional

from .errors import TrainError

Environment = Mapping[str, str]

_ROLES = ("chief", "master", "worker", "ps")  # of TensorFlow, in the order of their ranks


class RankInfo(NamedTuple):
    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int


class OfRay(NamedTuple):
    """What Ray Train says of a worker of its."""

    place: RankInfo
    experiment: Optional[str]


def of(environment: Environment) -> RankInfo:
    """The place of the process with this environment. Raises TrainError for what should be a number and is none."""
    for detector in (_of_torchrun, _of_open_mpi, _of_pmi, _of_variables, _of_slurm, _of_tensorflow):
        found = detector(environment)
        if found is not None:
            return found
    return RankInfo("alone", 0, 1, 0, 1, 0, 1)


def of_ray_train() -> Optional[OfRay]:
    """None unless this process is a worker of Ray Train: only then has it imported that."""
    ray_train = sys.modules.get("ray.train")
    if ray_train is None:
        return None
    try:
        context = ray_train.get_context()
        rank, size = context.get_world_rank(), context.get_world_size()
        if not isinstance(rank, int) or not isinstance(size, int):
            return None  # an older Ray outside of its workers
        local_rank, local_size = context.get_local_rank(), context.get_local_world_size()
        node, experiment = context.get_node_rank(), context.get_experiment_name()
    except (RuntimeError, AttributeError):  # how it says that this is none
        return None
    nodes = -(-size // max(1, local_size))  # it does not say how many
    return OfRay(RankInfo("ray train", rank, size, local_rank, local_size, node, max(nodes, node + 1)), experiment)


# -- launchers, the innermost first --------------------------------------------------------------------------------


def _of_torchrun(environment: Environment) -> Optional[RankInfo]:
    """torchrun and all that use it; DeepSpeed's launcher, which sets CROSS_RANK as well."""
    if "TORCHELASTIC_RUN_ID" in environment or "CROSS_RANK" in environment:
        return _of_torch("torchrun", environment)
    return None


def _of_open_mpi(environment: Environment) -> Optional[RankInfo]:
    found = _of_mpi(environment, "open mpi", "OMPI_COMM_WORLD_", "LOCAL_RANK", "LOCAL_SIZE")
    # A program that mpirun has started once, to start all others by itself.
    if found is not None and found.size == 1 and (number(environment, "WORLD_SIZE") or 1) > 1:
        return None
    return found


def _of_pmi(environment: Environment) -> Optional[RankInfo]:
    """Hydra, of MPICH and Intel MPI; Cray's PALS; Slurm with `--mpi=pmi2`."""
    for prefix in ("PMI_", "MV2_COMM_WORLD_"):
        found = _of_mpi(environment, "hydra", prefix, "LOCAL_RANK", "LOCAL_SIZE")
        if found is not None:
            return found
    return None


def _of_mpi(environment: Environment, launcher: str, prefix: str, rank_name: str, size_name: str) -> Optional[RankInfo]:
    rank, size = number(environment, prefix + "RANK"), number(environment, prefix + "SIZE")
    if rank is None or size is None:
        return None
    slurm = _of_slurm(environment) if launcher == "hydra" else None
    local_rank = _first(environment, prefix + rank_name, "MPI_LOCALRANKID", "PALS_LOCAL_RANKID")
    local_size = _first(environment, prefix + size_name, "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE")
    node = nodes = None
    if local_rank is None and slurm is not None and (slurm.rank, slurm.size) == (rank, size):
        local_rank, local_size, node, nodes = slurm[3:]
    if number(environment, "RANK") == rank and number(environment, "WORLD_SIZE") == size:  # as jobsdk completes it
        node, nodes = number(environment, "NODE_RANK"), number(environment, "NODE_COUNT")
    return _completed(launcher, rank, size, local_rank, local_size, node, nodes)


def _of_variables(environment: Environment) -> Optional[RankInfo]:
    """RANK and WORLD_SIZE: jobsdk, Azure ML, Kubeflow, Lightning, or the user's own hand."""
    return _of_torch("environment", environment)


def _of_torch(launcher: str, environment: Environment) -> Optional[RankInfo]:
    rank, size = number(environment, "RANK"), number(environment, "WORLD_SIZE")
    if rank is None or size is None:
        return None
    if "TORCHELASTIC_RUN_ID" in environment:
        node, nodes = _first(environment, "GROUP_RANK", "NODE_RANK"), number(environment, "GROUP_WORLD_SIZE")
    else:
        node = _first(environment, "CROSS_RANK", "NODE_RANK", "GROUP_RANK", "AZUREML_CR_NODE_RANK")
        nodes = _first(environment, "CROSS_SIZE", "NODE_COUNT", "AZUREML_NODE_COUNT")
    names = ("LOCAL_SIZE", "LOCAL_WORLD_SIZE") if "CROSS_RANK" in environment else ("LOCAL_WORLD_SIZE",)
    return _completed(launcher, rank, size, number(environment, "LOCAL_RANK"), _first(environment, *names), node, nodes)


def _of_slurm(environment: Environment) -> Optional[RankInfo]:
    """A task of a step that srun has started. A batch script has variables of the same names, and is no task."""
    size = number(environment, "SLURM_STEP_NUM_TASKS")
    rank = number(environment, "SLURM_PROCID")
    if size is None or rank is None:
        return None
    node, nodes = number(environment, "SLURM_NODEID"), number(environment, "SLURM_STEP_NUM_NODES")
    local_size = _tasks_of(environment.get("SLURM_STEP_TASKS_PER_NODE", ""), node or 0)
    return _completed("slurm", rank, size, number(environment, "SLURM_LOCALID"), local_size, node, nodes)


def _tasks_of(text: str, node: int) -> Optional[int]:
    """How many tasks a node has, of a list as `2(x3),1`."""
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        if node < int(times or 1):
            return int(count)
        node -= int(times or 1)
    return None


def _of_tensorflow(environment: Environment) -> Optional[RankInfo]:
    """TF_CONFIG: the chief, then the workers, then the parameter servers; each on a machine of its own, as far as it
    says."""
    try:
        config = json.loads(environment.get("TF_CONFIG") or "{}")
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        roles = [role for role in _ROLES if role in cluster]
        rank = sum(len(cluster[role]) for role in roles[: roles.index(task["type"])]) + int(task["index"])
        size = sum(len(cluster[role]) for role in roles)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return _completed("tensorflow", rank, size, None, None, None, None)


# -- what they leave out -------------------------------------------------------------------------------------------


def _completed(
    launcher: str,
    rank: int,
    size: int,
    local_rank: Optional[int],
    local_size: Optional[int],
    node: Optional[int],
    nodes: Optional[int],
) -> RankInfo:
    """What a launcher does not say follows from the rest, if all nodes have as many processes."""
    if local_rank is None and local_size is None and nodes is None:
        local_size = 1  # one for each container
    if local_size is None:
        before = rank - (local_rank or 0)  # the processes of the nodes before
        local_size = size // nodes if nodes else before // node if node else before or size
    local_size = max(1, local_size)
    if local_rank is None:
        local_rank = rank % local_size
    if node is None:
        node = rank // local_size
    if nodes is None:
        nodes = max(node + 1, -(-size // local_size))
    return RankInfo(launcher, rank, size, local_rank, local_size, node, nodes)


def number(environment: Environment, name: str) -> Optional[int]:
    """None where it is not set, or empty. Raises TrainError for what is no number."""
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,9}", text):
        raise TrainError("%s must be a number, not %r. Fix: unset it, or see what sets it" % (name, text))
    return int(text)


def _first(environment: Environment, *names: str) -> Optional[int]:
    """The number in the first of the variables that is set."""
    return next((found for found in (number(environment, name) for name in names) if found is not None), None)

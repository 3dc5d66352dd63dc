"""The devices of this process: which of those that it sees are its own."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, List, Mapping, NamedTuple, Optional, Sequence

from . import context, place
from .errors import TrainError

if TYPE_CHECKING:
    import torch

#: What hides devices from a process, by torch's name for their kind.
_MASKS = {
    "cuda": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK",),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
}
SHARE = "JOBSDK_GPUS_PER_PROCESS"


def get_device() -> torch.device:
    """Return the first device of this process. Raises the errors of `get_devices`."""
    return get_devices()[0]


def get_devices() -> List[torch.device]:
    """Return the devices of this process, at least one: its GPUs, else Apple's `mps`, else `cpu`.

    Numbers are torch's numbers of the visible devices. A process that sees only its own devices gets all of them. One
    that sees all devices of its node gets its share, by its local rank. A worker of Ray Train gets what Ray assigned.
    Raises TrainError if a node has more processes than GPUs, and no setting makes them share.
    """
    import torch

    kind, count = _seen(torch)
    if kind is None:
        return [torch.device(_without(torch))]
    environment, here = os.environ, context.get_context()
    masked = [environment[name] for name in _MASKS[kind] if environment.get(name)]
    given = _of_ray(here)
    if given is not None:
        indices = of_ray(masked[0] if masked else None, given)
        if not indices:
            return [torch.device("cpu")]
    else:
        share = share_of(environment, here)
        indices = choose(Seen(count, bool(masked)), here.local_rank, here.local_world_size, share)
    return [torch.device(kind, index) for index in indices]


def share_of(environment: Mapping[str, str], here: context.Context) -> Optional[float]:
    """How many GPUs each process of the node has, where that is known. Pure.

    A launcher that the job's command has started itself makes other processes than those that were meant.
    """
    text = environment.get(SHARE, "")
    is_own = environment.get("TORCHELASTIC_RUN_ID") in (None, environment.get("JOBSDK_RUN_NAME"))
    if text and is_own and environment.get("LOCAL_WORLD_SIZE") == str(here.local_world_size):
        return float(text)
    bound = re.search(r"gpu:per_task:(\d+)", environment.get("SLURMD_TRES_BIND", ""))
    text = bound[1] if bound else environment.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]  # 2, or a100:2
    return float(text) if here.launcher == "slurm" and text.isdigit() else None


class Seen(NamedTuple):
    """How many devices a process sees, and whether a variable hides others from it."""

    visible: int
    is_masked: bool


def choose(seen: Seen, local_rank: int, local_size: int, share: Optional[float] = None) -> List[int]:
    """Which of the devices that it sees, at least one, are those of one of `local_size` processes of a node. Pure.

    `share` is how many belong to each: a whole number, or a part of one that several have in common.
    """
    count = seen.visible
    if share:
        sharers = int(1 / share + 1e-6) if share < 1 else 1  # three of 0.3 have room on one, as in the contract
        own = max(1, int(share))
        needed = -(-local_size // sharers) * own
        if count <= own:  # its own alone
            return list(range(count))
        if count >= needed:
            first = local_rank // sharers * own
            return list(range(first, first + own))
        raise TrainError(_short(local_size, "%g GPU each" % share, count))
    if local_size == 1:
        return list(range(count))
    if count == 1 and seen.is_masked:  # its own, hidden from the others
        return [0]
    if local_size > count:
        raise TrainError(_short(local_size, "a GPU each", count))
    return [local_rank]


def of_ray(mask: Optional[str], given: Sequence[Any]) -> List[int]:
    """Where the devices that Ray has given a worker stand among those that it sees, which are those of all workers of
    its node. Pure. Raises TrainError if they are not among them."""
    ids = [str(one) for one in given]
    if mask is None or not ids:
        return sorted(int(one) for one in ids if one.isdigit())
    entries = [entry.strip() for entry in mask.split(",")]
    missing = [one for one in ids if one not in entries]
    if missing:
        raise TrainError(
            "Ray has given this worker the GPU %s, but CUDA_VISIBLE_DEVICES is %r. "
            "Fix: leave CUDA_VISIBLE_DEVICES to Ray" % (", ".join(missing), mask)
        )
    return sorted(entries.index(one) for one in ids)


def _short(processes: int, what: str, count: int) -> str:
    return (
        "%d processes of this node want %s, and see %d. Fix: start fewer, give the job gpus_per_process: 0.5 (or less) "
        "if they are to share, or set CUDA_VISIBLE_DEVICES to nothing to train on the CPU" % (processes, what, count)
    )


def _of_ray(here: context.Context) -> Optional[List[Any]]:
    """The ids of the GPUs that Ray has given a worker of Ray Train; None elsewhere. Another process of Ray's sees its
    own alone."""
    if here.launcher != "ray train" or place.of_ray_train() is None:
        return None
    return list(sys.modules["ray"].get_gpu_ids())


def _seen(torch: Any) -> Any:
    """(kind, how many) of the accelerators that this process sees; (None, 0) where it sees none."""
    for kind in _MASKS:  # torch.npu is there once torch_npu has been imported
        module = getattr(torch, kind, None)
        if module is not None and module.is_available() and module.device_count() > 0:
            return kind, int(module.device_count())
    return None, 0


def _without(torch: Any) -> str:
    mps = getattr(torch.backends, "mps", None)
    return "mps" if mps is not None and mps.is_available() else "cpu"

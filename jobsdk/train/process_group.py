"""torch's process group of the job's processes: with the backend, the device, the interface and the time that fit."""

from __future__ import annotations

import inspect
import os
from datetime import timedelta
from typing import Any, Dict, List, Optional, Union

from . import devices, interfaces
from .context import Context, get_context
from .errors import TrainError

_BACKEND, _METHOD, _TIMEOUT = "JOBSDK_TORCH_BACKEND", "JOBSDK_TORCH_INIT_METHOD", "JOBSDK_TORCH_TIMEOUT_S"
_TELL = {
    "open mpi": "mpirun -x MASTER_ADDR=<host of rank 0> -x MASTER_PORT=29500 ...",
    "hydra": "mpiexec -genv MASTER_ADDR <host of rank 0> -genv MASTER_PORT 29500 ...",
    "slurm": "before srun, export MASTER_PORT=29500 MASTER_ADDR=$(scontrol show hostnames | head -1)",
}

_groups: Dict[str, Any] = {}  # a gloo group for barriers with a time limit, where the job's own is none

Seconds = Union[float, timedelta]


def init_process_group(backend: Optional[str] = None, timeout: Optional[Seconds] = None) -> None:
    """Create torch's process group of all processes of the job, and select this process's GPU.

    The default `backend` is the job's (`TorchConfig`), else nccl if this process has its own GPU, else gloo. `timeout`,
    in seconds, applies to joining and to each collective; the default is torch's. A single process forms a group of
    one. A second call does nothing.

    Raises TrainError for an unknown backend, a missing address of rank 0, and processes that do not join in time.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise TrainError("this torch (%s) is built without torch.distributed. Fix: install another" % torch.__version__)
    if dist.is_initialized():
        there = dist.get_backend()
        if backend is not None and backend != there:
            raise TrainError(
                "there is a process group of backend %s already, not %s. "
                "Fix: call destroy_process_group() first" % (there, backend)
            )
        return
    here = get_context()
    chosen = backend or os.environ.get(_BACKEND) or None
    if chosen is not None and not isinstance(chosen, str):
        raise TrainError("backend must be a name, not %r. Fix: 'gloo', or leave it out" % (chosen,))
    own = _own(chosen)
    chosen = chosen or _fitting(own, here)
    _check(chosen, own, dist)
    arguments: Dict[str, Any] = {"backend": chosen, "rank": here.rank, "world_size": here.world_size}
    limit = _limit(timeout)
    if limit is not None:
        arguments["timeout"] = limit
    if own and own[0].type == "cuda":
        torch.cuda.set_device(own[0])
        if "nccl" in chosen and "device_id" in inspect.signature(dist.init_process_group).parameters:
            arguments["device_id"] = own[0]  # what is wrong with a connection shows now, not in the first collective
    arguments.update(_where(here, dist))
    try:
        dist.init_process_group(**arguments)
    except (RuntimeError, ValueError, OSError) as error:
        raise _told(error, here, limit) from error


def barrier(timeout: Optional[Seconds] = None) -> None:
    """Wait until all processes reach this call. A single process without a group does not wait.

    All processes must give the same `timeout`, in seconds. The TrainError names the processes that are missing then.
    Also raises TrainError for several processes without a group.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        if get_context().world_size > 1:
            raise TrainError("barrier() needs a process group. Fix: call init_process_group() first")
        return
    if timeout is None:
        dist.barrier()
        return
    limit = _seconds("timeout", timeout)
    try:
        dist.monitored_barrier(_gloo(dist), timeout=limit, wait_all_ranks=True)
    except RuntimeError as error:
        text = "not all ranks came to the barrier within %g s: %s. Fix: see what the others do (`jobsdk job stacks`)"
        raise TrainError(text % (limit.total_seconds(), _first_line(error, 250))) from error


def destroy_process_group() -> None:
    """Destroy the process group, if there is one."""
    import torch.distributed as dist

    _groups.clear()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _own(backend: Optional[str]) -> List[Any]:
    """This process's devices. Who says gloo may have more processes than GPUs, and none that is their own."""
    try:
        return devices.get_devices()
    except TrainError:
        if backend is None or "nccl" in backend:
            raise
        return []


def _fitting(own: List[Any], here: Context) -> str:
    """Two processes on one GPU are more than NCCL takes."""
    kind = own[0].type
    share = devices.share_of(os.environ, here)
    if kind == "cuda":
        return "gloo" if share is not None and share < 1 and here.local_world_size > 1 else "nccl"
    return {"xpu": "xccl", "npu": "hccl"}.get(kind, "gloo")


def _check(backend: str, own: List[Any], dist: Any) -> None:
    """Refuse what torch would refuse in more words, or accept and fail at later."""
    known = [name for name in getattr(dist.Backend, "backend_list", ()) if name != "undefined"]
    for name in (part.rpartition(":")[2].strip().lower() for part in backend.split(",")):
        if known and name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 1)
            hint = "did you mean %r?" % near[0] if near else "one of " + ", ".join(known)
            raise TrainError("there is no backend %r for torch.distributed. Fix: %s" % (name, hint))
        missing = "" if getattr(dist, "is_%s_available" % name, lambda: True)() else "this torch is built without it"
        if backend == "nccl" and not missing and own[0].type != "cuda":
            missing = "this process sees no GPU"
        if missing:
            raise TrainError("the backend %s cannot be used: %s. Fix: gloo, or leave it out" % (name, missing))


def _limit(given: Optional[Seconds]) -> Optional[timedelta]:
    if given is not None:
        return _seconds("timeout", given)
    text = os.environ.get(_TIMEOUT, "")
    return _seconds(_TIMEOUT, text) if text else None


def _seconds(name: str, given: Any) -> timedelta:
    try:
        limit = given if isinstance(given, timedelta) else timedelta(seconds=float(given))
    except (TypeError, ValueError, OverflowError):
        limit = timedelta(0)
    if limit <= timedelta(0):
        raise TrainError("%s must be a number of seconds above 0, not %r. Fix: 600" % (name, given))
    return limit


def _where(here: Context, dist: Any) -> Dict[str, Any]:
    """How the processes find each other."""
    method = os.environ.get(_METHOD) or "env"
    if method not in ("env", "tcp"):
        raise TrainError("%s must be env or tcp, not %r" % (_METHOD, method))
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if here.world_size == 1 and not (address and port):
        return {"store": dist.HashStore()}
    missing = [name for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port)) if not value]
    if missing:
        how = _TELL.get(here.launcher, "set them to a host and a free port of it that all processes reach")
        raise TrainError(
            "rank %d of %d does not know where rank 0 is: %s not set by %s. Fix: %s; a job of jobsdk has them"
            % (here.rank, here.world_size, " and ".join(missing), here.launcher, how)
        )
    interfaces.settle(os.environ, address)
    host = "[%s]" % address if ":" in address else address
    # env:// also uses what torchrun says of its own store.
    return {"init_method": "tcp://%s:%s" % (host, port) if method == "tcp" else "env://"}


def _told(error: Exception, here: Context, limit: Optional[timedelta]) -> TrainError:
    where = "%s:%s" % (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    within = " within %g s" % limit.total_seconds() if limit is not None else ""
    return TrainError(
        "rank %d of %d could not join the process group at %s%s: %s. Fix: see that all ranks run and come to "
        "init_process_group" % (here.rank, here.world_size, where, within, _first_line(error, 180))
    )


def _first_line(error: Exception, most: int) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:most]


def _gloo(dist: Any) -> Any:
    """A group in which a barrier knows who has not come; None for the job's own."""
    if dist.get_backend() == "gloo":
        return None
    if "gloo" not in _groups:
        _groups["gloo"] = dist.new_group(backend="gloo")
    return _groups["gloo"]

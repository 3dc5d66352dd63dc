"""Checkpoints that are written beside the training: a rank waits only until its state is copied to memory."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import threading
from typing import Any, Mapping, Optional

from . import checkpoints, reporting, storage
from .context import Context, get_context, is_url
from .errors import TrainError

_TORCH, _PICKLE = "rank-%05d.pt", "rank-%05d.pickle"


class Checkpoints:
    """Saves a training's state while the training continues, and loads it after a restart.

        checkpoints = Checkpoints(keep=3, best="loss")
        state = checkpoints.load() or {"step": 0}
        ...
        checkpoints.save({"model": model.state_dict(), "step": step}, {"loss": loss})

    Where all ranks have the same state, only rank 0 calls `save`. Where each has a state of its own, all do. All ranks
    call `load`. With `sharded`, all ranks call both, and `torch.distributed.checkpoint` writes and reads the state: a
    job of another world size can then load it, too. Call `wait()` before the script ends, or use a `with` block.

    `keep` is how many of the newest checkpoints stay, None for all. The one with the best value of the metric `best`
    stays as well: the least, or the greatest with mode="max". The rank that completes a checkpoint deletes the others.
    """

    def __init__(
        self, *, keep: Optional[int] = None, best: Optional[str] = None, mode: str = "min", sharded: bool = False
    ) -> None:
        if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
            raise TrainError("keep must be a whole number from 1, or None for all, not %r" % (keep,))
        if mode not in ("min", "max"):
            raise TrainError("mode must be 'min' or 'max', not %r" % (mode,))
        if best is not None and keep is None:
            raise TrainError(
                "best has no effect without keep: all checkpoints stay. Fix: Checkpoints(keep=3, best=...)"
            )
        self._retention = checkpoints.Retention(keep, 0 if best is None else 1, best, mode)
        self._sharded = sharded
        self._group: Any = None
        self._thread: Optional[threading.Thread] = None
        self._error: Optional[BaseException] = None

    def save(self, state: Any, metrics: Optional[Mapping[str, Any]] = None, *, step: Optional[int] = None) -> None:
        """Save `state`: mappings and lists of tensors, arrays and whatever pickle can write.

        Returns when it is copied to the CPU's memory. Waits first for the checkpoint before, if that is still being
        written, so that at most one copy is in memory. `metrics` and `step` are reported as by `report()`.

        Raises TrainError, and what went wrong with the checkpoint before, such as OSError on a full disk.
        """
        self.wait()
        here = get_context()
        known = checkpoints.state_of(here)
        if self._retention.newest is not None:
            known.retention = self._retention
        values, step = reporting.begin(metrics or {}, step, here)
        reporting.end(here, values, step)
        name, order = checkpoints.next_name(here)
        if self._sharded:
            future = self._begin_sharded(state, known.storage.path(name), here)
            work = lambda: self._end_sharded(future, here, name, order, step, values)  # noqa: E731
        else:
            copied = _copied(state)
            work = lambda: self._write(copied, here, name, order, step, values)  # noqa: E731
        self._thread = threading.Thread(target=self._run, args=(work,), name="jobsdk-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last checkpoint is written. Raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def load(self, state: Any = None, *, path: Optional[str] = None) -> Any:
        """The state in the newest checkpoint whose files are sound, from before the last restart; None without one.

        A rank gets what it saved itself, or the only state that was saved. `path` names another run's checkpoint
        instead. With `sharded`, `state` must be a state of the present model; its tensors are replaced in place.
        Tensors come back on the CPU. Raises TrainError if the checkpoint has no part for this rank.
        """
        self.wait()
        here = get_context()
        if path is None:
            found = checkpoints.newest_sound(here)
            if found is None:
                return None
            path = found[1]
        if not self._sharded:
            return _read(path, here)
        if state is None:
            raise TrainError("a sharded state is loaded into the present one. Fix: load({'model': model.state_dict()})")
        from torch.distributed.checkpoint import state_dict_loader

        state_dict_loader.load(state, checkpoint_id=path, process_group=self._own_group())
        return state

    # -- in the thread -------------------------------------------------------------------------------------------

    def _run(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:  # the next call raises it
            self._error = error
            sys.stderr.write("Checkpoints.save(): %s: %s\n" % (type(error).__name__, error))

    def _write(self, state: Any, here: Context, name: str, order: int, step: int, values: Mapping[str, Any]) -> None:
        kept = checkpoints.state_of(here).storage
        with kept.staging(here.rank) as staged:
            if "torch" in sys.modules:
                sys.modules["torch"].save(state, os.path.join(staged, _TORCH % here.rank))
            else:
                with open(os.path.join(staged, _PICKLE % here.rank), "wb") as file:
                    pickle.dump(state, file, protocol=4)
            found = storage.sums(staged)
            kept.put(staged, name)
        self._note(here, name, order, step, values, found)

    def _end_sharded(
        self, future: Any, here: Context, name: str, order: int, step: int, values: Mapping[str, Any]
    ) -> None:
        future.result()
        prefixes = ("__%d_" % here.rank, ".metadata") if here.rank == 0 else ("__%d_" % here.rank,)
        found = storage.sums(checkpoints.state_of(here).storage.path(name), prefixes)
        self._note(here, name, order, step, values, found)

    def _note(
        self, here: Context, name: str, order: int, step: int, values: Mapping[str, Any], found: storage.Sums
    ) -> None:
        made = checkpoints.note(here, name, order, step, found, values)
        reporting.note_checkpoint(here, step, made.path)

    # -- torch's own ---------------------------------------------------------------------------------------------

    def _begin_sharded(self, state: Any, path: str, here: Context) -> Any:
        if is_url(path):
            fix = "set JOBSDK_STORAGE_PATH to a folder that all nodes see"
            raise TrainError("a sharded checkpoint cannot be kept in %s. Fix: %s" % (path, fix))
        from torch.distributed.checkpoint import state_dict_saver

        return state_dict_saver.async_save(state, checkpoint_id=path, process_group=self._own_group())

    def _own_group(self) -> Any:
        """A process group of the CPUs: what is written in the background must not disturb the training's own."""
        import torch.distributed as dist

        if self._group is None:
            if not dist.is_initialized():
                raise TrainError("a sharded checkpoint needs the process group. Fix: call init_process_group() first")
            self._group = dist.new_group(backend="gloo")
        return self._group


def _read(path: str, here: Context) -> Any:
    own = [os.path.join(path, form % here.rank) for form in (_TORCH, _PICKLE)]
    there = [file for file in own if os.path.exists(file)] or sorted(
        file for file in storage.files(path) if file.endswith((".pt", ".pickle"))
    )
    if len(there) != 1:
        fix = "start as many processes as before, or save with Checkpoints(sharded=True)"
        text = "%s has the states of %d ranks, and none of rank %d of %d. Fix: %s"
        raise TrainError(text % (path, len(there), here.rank, here.world_size, fix))
    if there[0].endswith(".pt"):
        import torch

        return torch.load(there[0], map_location="cpu", weights_only=False)  # nosec B614 # the job wrote it itself
    with open(there[0], "rb") as file:
        return pickle.load(file)  # nosec B301 # the job wrote it itself


def _copied(value: Any) -> Any:
    """A copy in the CPU's memory that no later step changes."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _copied(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(one) for one in value)
    return copy.deepcopy(value)

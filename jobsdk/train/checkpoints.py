"""Checkpoints: folders that ranks report, kept with the run, and found again when the job is started again."""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Union

from .context import Context, get_context
from .errors import TrainError

_METADATA = ".metadata.json"
_FOLDER, _PARTS = "checkpoints", ".parts"

Path = Union[str, "os.PathLike[str]"]

_kept: Dict[str, int] = {}  # folder of checkpoints -> how many this process has kept there


class Checkpoint:
    """A folder with what a training needs to go on, by Ray Train's names. `path` is where it lies."""

    def __init__(self, path: Path) -> None:
        self.path = os.path.abspath(os.path.expanduser(os.fspath(path)))

    def __repr__(self) -> str:
        return "Checkpoint(path=%s)" % self.path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @classmethod
    def from_directory(cls, path: Path) -> Checkpoint:
        """The checkpoint in a folder; it is not copied."""
        return cls(path)

    def to_directory(self, path: Optional[Path] = None) -> str:
        """Copy it to a folder, a temporary one unless given; that folder."""
        if path is None:
            import tempfile

            path = tempfile.mkdtemp(prefix="checkpoint-")
        target = os.path.abspath(os.fspath(path))
        _copy(self.path, target)
        return target

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Its own folder, to be read."""
        yield self.path

    def get_metadata(self) -> Dict[str, Any]:
        """What `set_metadata` has kept with it; empty without."""
        try:
            with open(os.path.join(self.path, _METADATA), encoding="utf-8") as file:
                found: Dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return {}
        return found

    def set_metadata(self, metadata: Dict[str, Any]) -> None:
        """Keep a small mapping, of what JSON can hold, with it."""
        _write_json(os.path.join(self.path, _METADATA), metadata)

    def update_metadata(self, metadata: Dict[str, Any]) -> None:
        self.set_metadata({**self.get_metadata(), **metadata})


def get_checkpoint() -> Optional[Checkpoint]:
    """The newest whole checkpoint of this job, from before its last restart; None where there is none.

    Those that were reported since count for a process once it has reported one itself, so that all processes of a start
    begin with the same. A process finds what its own node sees.
    """
    found = newest(get_context())
    return found.checkpoint if found else None


class Kept(NamedTuple):
    """A checkpoint that is kept; `step` as it was reported."""

    checkpoint: Checkpoint
    step: int


def newest(here: Context) -> Optional[Kept]:
    """The newest whole one that counts for this process."""
    job, complete = _job(here), None  # type: str, Optional[_Parts]
    for parts in _all(here):
        if parts.job != job or (parts.restart >= here.restart_count and _folder(here) not in _kept):
            continue
        if complete is None or parts.world != complete.world or parts.ranks >= complete.ranks:
            complete = parts
    if complete is None:
        return None
    return Kept(Checkpoint(os.path.join(_folder(here), complete.name)), complete.step)


def keep(source: Any, here: Context, step: int, name: Optional[str] = None) -> Checkpoint:
    """Copy a checkpoint (ours, Ray's, or a folder's path) to the run's, where that of other ranks joins it. It is there
    as a whole or not at all. Raises TrainError, OSError."""
    given = getattr(source, "path", source)
    path = os.path.abspath(os.fspath(given)) if isinstance(given, (str, os.PathLike)) else None
    if path is None or not os.path.isdir(path):
        what = path if path is not None else "of type %s" % type(source).__name__
        fix = "write it into a folder, and report(..., Checkpoint.from_directory(FOLDER))"
        raise TrainError("the checkpoint %s is no folder. Fix: %s" % (what, fix))
    if name is not None and (not re.fullmatch(r"\w[\w.=+-]*", name)):
        raise TrainError("checkpoint_dir_name must be one name of letters, digits, -, _, =, not %r" % name)
    folder = _folder(here)
    if folder not in _kept:  # after those of earlier starts
        start = _job(here), here.restart_count
        earlier = [parts.order for parts in _all(here) if (parts.job, parts.restart) != start]
        _kept[folder] = max(earlier, default=-1) + 1
    index = _kept[folder]
    name = name or "checkpoint_%06d" % index
    target = os.path.join(folder, name)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        fix = "name a folder that the ranks can write: storage_path, or JOBSDK_STORAGE_PATH"
        raise TrainError("no checkpoint can be kept in %s: %s. Fix: %s" % (folder, error.strerror, fix)) from error
    if path != target:
        import shutil

        partly = os.path.join(folder, ".partly-%d-%d" % (here.rank, os.getpid()))
        shutil.rmtree(partly, ignore_errors=True)  # a container's processes have the same numbers at each start
        try:
            _copy(path, partly)
            _put(partly, target)
        finally:
            shutil.rmtree(partly, ignore_errors=True)
    part = {"order": index, "step": step, "world": here.world_size, "job": _job(here), "restart": here.restart_count}
    os.makedirs(os.path.join(folder, _PARTS, name), exist_ok=True)
    _write_json(os.path.join(folder, _PARTS, name, "rank-%d.json" % here.rank), part)
    _kept[folder] = index + 1
    return Checkpoint(target)


class _Parts(NamedTuple):
    """What is known of one: the ranks that have put their part in."""

    name: str
    order: int
    step: int
    world: int
    job: str
    restart: int
    ranks: FrozenSet[int]


def _all(here: Context) -> List[_Parts]:
    """All checkpoints, the oldest first."""
    folder = os.path.join(_folder(here), _PARTS)
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        parts = {}
        for file_name in os.listdir(os.path.join(folder, name)):
            of_rank = re.fullmatch(r"rank-(\d+)\.json", file_name)
            if of_rank:
                with open(os.path.join(folder, name, file_name), encoding="utf-8") as file:
                    parts[int(of_rank[1])] = json.load(file)
        if parts and os.path.isdir(os.path.join(_folder(here), name)):
            found.append(_Parts(name, ranks=frozenset(parts), **parts[min(parts)]))
    return sorted(found, key=lambda parts: (parts.order, parts.name))


def _job(here: Context) -> str:
    """What all processes of one job have in common, also when it is started again, and those of another do not."""
    if here.run_dir is not None:
        return str(here.run_name)
    if here.world_size == 1 and here.launcher == "alone":
        return "alone %s" % _own_start()
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "MASTER_PORT")
    known = [os.environ.get(name, "") for name in names]
    return " ".join([here.run_name or str(os.getppid()), *known])


def _own_start() -> str:
    """This process, among all that ever had its number."""
    try:
        with open("/proc/self/stat") as file:
            return "%d %s" % (os.getpid(), file.read().rpartition(")")[2].split()[19])
    except OSError:
        return str(os.getpid())


def _folder(here: Context) -> str:
    return os.path.join(here.storage, _FOLDER)


def _put(source: str, target: str) -> None:
    """Give a folder its place; where another rank's is there already, put its files to those."""
    try:
        os.rename(source, target)
    except OSError:
        if not os.path.isdir(target):
            raise
        for folder, _, names in os.walk(source):
            there = os.path.join(target, os.path.relpath(folder, source))
            os.makedirs(there, exist_ok=True)
            for name in names:
                os.replace(os.path.join(folder, name), os.path.join(there, name))


def _copy(source: str, target: str) -> None:
    """Copy what is in a folder into another, which may be there."""
    import shutil

    os.makedirs(target, exist_ok=True)
    for name in os.listdir(source):
        path = os.path.join(source, name)
        if os.path.isdir(path):
            _copy(path, os.path.join(target, name))
        else:
            shutil.copy2(path, os.path.join(target, name))


def _write_json(path: str, content: Any) -> None:
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(temporary, path)

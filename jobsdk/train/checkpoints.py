"""Checkpoints: folders that ranks report. They are kept with the run, and found again after a restart."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

from . import storage
from .context import Context, get_context, is_url
from .errors import TrainError

_FOLDER = "checkpoints"
#: Variable with a Retention, as JSON.
RETENTION = "JOBSDK_KEEP_CHECKPOINTS"

Path = Union[str, "os.PathLike[str]"]


class Checkpoint:
    """A folder with what a training needs to resume, under Ray Train's names. `path` is the folder."""

    def __init__(self, path: Path) -> None:
        text = os.fspath(path)
        self.path = text if is_url(text) else os.path.abspath(os.path.expanduser(text))

    def __repr__(self) -> str:
        return "Checkpoint(path=%s)" % self.path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @classmethod
    def from_directory(cls, path: Path) -> Checkpoint:
        """Return the checkpoint in a folder, without copying it."""
        return cls(path)

    def to_directory(self, path: Optional[Path] = None) -> str:
        """Copy it to `path`, or to a temporary folder, and return that folder."""
        if path is None:
            import tempfile

            path = tempfile.mkdtemp(prefix="checkpoint-")
        target = os.path.abspath(os.fspath(path))
        _copy(self.path, target)
        return target

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Give its own folder for reading."""
        yield self.path

    def get_metadata(self) -> Dict[str, Any]:
        """Return what `set_metadata` stored; empty if nothing."""
        try:
            with open(os.path.join(self.path, storage.METADATA), encoding="utf-8") as file:
                found: Dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return {}
        return found

    def set_metadata(self, metadata: Dict[str, Any]) -> None:
        """Store a small mapping of JSON values with it."""
        storage.write_json(os.path.join(self.path, storage.METADATA), metadata)

    def update_metadata(self, metadata: Dict[str, Any]) -> None:
        self.set_metadata({**self.get_metadata(), **metadata})


def get_checkpoint() -> Optional[Checkpoint]:
    """Return the newest complete checkpoint of this job from before its last restart; None if there is none.

    After a process has reported a checkpoint in this attempt, it also finds those of this attempt. Until then, all
    processes begin with the same one. A process finds only what its own node sees. It compares files with their
    checksums: it names a damaged checkpoint on stderr, and takes the one before.
    """
    found = newest_sound(get_context())
    return Checkpoint(found[1]) if found else None


class Kept(NamedTuple):
    """A checkpoint that is kept: in the storage as `name`, with the `step` that was reported."""

    name: str
    order: int
    step: int
    world: int
    job: str
    restart: int
    notes: storage.Notes

    def metric(self, name: str) -> Optional[float]:
        """The value of a metric that was reported with it, by any rank."""
        values = (note.get("metrics", {}).get(name) for _, note in sorted(self.notes.items()))
        return next((value for value in values if isinstance(value, (int, float))), None)


class Retention(NamedTuple):
    """Which checkpoints stay: so many of the `newest` (None: all), and so many with the `best` values of a metric."""

    newest: Optional[int] = None
    best: int = 0
    metric: Optional[str] = None
    mode: str = "min"


class _State:
    """What this process knows of the checkpoints in a storage."""

    def __init__(self, place: str) -> None:
        self.storage = storage.of(place)
        self.count: Optional[int] = None  # how many it has kept, after those of earlier starts
        self.retention = _retention_of(os.environ.get(RETENTION))
        self.sound: Dict[str, str] = {}  # the folder of each checkpoint that was verified, empty if it is damaged


_states: Dict[str, _State] = {}


def state_of(here: Context) -> _State:
    place = "%s/%s" % (here.storage, _FOLDER)
    if place not in _states:
        _states[place] = _State(place)
    return _states[place]


def _retention_of(text: Optional[str]) -> Retention:
    return Retention(**json.loads(text)) if text else Retention()


def newest(here: Context) -> Optional[Kept]:
    """The newest whole one that counts for this process, and is not known to be damaged."""
    sound = state_of(here).sound
    return next((one for one in reversed(_wholes(here)) if sound.get(one.name) != ""), None)


def newest_sound(here: Context) -> Optional[Tuple[Kept, str]]:
    """The newest of them whose files are as they were written, and the folder in which they are."""
    state, passed = state_of(here), []
    for one in reversed(_wholes(here)):
        if one.name not in state.sound:
            folder = state.storage.fetch(one.name, one.notes)
            wrong = storage.damage(folder, one.notes)
            if wrong:
                passed.append("%s is damaged: %s" % (one.name, wrong))
            state.sound[one.name] = "" if wrong else folder
        if state.sound[one.name]:
            if passed:
                _warn("%s. Going back to %s" % ("; ".join(passed), one.name))
            return one, state.sound[one.name]
    if passed:
        _warn("%s. There is no earlier one" % "; ".join(passed))
    return None


def _warn(text: str) -> None:
    sys.stderr.write("get_checkpoint(): %s\n" % text)


def _wholes(here: Context) -> List[Kept]:
    """The whole checkpoints that count for this process, the oldest first."""
    job, found = _job(here), []  # type: str, List[Kept]
    started = state_of(here).count is not None
    for one in _all(here):
        if one.job != job or (one.restart >= here.restart_count and not started):
            continue
        if not found or one.world != found[-1].world or len(one.notes) >= len(found[-1].notes):
            found.append(one)
    return found


def next_name(here: Context, name: Optional[str] = None) -> Tuple[str, int]:
    """What the next checkpoint of this process is called, and its number. Raises TrainError for a bad `name`."""
    if name is not None and (not re.fullmatch(r"\w[\w.=+-]*", name)):
        raise TrainError("checkpoint_dir_name must be one name of letters, digits, -, _, =, not %r" % name)
    state = state_of(here)
    if state.count is None:  # after those of earlier starts
        start = _job(here), here.restart_count
        earlier = [one.order for one in _all(here) if (one.job, one.restart) != start]
        state.count = max(earlier, default=-1) + 1
    return name or "checkpoint_%06d" % state.count, state.count


def keep(
    source: Any, here: Context, step: int, name: Optional[str] = None, metrics: Optional[Mapping[str, Any]] = None
) -> Checkpoint:
    """Copy a checkpoint (ours, Ray's, or a folder's path) to the run's, where that of other ranks joins it. It is there
    as a whole or not at all. Raises TrainError, OSError."""
    given = getattr(source, "path", source)
    path = os.path.abspath(os.fspath(given)) if isinstance(given, (str, os.PathLike)) else None
    if path is None or not os.path.isdir(path):
        what = path if path is not None else "of type %s" % type(source).__name__
        fix = "write it into a folder, and report(..., Checkpoint.from_directory(FOLDER))"
        raise TrainError("the checkpoint %s is no folder. Fix: %s" % (what, fix))
    name, order = next_name(here, name)
    kept = state_of(here).storage
    if path == kept.path(name):
        found = storage.sums(path)
    else:
        with kept.staging(here.rank) as staged:
            _copy(path, staged)
            found = storage.sums(staged)
            kept.put(staged, name)
    return note(here, name, order, step, found, metrics or {})


def note(
    here: Context, name: str, order: int, step: int, found: storage.Sums, metrics: Mapping[str, Any]
) -> Checkpoint:
    """This rank's part of the checkpoint `name` is in its place: say so, and delete those that need not stay."""
    state = state_of(here)
    numbers = {key: value for key, value in metrics.items() if isinstance(value, (int, float))}
    content: storage.Note = {
        "order": order, "step": step, "world": here.world_size, "job": _job(here), "restart": here.restart_count,
        "files": found, "metrics": numbers,
    }  # fmt: skip
    state.storage.note(name, here.rank, content)
    state.count = order + 1
    if state.retention.newest is not None:
        _tidy(here, state.retention)
    return Checkpoint(state.storage.path(name))


def _tidy(here: Context, retention: Retention) -> None:
    assert retention.newest is not None
    wholes = _wholes(here)
    if len(wholes) < retention.newest:
        return
    values = [(one.metric(retention.metric or ""), one.name) for one in wholes]
    ranked = sorted((one for one in values if one[0] is not None), reverse=retention.mode == "max")
    staying = {one.name for one in wholes[-retention.newest :]} | {name for _, name in ranked[: retention.best]}
    oldest = wholes[-retention.newest].order  # a newer one may still become whole
    for one in _all(here):
        if one.job == _job(here) and one.order < oldest and one.name not in staying:
            state_of(here).storage.remove(one.name)


def _all(here: Context) -> List[Kept]:
    """All checkpoints, whole or not, the oldest first."""
    found = []
    for name, notes in state_of(here).storage.notes().items():
        first = notes[min(notes)]
        found.append(Kept(name, first["order"], first["step"], first["world"], first["job"], first["restart"], notes))
    return sorted(found, key=lambda one: (one.order, one.name))


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

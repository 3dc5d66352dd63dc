"""Where checkpoints are kept: in a folder, or below the URL of an object store."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import zlib
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Tuple, TypedDict

from .context import is_url
from .errors import TrainError

#: The file of `Checkpoint.set_metadata`, which may change later.
METADATA = ".metadata.json"
_PARTS = ".parts"
_PIECE = 1 << 20  # bytes that are read at once

#: (size in bytes, CRC-32) of each file, by its path in the checkpoint.
Sums = Dict[str, Tuple[int, int]]


class Note(TypedDict, total=False):
    """What a rank notes of its part of a checkpoint. Early ones have neither `files` nor `metrics`."""

    #: the checkpoint's number
    order: int
    #: the step that was reported with it
    step: int
    #: how many ranks the job had
    world: int
    #: what all processes of the job have in common
    job: str
    #: the attempt
    restart: int
    #: the rank's files
    files: Sums
    #: the numbers that were reported with it
    metrics: Dict[str, float]


#: Of each rank that has put its part in.
Notes = Dict[int, Note]


def of(place: str) -> Folder:
    """The storage in a folder, or below a URL that fsspec knows."""
    return Remote(place) if is_url(place) else Folder(place)


def sums(folder: str, prefixes: Tuple[str, ...] = ("",)) -> Sums:
    """The sizes and checksums of the files in `folder` whose path begins with one of `prefixes`."""
    found = {}
    for path in files(folder):
        name = os.path.relpath(path, folder)
        if name.startswith(prefixes) and name != METADATA:
            found[name] = _sum(path)
    return found


def files(folder: str) -> Iterator[str]:
    """The paths of all files below a folder."""
    for top, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(top, name)


def _sum(path: str) -> Tuple[int, int]:
    size = crc = 0
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(_PIECE), b""):
            size, crc = size + len(piece), zlib.crc32(piece, crc)
    return size, crc


def damage(folder: str, notes: Notes) -> str:
    """What is wrong with a checkpoint's files, compared with what the ranks noted; empty if nothing is."""
    for note in notes.values():
        for name, expected in note.get("files", {}).items():
            try:
                found = _sum(os.path.join(folder, name))
            except OSError as error:
                return "%s: %s" % (name, error.strerror)
            if found[0] != expected[0]:
                return "%s has %d bytes, and had %d" % (name, found[0], expected[0])
            if found[1] != expected[1]:
                return "the content of %s has changed" % name
    return ""


class Folder:
    """A folder with a folder for each checkpoint, and notes in `.parts` that say which ranks have put theirs in."""

    def __init__(self, place: str) -> None:
        self.place = place

    def notes(self) -> Dict[str, Notes]:
        """What is noted of each checkpoint that is there, by its name."""
        found = {}
        folder = os.path.join(self.place, _PARTS)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            notes = {}
            for file_name in _listed(os.path.join(folder, name)):
                of_rank = _rank_of(file_name)
                if of_rank is not None:
                    with open(os.path.join(folder, name, file_name), encoding="utf-8") as file:
                        notes[of_rank] = json.load(file)
            if notes and os.path.isdir(os.path.join(self.place, name)):
                found[name] = notes
        return found

    def note(self, name: str, rank: int, content: Note) -> None:
        """Say that a rank has put its part in: the last thing that it does."""
        folder = os.path.join(self.place, _PARTS, name)
        os.makedirs(folder, exist_ok=True)
        write_json(os.path.join(folder, "rank-%d.json" % rank), content)

    @contextmanager
    def staging(self, rank: int) -> Iterator[str]:
        """An empty folder in which a rank prepares its part."""
        try:
            os.makedirs(self.place, exist_ok=True)
        except OSError as error:
            fix = "name a folder that the ranks can write: storage_path, or JOBSDK_STORAGE_PATH"
            raise TrainError(
                "no checkpoint can be kept in %s: %s. Fix: %s" % (self.place, error.strerror, fix)
            ) from error
        partly = os.path.join(self.place, ".partly-%d-%d" % (rank, os.getpid()))
        shutil.rmtree(partly, ignore_errors=True)  # a container's processes have the same numbers at each start
        os.makedirs(partly)
        try:
            yield partly
        finally:
            shutil.rmtree(partly, ignore_errors=True)

    def put(self, staged: str, name: str) -> None:
        """Give a rank's part its place. Where another rank's is there already, its files join those."""
        target = self.path(name)
        try:
            os.rename(staged, target)
        except OSError:
            if not os.path.isdir(target):
                raise
            for path in list(files(staged)):
                there = os.path.join(target, os.path.relpath(path, staged))
                os.makedirs(os.path.dirname(there), exist_ok=True)
                os.replace(path, there)

    def path(self, name: str) -> str:
        """Where a checkpoint is."""
        return os.path.join(self.place, name)

    def fetch(self, name: str, notes: Notes) -> str:
        """The folder in which a checkpoint can be read on this machine."""
        return self.path(name)

    def remove(self, name: str) -> None:
        """Delete a checkpoint; its notes first, so that nobody takes it for whole."""
        shutil.rmtree(os.path.join(self.place, _PARTS, name), ignore_errors=True)
        shutil.rmtree(self.path(name), ignore_errors=True)


class Remote(Folder):
    """The same below a URL. What is read lies in the temporary folder of the machine, once for all its processes."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        try:
            import fsspec  # type: ignore[import-untyped]

            self._files, self._root = fsspec.core.url_to_fs(place)
        except ImportError as error:
            fix = "install fsspec and the store's package on the nodes (s3fs, gcsfs, adlfs)"
            raise TrainError("no checkpoint can be kept in %s: %s. Fix: %s" % (place, error, fix)) from error

    def notes(self) -> Dict[str, Notes]:
        self._files.invalidate_cache()
        found = {}  # type: Dict[str, Notes]
        top = "%s/%s" % (self._root, _PARTS)
        for path in self._files.find(top):
            name, _, file_name = path[len(top) + 1 :].rpartition("/")
            of_rank = _rank_of(file_name)
            if of_rank is not None:
                found.setdefault(name, {})[of_rank] = json.loads(self._files.cat_file(path).decode())
        return found

    def note(self, name: str, rank: int, content: Note) -> None:
        path = "%s/%s/%s/rank-%d.json" % (self._root, _PARTS, name, rank)
        self._made(path)
        self._files.pipe_file(path, json.dumps(content).encode())

    @contextmanager
    def staging(self, rank: int) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="jobsdk-checkpoint-") as folder:
            yield folder

    def put(self, staged: str, name: str) -> None:
        for path in files(staged):
            target = "%s/%s/%s" % (self._root, name, os.path.relpath(path, staged))
            self._made(target)
            self._files.put_file(path, target)

    def path(self, name: str) -> str:
        return "%s/%s" % (self.place, name)

    def fetch(self, name: str, notes: Notes) -> str:
        import fcntl

        key = "%08x" % zlib.crc32(json.dumps([self.place, name, sorted(notes.items())]).encode())
        top = os.path.join(tempfile.gettempdir(), "jobsdk-checkpoints-%d" % os.getuid())
        os.makedirs(top, mode=0o700, exist_ok=True)
        if os.stat(top).st_uid != os.getuid():
            raise TrainError("%s belongs to another user. Fix: set TMPDIR to a folder of your own" % top)
        folder = os.path.join(top, key)
        with open(folder + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.isdir(folder):
                partly = folder + ".partly"
                shutil.rmtree(partly, ignore_errors=True)
                source = "%s/%s/" % (self._root, name)
                for path in self._files.find(source):
                    target = os.path.join(partly, path[len(source) :])
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    self._files.get_file(path, target)
                os.rename(partly, folder)
        return folder

    def remove(self, name: str) -> None:
        for path in ("%s/%s/%s" % (self._root, _PARTS, name), "%s/%s" % (self._root, name)):
            try:
                self._files.rm(path, recursive=True)
            except FileNotFoundError:
                pass  # another rank has removed it

    def _made(self, path: str) -> None:
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)


def write_json(path: str, content: Any) -> None:
    """Replace a file as a whole."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(temporary, path)


def _rank_of(file_name: str) -> Any:
    match = re.fullmatch(r"rank-(\d+)\.json", file_name)
    return int(match[1]) if match else None


def _listed(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:  # another rank has removed it
        return []

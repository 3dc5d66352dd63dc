"""The verb `store`: copies files from or to an object store, with fsspec, in the job's own Python.

The bootstrap has the standard library alone; what reads a store is in the job's image or environment. So another
process does it: one JSON object on stdin says what (`Request`), lines of JSON on stdout say how far it is
({"bytes": N}), and the last how it ended ({"done": {...}} or {"error": TEXT}). It ends when its stdin is closed.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Tuple

from ..spec import stores

if TYPE_CHECKING:
    from ..spec.store_messages import Mark, Moved, Request, Said

_WORKERS = 8
_TRIES, _FIRST_PAUSE_S = 4, 1.0
_PROGRESS_S = 2.0
_PARTS = ".parts"  # of `jobsdk.train`: says which checkpoints are whole, so it comes last
#: Classes of errors, by name: their packages may not be installed.
_DENIED = frozenset((
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError",
    "ClientAuthenticationError", "PermissionError", "GatedRepoError", "LocalTokenNotFoundError",
))  # fmt: skip
_ABSENT = frozenset(("FileNotFoundError", "ResourceNotFoundError", "NoSuchBucket", "RepositoryNotFoundError"))


class StoreError(Exception):
    """What went wrong, and how to fix it."""


class Progress:
    """Counts the bytes of files that were copied."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.bytes += size


def run() -> int:
    """Answer one request; 0, or 1 where it could not be done."""
    request: Request = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends with the bootstrap, which hears of it, too
    progress = Progress()
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    threading.Thread(target=_tell, args=(progress,), daemon=True).start()
    code = 0
    try:
        if request["operation"] == "fetch":
            moved = fetch(request["url"], request["path"], request["is_file"], progress)
        else:
            moved = upload(request, progress)
        _say({"done": moved})
    except StoreError as error:
        code = 1
        _say({"error": str(error)})
    os._exit(code)  # clients of stores have threads and sessions that are slow to end


def _tell(progress: Progress) -> None:
    while True:
        time.sleep(_PROGRESS_S)
        _say({"bytes": progress.bytes})


def _say(content: Said) -> None:
    os.write(1, (json.dumps(content) + "\n").encode())


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


# -- fetching ------------------------------------------------------------------------------------------------------


def fetch(url: str, target: str, is_file: bool, progress: Optional[Progress] = None) -> Moved:
    """Copy a file, or all below a prefix, into the new folder `target`. A file keeps its name there.

    Raises StoreError.
    """
    progress = progress or Progress()
    return _explained(url, target, lambda: _fetch(url, target, is_file, progress))


def _fetch(url: str, target: str, is_file: bool, progress: Progress) -> Moved:
    system, place = _open(url)
    found = _tried(lambda: _listing(system, place))
    if not found:
        raise FileNotFoundError(url)
    if is_file and list(found) != [place]:
        raise StoreError("%s is a folder. Fix: write type: uri_folder, or name a file in it" % url)
    os.makedirs(target, exist_ok=True)
    total, free = sum(size or 0 for size in found.values()), shutil.disk_usage(target).free
    if total > free:
        raise OSError(errno.ENOSPC, "%s needed, %s free" % (amount(total), amount(free)))

    def get(item: Tuple[str, Optional[int]]) -> None:
        source, size = item
        name = os.path.basename(source) if source == place else source[len(place) :].lstrip("/")
        if ".." in name.split("/"):
            raise StoreError("%s has an object with the name %s, which leads out of its folder" % (url, name))
        path = os.path.join(target, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _tried(lambda: _get(system, source, path, size))
        progress.add(os.path.getsize(path))

    _each(get, found.items())
    return {"files": len(found), "bytes": progress.bytes}


def _listing(system: Any, place: str) -> Dict[str, Optional[int]]:
    """The files at or below a place, with their sizes."""
    own = system.info(place)
    if own["type"] == "file":
        return {place: own.get("size")}
    listed = system.find(place, detail=True)
    return {
        name: one.get("size")
        for name, one in listed.items()
        if one.get("type") != "directory" and not name.endswith("/") and os.path.basename(name) != stores.UPLOAD_MARK
    }


def _get(system: Any, source: str, path: str, size: Optional[int]) -> None:
    system.get_file(source, path)
    if size is not None and os.path.getsize(path) != size:
        raise ConnectionError("%s ended after %d of %d bytes" % (source, os.path.getsize(path), size))


# -- uploading -----------------------------------------------------------------------------------------------------


def upload(request: Request, progress: Optional[Progress] = None) -> Moved:
    """Copy what is new at `path`, a file (`is_file`) or a folder, to `url`; of a folder only what is `below` some
    names, if there are any. The file `state` keeps what was copied. A `mark` is written last, with all files' sizes.

    Raises StoreError.
    """
    progress = progress or Progress()
    return _explained(request["url"], request["path"], lambda: _upload(request, progress))


def _upload(request: Request, progress: Progress) -> Moved:
    path, url = request["path"], request["url"].rstrip("/")
    known = _known(request["state"])
    names = [""] if request["is_file"] else _names(path, request.get("below") or [""])
    facts = {name: _facts(os.path.join(path, name) if name else path) for name in names}
    new = [name for name, fact in facts.items() if fact is not None and known.get(name) != fact]
    if not new and not known:
        return {"files": 0, "bytes": 0}  # nothing was written
    system, place = _open(url)

    def put(name: str) -> None:
        source, target = (os.path.join(path, name), "%s/%s" % (place, name)) if name else (path, place)
        try:
            _tried(lambda: _put(system, source, target))
            progress.add(os.path.getsize(source))
        except FileNotFoundError:
            if not os.path.exists(source):
                return  # a checkpoint that need not stay
            raise
        known[name] = facts[name] or []

    last = [name for name in new if _PARTS in name.split("/")]
    try:
        _each(put, [name for name in new if name not in last])
        _each(put, last)
    finally:
        with open(request["state"] + ".tmp", "w") as file:
            json.dump(known, file)
        os.replace(request["state"] + ".tmp", request["state"])
    mark = request.get("mark")
    if mark is not None and not request["is_file"]:
        content: Mark = {**mark, "files": {name: size for name, (size, _) in known.items()}}
        _tried(lambda: _write(system, "%s/%s" % (place, stores.UPLOAD_MARK), json.dumps(content).encode()))
    return {"files": len(new), "bytes": progress.bytes}


def _known(state: str) -> Dict[str, List[int]]:
    try:
        with open(state) as file:
            found: Dict[str, List[int]] = json.load(file)
        return found
    except (OSError, ValueError):
        return {}


def _names(folder: str, below: Iterable[str]) -> List[str]:
    found = []
    for part in below:
        for at, _, names in os.walk(os.path.join(folder, part)):
            found += [os.path.relpath(os.path.join(at, name), folder) for name in names]
    return sorted(found)


def _facts(path: str) -> Optional[List[int]]:
    """What changes with a file; None for one that is gone, and for what is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns] if os.path.isfile(path) else None


def _put(system: Any, source: str, target: str) -> None:
    size = os.path.getsize(source)
    _make_folder(system, target)
    system.put_file(source, target)
    system.invalidate_cache()
    there = system.info(target)["size"]
    if there != size:
        raise ConnectionError("%s has %s of %d bytes" % (target, there, size))


def _write(system: Any, target: str, content: bytes) -> None:
    _make_folder(system, target)
    system.pipe_file(target, content)


def _make_folder(system: Any, target: str) -> None:
    """On a disk; elsewhere there are none, and a bucket that is missing is not made."""
    if "file" in (system.protocol if isinstance(system.protocol, (list, tuple)) else (system.protocol,)):
        system.makedirs(os.path.dirname(target), exist_ok=True)


# -- both ----------------------------------------------------------------------------------------------------------


def _open(url: str) -> Tuple[Any, str]:
    """fsspec's file system for a URL, and the place in it."""
    fsspec: Any = importlib.import_module("fsspec.core")
    system, place = fsspec.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
    return system, place.rstrip("/")


def _each(work: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Several at a time; the first error ends all."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        waiting = [pool.submit(work, item) for item in items]
        try:
            for one in waiting:
                one.result()
        except BaseException:
            for one in waiting:
                one.cancel()
            raise


def _tried(work: Callable[[], Any]) -> Any:
    """What `work` returns; what may pass is tried again."""
    pause = _FIRST_PAUSE_S
    for left in range(_TRIES - 1, -1, -1):
        try:
            return work()
        except Exception as error:
            if not left or not _may_pass(error):
                raise
        time.sleep(pause)
        pause *= 2


def _may_pass(error: Exception) -> bool:
    if isinstance(error, (StoreError, ImportError, ValueError, TypeError)) or _kind(error) in (_DENIED, _ABSENT):
        return False
    return getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _kind(error: BaseException) -> Any:
    """_DENIED, _ABSENT or None: what one of an error's causes is."""
    one: Optional[BaseException] = error
    while one is not None:
        names = {kind.__name__ for kind in type(one).__mro__}
        for kinds in (_DENIED, _ABSENT):
            if names & kinds:
                return kinds
        one = one.__cause__ or one.__context__
    return None


def _explained(url: str, path: str, work: Callable[[], Moved]) -> Moved:
    """The result of `work`; every error as a StoreError that says what to do."""
    store = stores.store_of(url)
    package = store.package if store else "a package of fsspec"
    credentials = store.credentials if store else "its credentials"
    try:
        return work()
    except StoreError:
        raise
    except ImportError as error:
        missing = "fsspec" if (error.name or "").split(".")[0] == "fsspec" else package
        text = "%s has no %s, which %s needs. Fix: pip install %s in the job's image or environment"
        raise StoreError(text % (sys.executable, missing, url, _pip_names(package))) from error
    except Exception as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            text = "the disk of %s is full: %s. Fix: free space, or give the node a larger disk"
            raise StoreError(text % (path, _words(error))) from error
        kind = _kind(error)
        if kind is _DENIED or (isinstance(error, ValueError) and "account_name" in str(error)):
            text = "no access to %s: %s. Fix: set %s as secrets of the job, or give the node a role that may use it"
            raise StoreError(text % (url, _words(error), credentials)) from error
        if kind is _ABSENT:
            raise StoreError("there is no %s. Fix: correct the URL; case matters" % url) from error
        raise StoreError("%s: %s" % (url, _words(error))) from error


def _pip_names(package: str) -> str:
    return package if package == "fsspec" else "fsspec %s" % package


def _words(error: BaseException) -> str:
    """An error in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return "%s" % str(text).splitlines()[0][:200]


def amount(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return "%.3g %s" % (size, unit)
        size /= 1000
    return "%.3g TB" % size

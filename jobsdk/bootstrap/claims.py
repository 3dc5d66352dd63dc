"""Which run uses which GPUs of a machine: one lock file for each, held by the node's bootstrap as long as it lives.

The kernel frees the locks of a process that dies, however it does. The files lie in the machine's own /tmp, not with
the runs, whose folder several machines or users may have; they carry the machine's name for a /tmp that is shared.
A job without GPUs of its own, on a host of which none are known, takes the whole machine.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

FOLDER = "/tmp/jobsdk-locks"
#: The locks' file descriptors, for the bootstrap that a starting process hands them to.
HELD = "JOBSDK_LOCKS"
_HOST = "host"
_UNKNOWN = "it is in use by another job"
_PATIENCE = 1.0  # seconds: who only looks whether a lock is free holds it for a moment


class Taken(Exception):
    """What is wanted is in use; the message says by whom."""


class Claim(NamedTuple):
    """GPUs that are ours now (None: the whole machine), and the open files that keep them so."""

    gpus: Optional[List[str]]
    files: List[int]


def claim(gpus: Optional[Sequence[str]], count: Optional[int], note: Mapping[str, Any]) -> Claim:
    """Take `count` (None: all) of these GPUs, or without GPUs the whole machine. `note` says who has them: run, user.

    Raises Taken; then nothing is held.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return _claim(gpus, count, dict(note, since=time.time()), make=True)
        except Taken:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def look(gpus: Optional[Sequence[str]], count: Optional[int]) -> Optional[str]:
    """Why a claim would fail now; None if it would not. Changes nothing."""
    if not os.path.isdir(FOLDER):
        return None
    try:
        release(_claim(gpus, count, None, make=False))
    except Taken as reason:
        return str(reason)
    return None


def release(held: Claim) -> None:
    """Give it back."""
    for file in held.files:
        os.close(file)


def keep(environ: Mapping[str, str]) -> None:
    """Hold what this process was started with, and let nothing that it starts hold it, too."""
    for file in environ.get(HELD, "").split(","):
        if file:
            os.set_inheritable(int(file), False)


def _claim(gpus: Optional[Sequence[str]], count: Optional[int], note: Optional[Mapping[str, Any]], make: bool) -> Claim:
    files: List[int] = []
    try:
        if gpus is None:
            if not _lock(_HOST, fcntl.LOCK_EX, note, make, files):
                raise Taken(_who([name for name in _known() if name != _HOST]) or _who([_HOST]) or _UNKNOWN)
            return Claim(None, files)
        if not _lock(_HOST, fcntl.LOCK_SH, None, make, files):
            raise Taken(_who([_HOST]) or _UNKNOWN)
        wanted = len(gpus) if count is None else count
        ours: List[str] = []
        for gpu in gpus:
            if len(ours) < wanted and _lock(_name(gpu), fcntl.LOCK_EX, note, make, files):
                ours.append(gpu)
        if len(ours) < wanted:
            raise Taken(_who([_name(gpu) for gpu in gpus if gpu not in ours]) or _UNKNOWN)
        return Claim(ours, files)
    except BaseException:
        release(Claim(None, files))
        raise


def _lock(name: str, kind: int, note: Optional[Mapping[str, Any]], make: bool, files: List[int]) -> bool:
    """Lock a file, which is made where it is to be, and put it to the others; False if somebody has it."""
    file = _open(name, make)
    if file is None:
        return True
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    files.append(file)
    if note is not None:
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(note).encode(), 0)
        except OSError:
            pass  # somebody else's file that only its owner may write
    return True


def _open(name: str, make: bool) -> Optional[int]:
    """A lock's file; None if there is none. Never both opened and made: Linux can refuse that in a folder for all
    (sysctl fs.protected_regular)."""
    path = _path(name)
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR):
        if flags & os.O_CREAT:
            if not make:
                return None
            _make_folder()
        try:
            file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except (FileNotFoundError, FileExistsError, PermissionError):
            continue
        if flags & os.O_CREAT:
            os.fchmod(file, 0o666)  # whatever the umask: other users' runs are to see it
        return file
    raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)


def _make_folder() -> None:
    try:
        os.mkdir(FOLDER)
        os.chmod(FOLDER, 0o1777)
    except FileExistsError:
        pass


def _path(name: str) -> str:
    return "%s/%s.%s" % (FOLDER, os.uname().nodename, name)


def _name(gpu: str) -> str:
    return "gpu-" + re.sub(r"[^\w-]", "_", gpu)


def _known() -> List[str]:
    prefix = os.uname().nodename + "."
    return [name[len(prefix) :] for name in os.listdir(FOLDER) if name.startswith(prefix)]


def _who(names: Sequence[str]) -> str:
    """Who has the locks of these names; empty if nobody has."""
    said: Dict[str, List[str]] = {}
    for name in sorted(names):
        file = _open(name, make=False)
        if file is None:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            what = "it" if name == _HOST else "GPU " + name[len("gpu-") :]
            said.setdefault(_by(os.pread(file, 4096, 0)), []).append(what)
        finally:
            os.close(file)
    return "; ".join(
        "%s %s in use by %s" % (", ".join(whats), "is" if len(whats) == 1 else "are", who)
        for who, whats in said.items()
    )


def _by(note: bytes) -> str:
    try:
        known = json.loads(note)
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(known["since"]))
        return "run %s of %s since %s" % (known["run"], known["user"], since)
    except (ValueError, KeyError, TypeError):
        return "another job"

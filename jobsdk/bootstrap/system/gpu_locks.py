"""Which run uses which GPUs of a machine: one lock file for each, held by the node's bootstrap as long as it lives.

The kernel frees the locks of a process that dies, however it does. The files lie in the machine's own /tmp, not with
the runs, whose folder several machines or users may have; they carry the machine's name for a /tmp that is shared.
A job without GPUs of its own, on a host of which none are known, takes the whole machine.

Other users write to that folder, too, so nothing in it is trusted: no link is followed, and a folder that is not open
to all is not used. Locks then lie in the user's home, where they hold against the user's own runs alone.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import re
import stat
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

FOLDER = "/tmp/jobsdk-locks"  # nosec B108 # all users share it, and it is judged before it is used
#: The locks' file descriptors, for the bootstrap that a starting process hands them to.
HELD = "JOBSDK_LOCKS"
_PRIVATE = "~/.cache/jobsdk/locks"  # where FOLDER cannot be used
_HOST = "host"
_UNKNOWN = "it is in use by another job"
_PATIENCE_S = 1.0  # seconds: who only looks whether a lock is free holds it for a moment


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
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _claim(gpus, count, dict(note, since=time.time()), make=True)
        except Taken:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def look(gpus: Optional[Sequence[str]], count: Optional[int]) -> Optional[str]:
    """Why a claim would fail now; None if it would not. Changes nothing."""
    try:
        release(_claim(gpus, count, None, make=False))
    except Taken as reason:
        return str(reason)
    return None


def trouble() -> Optional[str]:
    """Why locks here do not hold against the jobs of other users; None if they do."""
    try:
        facts = os.lstat(FOLDER)
    except FileNotFoundError:
        return None
    if _is_for_all(facts):
        return None
    kind = "link" if stat.S_ISLNK(facts.st_mode) else "folder" if stat.S_ISDIR(facts.st_mode) else "file"
    what = "%s is a %s of %s with mode %o" % (FOLDER, kind, _user(facts.st_uid), stat.S_IMODE(facts.st_mode))
    fix = "Fix: let its owner or root delete it"
    return "%s, so GPUs are locked against your own runs only, by files in %s. %s" % (what, _PRIVATE, fix)


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
    folder = _open_folder(make)
    if folder is None:
        return Claim(None if gpus is None else list(gpus)[:count], [])
    files: List[int] = []
    try:
        if gpus is None:
            if not _lock(folder, _HOST, fcntl.LOCK_EX, note, make, files):
                others = [name for name in _known(folder) if name != _HOST]
                raise Taken(_who(folder, others) or _who(folder, [_HOST]) or _UNKNOWN)
            return Claim(None, files)
        if not _lock(folder, _HOST, fcntl.LOCK_SH, None, make, files):
            raise Taken(_who(folder, [_HOST]) or _UNKNOWN)
        wanted = len(gpus) if count is None else count
        ours: List[str] = []
        for gpu in gpus:
            if len(ours) < wanted and _lock(folder, _name(gpu), fcntl.LOCK_EX, note, make, files):
                ours.append(gpu)
        if len(ours) < wanted:
            raise Taken(_who(folder, [_name(gpu) for gpu in gpus if gpu not in ours]) or _UNKNOWN)
        return Claim(ours, files)
    except BaseException:
        release(Claim(None, files))
        raise
    finally:
        os.close(folder)


def _lock(
    folder: int, name: str, kind: int, note: Optional[Mapping[str, Any]], make: bool, files: List[int]
) -> bool:  # fmt: skip
    """Lock a file, which is made where it is to be, and put it to the others; False if somebody has it."""
    file = _open(folder, name, make)
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


def _open(folder: int, name: str, make: bool) -> Optional[int]:
    """A lock's file; None if there is none. Never both opened and made: Linux can refuse that in a folder for all
    (sysctl fs.protected_regular). Raises Taken for what somebody has put there instead."""
    entry = "%s.%s" % (os.uname().nodename, name)
    common = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR):
        if flags & os.O_CREAT and not make:
            return None
        try:
            file = os.open(entry, flags | common, 0o666, dir_fd=folder)
        except OSError:  # missing, or made meanwhile, or somebody else's; a link, a folder, a socket
            continue
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:  # it may be a second name of a file of ours
            os.close(file)
            continue
        if flags & os.O_CREAT:
            os.fchmod(file, 0o666)  # nosec B103 # whatever the umask: other users' runs are to see it
        return file
    try:
        owner = _user(os.stat(entry, dir_fd=folder, follow_symlinks=False).st_uid)
    except FileNotFoundError:
        raise Taken(_UNKNOWN) from None  # it comes and goes
    fix = "Fix: let its owner or root delete it"
    raise Taken("%s in the folder of locks belongs to %s and is no lock file we can use. %s" % (entry, owner, fix))


def _open_folder(make: bool) -> Optional[int]:
    """The folder of the locks: that for all users, else the user's own; None where it is missing and not to be made."""
    for path, is_fit in ((FOLDER, _is_for_all), (os.path.expanduser(_PRIVATE), _is_own)):
        if make:
            _make_folder(path)
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError:  # a link, a file, or closed to us
            continue
        if is_fit(os.fstat(folder)):
            return folder
        os.close(folder)
    what = trouble() or "%s cannot be opened" % FOLDER
    raise Taken("%s. %s cannot be used either: it must be a folder of yours that only you can write to" % (what, path))


def _make_folder(path: str) -> None:
    mask = os.umask(0 if path == FOLDER else 0o077)
    try:
        if path != FOLDER:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, 0o1777)  # at once: who comes in between is to find it open to all
    except FileExistsError:
        return
    finally:
        os.umask(mask)
    if path == FOLDER and not _is_for_all(os.lstat(path)):  # systems that make no folder sticky
        os.chmod(path, 0o1777)  # nosec B103 # as /tmp: all users put locks there, and none removes another's


def _is_for_all(facts: os.stat_result) -> bool:
    return stat.S_ISDIR(facts.st_mode) and facts.st_mode & 0o1777 == 0o1777


def _is_own(facts: os.stat_result) -> bool:
    return facts.st_uid == os.geteuid() and not facts.st_mode & 0o022


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "user %d" % uid


def _name(gpu: str) -> str:
    return "gpu-" + re.sub(r"[^\w-]", "_", gpu)


def _known(folder: int) -> List[str]:
    prefix = os.uname().nodename + "."
    return [name[len(prefix) :] for name in os.listdir(folder) if name.startswith(prefix)]


def _who(folder: int, names: Sequence[str]) -> str:
    """Who has the locks of these names; empty if nobody has."""
    said: Dict[str, List[str]] = {}
    for name in sorted(names):
        try:
            file = _open(folder, name, make=False)
        except Taken:
            continue
        if file is None:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            what = "it" if name == _HOST else "GPU " + _plain(name[len("gpu-") :])
            said.setdefault(_by(os.pread(file, 4096, 0)), []).append(what)
        finally:
            os.close(file)
    return "; ".join(
        "%s %s in use by %s" % (", ".join(whats), "is" if len(whats) == 1 else "are", who)
        for who, whats in said.items()
    )


def _by(note: bytes) -> str:
    """What a note says; any user can have written it."""
    try:
        known = json.loads(note)
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(known["since"]))
        return "run %s of %s since %s" % (_plain(known["run"]), _plain(known["user"]), since)
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return "another job"


def _plain(text: object) -> str:
    """Without what a terminal would act on."""
    return "".join(one if one.isprintable() else "?" for one in str(text)[:100])

"""The other end of `jobsdk.compute.hosts.remote`: how files get to and from a machine that has nothing but Python.

This file and `extraction` are sent along with each call and run by themselves, as `python3 -c ... OPERATION ARGUMENTS`
with ARGUMENTS a JSON list; so they import nothing else of the bootstrap. What an operation returns follows MARK on
stdout, as one line of JSON: what a login shell's own files print comes before. {"error": text, "errno": number} says
why it could not be done.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import sys
import tarfile
import tempfile
from typing import Any, BinaryIO, Callable, Dict, List, Tuple

from . import extraction

MARK = b"\n\0jobsdk\0"
_CHUNK = 1 << 20


def write(folder: str, private: List[str], folder_mode: int) -> None:
    """Write the files of the tar stream on stdin into a folder; each is there whole or not at all."""
    folder = os.path.expanduser(folder)
    _make_folder(folder, folder_mode)
    rights = _rights(folder)
    os.umask(0o777 & ~rights)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            target = os.path.join(folder, member.name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            # Not beside it: who looks into that folder is to find whole files only.
            partly = os.path.join(folder, ".%s.%d.part" % (member.name.replace("/", "-"), os.getpid()))
            mode = 0o600 if member.name in private else 0o666 & rights
            content = archive.extractfile(member)
            assert content is not None
            with open(os.open(partly, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                shutil.copyfileobj(content, file)
            os.replace(partly, target)


def code_place(store: str, name: str, folder_mode: int) -> Dict[str, Any]:
    """Whether the code `name` is in the store; if not, a new folder to put it in, whether there is rsync, and the
    code that was put there last."""
    store = os.path.expanduser(store)
    target = os.path.join(store, name)
    if os.path.isdir(target):
        return {"there": target}
    _make_folder(store, folder_mode)
    known = [entry for entry in os.listdir(store) if entry.startswith("sha256-") and "." not in entry]
    last = max(known, key=lambda entry: os.stat(os.path.join(store, entry)).st_mtime, default=None)
    partly = tempfile.mkdtemp(prefix="%s." % name, suffix=".part", dir=store)
    return {"there": None, "partly": partly, "rsync": shutil.which("rsync") is not None, "last": last}


def take_code(partly: str) -> Dict[str, Any]:
    """Unpack the tar stream on stdin there, and make it the store's."""
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            _extract(archive, partly)
    except BaseException:
        shutil.rmtree(partly, ignore_errors=True)
        raise
    return adopt_code(partly)


def adopt_code(partly: str) -> Dict[str, Any]:
    """Give the code in a folder the name that its content has; of two that bring the same the first is kept."""
    store = os.path.dirname(partly)
    target = os.path.join(store, "sha256-" + _digest(partly))
    _grant(partly, _rights(store))
    os.utime(partly)
    try:
        os.rename(partly, target)
    except OSError:
        shutil.rmtree(partly, ignore_errors=True)
        if not os.path.isdir(target):
            raise
    return {"there": target}


def _make_folder(folder: str, mode: int) -> None:
    """As `private.make_folder`."""
    if os.path.isdir(folder):
        return
    _make_folder(os.path.dirname(folder), mode)
    try:
        os.mkdir(folder, mode & 0o700)
    except FileExistsError:
        return  # another node has made it
    os.chmod(folder, mode)


def _rights(folder: str) -> int:
    """Those that what is in a folder gets: its own; as by the usual umask where anybody may write."""
    mode = stat.S_IMODE(os.stat(folder).st_mode)
    return 0o755 if mode & 0o002 else mode


def _grant(folder: str, rights: int) -> None:
    """Give these rights to a folder and to all that is in it; programs stay programs."""
    for above, _, names in os.walk(folder):
        for path in [os.path.join(above, name) for name in names]:
            facts = os.lstat(path)
            if stat.S_ISREG(facts.st_mode):
                os.chmod(path, rights & (0o777 if facts.st_mode & 0o111 else 0o666))
        os.chmod(above, rights)


def marks(run_dir: str) -> List[int]:
    """The nodes that have written their mark here: they have this folder in common."""
    return sorted(int(name) for name in os.listdir(run_dir + "/nodes") if name.isdigit())


def forget(folder: str) -> None:
    """Delete a folder."""
    shutil.rmtree(os.path.expanduser(folder), ignore_errors=True)


def fetch(paths: List[str]) -> None:
    """Write a tar stream behind the answer: what is at path 0 under the name 0, and so on; what is not there is not."""
    _answer({})
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for index, path in enumerate(paths):
            path = os.path.realpath(os.path.expanduser(path))
            if os.path.exists(path):
                archive.add(path, str(index))
    sys.stdout.buffer.flush()
    os._exit(0)


def _extract(archive: tarfile.TarFile, folder: str) -> None:
    left = extraction.extract(archive, folder).left_out
    if left:
        raise ValueError("it has %s" % str(left[0]))


def _digest(folder: str) -> str:
    """The hash of a snapshot (`jobsdk.snapshot.copy`) by what is in the folder now."""
    whole = hashlib.sha256()
    for path, full in sorted(_files(folder, "")):
        facts = os.lstat(full)
        if stat.S_ISLNK(facts.st_mode):
            content = os.fsencode(os.readlink(full))
            kind, size, digest = b"l", len(content), hashlib.sha256(content).digest()
        else:
            kind, (size, digest) = b"x" if facts.st_mode & 0o111 else b"f", _content(full)
        whole.update(b"%b%b\0%d\0%b" % (kind, os.fsencode(path), size, digest))
    return whole.hexdigest()


def _files(folder: str, above: str) -> List[Tuple[str, str]]:
    found: List[Tuple[str, str]] = []
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            found += _files(entry.path, above + entry.name + "/")
        else:
            found.append((above + entry.name, entry.path))
    return found


def _content(path: str) -> Tuple[int, bytes]:
    making, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            making.update(chunk)
            size += len(chunk)
    return size, making.digest()


OPERATIONS: Dict[str, Callable[..., Any]] = {
    "write": write, "code_place": code_place, "take_code": take_code, "adopt_code": adopt_code, "forget": forget,
    "fetch": fetch, "marks": marks,
}  # fmt: skip


def _answer(content: Any) -> None:
    out: BinaryIO = sys.stdout.buffer
    out.write(MARK + json.dumps(content).encode() + b"\n")
    out.flush()


def main(operation: str, arguments: str) -> None:
    """Do it, and answer."""
    try:
        answer = OPERATIONS[operation](*json.loads(arguments))
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else ""
        _answer({"error": error.strerror or str(error), "errno": errno.errorcode.get(error.errno or 0), "path": name})
    except (ValueError, tarfile.TarError) as error:
        _answer({"error": str(error), "errno": None, "path": ""})
    else:
        _answer(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])

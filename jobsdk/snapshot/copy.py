"""A private copy of a job's code for each run, and the hash by which equal code is known."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from jobsdk.bootstrap.system import private
from jobsdk.errors import JobsdkError
from jobsdk.snapshot.digests import Digests, Stamp
from jobsdk.snapshot.listing import File, Listing, scan

_CHUNK = 1 << 20
_FICLONE = 0x40049409  # linux/fs.h


class Snapshot(NamedTuple):
    """A copy of code at `path`. Equal content has an equal `hash`, whatever its folder, age and owner."""

    path: Path
    hash: str  # "sha256:" and 64 hexadecimal digits
    listing: Listing

    def to_dict(self) -> dict[str, Any]:
        """The facts to keep beside a run, ready for JSON."""
        return {**self.listing.to_dict(), "hash": self.hash}


def take(source: Path, target: Path) -> Snapshot:
    """Copy the code at `source` to the folder `target`, which must be new or empty, and hash what was copied.

    Executable bits and modification times are kept; otherwise the copy has the rights of the folder that it is made in.
    The hash is over every file's path, executable bit (or link
    target), size and content. Raises JobsdkError, as `scan` does and for a file that cannot be read or written;
    `target` is then gone again.
    """
    listing = scan(source)
    target = Path(os.path.abspath(target))
    try:
        private.make_within(str(target))
        is_empty = not any(target.iterdir())
    except OSError as error:
        raise JobsdkError(f"cannot copy code to {target}: {error.strerror}") from error
    if not is_empty:
        raise JobsdkError(f"cannot copy code to {target}: it is not empty")
    try:
        digest = _copy(listing, str(target))
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return Snapshot(target, f"sha256:{digest}", listing)


def fingerprint(source: Path) -> str:
    """The hash that `take` would give, without a copy. Of files that have not changed only names and times are read.

    Raises JobsdkError as `scan` does, and for a file that cannot be read.
    """
    listing = scan(source)
    known = Digests(str(listing.source))
    whole = hashlib.sha256()
    for file in listing.files:
        if file.link is not None:
            _add_link(whole, file, file.link)
            continue
        digest = known.get(file.path, file.stamp)
        size = file.size
        if digest is None:
            try:
                with open(file.source, "rb") as stream:
                    size, digest = _transfer(file, stream.fileno(), None, known)
            except OSError as error:
                raise JobsdkError(f"cannot read {file.source}: {error.strerror}") from error
        _add_file(whole, file, size, digest)
    known.save()
    return f"sha256:{whole.hexdigest()}"


def _copy(listing: Listing, target: str) -> str:
    """Copy all and return the hash of what was copied, not of what the files hold a moment later."""
    whole = hashlib.sha256()
    known = Digests(str(listing.source))
    made = set()
    for file in listing.files:
        goal = f"{target}/{file.path}"
        parent = os.path.dirname(goal)
        try:
            if parent not in made:
                private.make_within(parent)
                made.add(parent)
            if file.link is None:
                _add_file(whole, file, *_copy_file(file, goal, known))
            else:
                os.symlink(file.link, goal)
                _add_link(whole, file, file.link)
        except OSError as error:
            raise JobsdkError(f"cannot copy {file.source} to {goal}: {error.strerror}") from error
    known.save()
    return whole.hexdigest()


def _add_file(whole: hashlib._Hash, file: File, size: int, digest: bytes) -> None:
    _add(whole, b"x" if file.executable else b"f", file, size, digest)


def _add_link(whole: hashlib._Hash, file: File, target: str) -> None:
    content = os.fsencode(target)
    _add(whole, b"l", file, len(content), hashlib.sha256(content).digest())


def _add(whole: hashlib._Hash, kind: bytes, file: File, size: int, digest: bytes) -> None:
    # Paths hold no NUL and digests have one length, so two different trees never feed the same bytes.
    whole.update(b"%b%b\0%d\0%b" % (kind, os.fsencode(file.path), size, digest))


def _copy_file(file: File, goal: str, known: Digests) -> tuple[int, bytes]:
    """Copy one file; the size in bytes and the sha256 of what was written."""
    source = os.open(file.source, os.O_RDONLY)
    try:
        copy = private.open_file(goal, os.O_RDWR | os.O_CREAT | os.O_EXCL, executable=file.executable)
        try:
            result = _transfer(file, source, copy, known)
            os.utime(copy, ns=(file.stamp.mtime_ns, file.stamp.mtime_ns))
            return result
        finally:
            os.close(copy)
    finally:
        os.close(source)


def _transfer(file: File, source: int, copy: int | None, known: Digests) -> tuple[int, bytes]:
    """Read a file, and write it if there is a `copy`; the size in bytes and the sha256 of what was read."""
    reading = source
    if copy is not None and _share(source, copy):
        digest = known.get(file.path, file.stamp)
        if digest is not None and Stamp.of(os.fstat(source)) == file.stamp:
            return file.size, digest
        reading, copy = copy, None
    making = hashlib.sha256()
    size = 0
    while chunk := os.read(reading, _CHUNK):
        size += len(chunk)
        making.update(chunk)
        while copy is not None and chunk:
            chunk = chunk[os.write(copy, chunk) :]
    digest = making.digest()
    if Stamp.of(os.fstat(source)) == file.stamp:
        known.put(file.path, file.stamp, digest)
    return size, digest


def _share(source: int, copy: int) -> bool:
    """Let a copy share the blocks of its source where the file system can (btrfs, XFS): writing to one of them does not
    change the other. So equal code takes its place on the disk once."""
    try:
        fcntl.ioctl(copy, _FICLONE, source)
    except OSError:  # another file system, or two of them
        return False
    return True

"""Digests of files that have not changed since they were last read, kept from one submission to the next."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

from jobsdk.bootstrap.system import private


class Stamp(NamedTuple):
    """What changes with a file's content. ctime cannot be set by a program, so no tool can hide a change."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, facts: os.stat_result) -> Stamp:
        return cls(facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)


#: Nanoseconds. A file changed so shortly before it was read may change again without another time stamp: file
#: systems count in ticks, some in whole seconds.
_TOO_YOUNG = 2_000_000_000


class Digests:
    """The known digests of the files of one code folder, in a file of jobsdk's cache.

    Whatever is wrong with that file, it is only as if nothing were known.
    """

    def __init__(self, source: str) -> None:
        from jobsdk.home import home

        name = hashlib.sha256(os.fsencode(source)).hexdigest()[:32]
        self._file = Path(home()) / "cache" / "code" / f"{name}.json"
        self._known = self._load()
        self._used: dict[str, tuple[Stamp, str]] = {}
        self._now = time.time_ns()

    def get(self, path: str, stamp: Stamp) -> bytes | None:
        """The sha256 of the file at `path` (relative) if it is as it was when it was read."""
        found = self._known.get(path)
        if found is None or found[0] != stamp:
            return None
        self._used[path] = found
        return bytes.fromhex(found[1])

    def knows(self, path: str, stamp: Stamp) -> bool:
        """Whether the file at `path` is as it was when it was read."""
        found = self._known.get(path)
        return found is not None and found[0] == stamp

    def put(self, path: str, stamp: Stamp, digest: bytes) -> None:
        if self._now - max(stamp.mtime_ns, stamp.ctime_ns) > _TOO_YOUNG:
            self._used[path] = (stamp, digest.hex())

    def save(self) -> None:
        """Keep what was got and put since; other files are gone from the folder."""
        if self._used == self._known:
            return
        try:
            private.make_folder(str(self._file.parent))
            private.replace(str(self._file), json.dumps(self._used).encode())
        except (OSError, ValueError):
            pass  # a full disk, a name that is no text: the next time takes as long as this one

    def _load(self) -> dict[str, tuple[Stamp, str]]:
        try:
            content = json.loads(self._file.read_bytes())
            return {path: (Stamp(*stamp), str(digest)) for path, (stamp, digest) in content.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

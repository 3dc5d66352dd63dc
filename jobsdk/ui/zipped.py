"""Folders as a zip file that is made while it is sent: whatever their size, it takes neither disk nor memory here."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jobsdk.runs.outputs import entries

_PART = 1 << 20  # bytes


class _Sent:
    """What has been written and not been sent yet. It cannot seek, by which zipfile writes sizes behind the data."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None: ...

    def taken(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data


class _Zip(zipfile.ZipFile):
    """An archive that nobody completes when the server ends while it is sent: that is no error."""

    def __del__(self) -> None: ...


def zipped(top: Path, parts: Iterable[str]) -> Iterator[bytes]:
    """The regular files of some folders in `top`. Links are not followed; what cannot be read is left out, and named in
    `left-out.txt`."""
    out: Any = _Sent()
    with _Zip(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        left: list[str] = []
        for part, entry in ((one, entry) for one in parts for entry in entries(top / one)):
            name = os.path.normpath(os.path.join(part, entry.path)).encode("utf-8", "replace").decode()
            if entry.left_out or entry.link:
                left.append(f"{name}: {entry.left_out.reason if entry.left_out else 'a link'}\n")
            if entry.file is None:
                continue
            with entry.file as file:
                found = os.fstat(file.fileno())
                with archive.open(_entry(name, found), "w", force_zip64=True) as to:
                    # Not more than there was: a rank may be writing still.
                    for at in range(0, found.st_size, _PART):
                        to.write(file.read(min(_PART, found.st_size - at)))
                        yield out.taken()
            yield out.taken()
        if left:
            archive.writestr("left-out.txt", "".join(left))
    yield out.taken()


def _entry(name: str, found: os.stat_result) -> zipfile.ZipInfo:
    moment = time.localtime(found.st_mtime)[:6]
    entry = zipfile.ZipInfo(name, min(max(moment, (1980, 1, 1, 0, 0, 0)), (2107, 12, 31, 23, 59, 58)))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (found.st_mode & 0xFFFF) << 16
    return entry

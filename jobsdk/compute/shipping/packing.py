"""A job's code as one archive: the same bytes for the same files, whenever and by whomever it is packed."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import BinaryIO

from jobsdk.errors import JobsdkError
from jobsdk.snapshot.listing import Listing


def pack(listing: Listing, target: BinaryIO) -> str:
    """Write the files as tar.gz; the archive's hash, `sha256:` and hexadecimal digits. Raises JobsdkError."""
    hashing = _Hashing(target)
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=hashing, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file in listing.files:
            member = tarfile.TarInfo(file.path)
            member.mode = 0o755 if file.executable else 0o644
            if file.link is not None:
                member.type, member.linkname = tarfile.SYMTYPE, file.link
                archive.addfile(member)
                continue
            try:
                content = Path(file.source).read_bytes()
            except OSError as error:
                raise JobsdkError(f"cannot read {file.source}: {error.strerror}") from error
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return f"sha256:{hashing.digest.hexdigest()}"


class _Hashing:
    """A file that knows the hash of what was written to it."""

    def __init__(self, target: BinaryIO) -> None:
        self.digest = hashlib.sha256()
        self._target = target

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._target.write(data)

    def flush(self) -> None:
        self._target.flush()

"""What comes over ssh from a run's folder elsewhere, written to the run's folder here."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from jobsdk.bootstrap.system import private
from jobsdk.bootstrap.transport import pull
from jobsdk.bootstrap.transport.extraction import LeftOut, extract
from jobsdk.compute.shipping import parcel
from jobsdk.errors import ComputeError

if TYPE_CHECKING:
    from jobsdk.compute.ssh.session import Session
    from jobsdk.runs.folder import RunFolder

_TAKEN = "pulled.json"  # how many bytes of the events of each folder elsewhere are in the events here
_CHUNK = 1 << 20


class Received(NamedTuple):
    """One pull. `living`: the nodes whose bootstraps lived there before the events were read."""

    run: RunFolder
    place: str
    taken: int
    events: bytes
    living: list[int]

    def note(self) -> None:
        """Add the new events to the run's, whole lines in one append, and remember that."""
        if not self.events:
            return
        with open(self.run.events_file, "ab", buffering=0, opener=private.opener) as file:
            file.write(self.events)
        known = self.run.read_json(_TAKEN)
        self.run.write_json(_TAKEN, {**known, self.place: self.taken + len(self.events)})

    @property
    def has_ended(self) -> bool:
        """Whether the new events say that the run has ended."""
        return b'"event":"ended"' in self.events


def receive(session: Session, run: RunFolder, run_dir: str) -> Received:
    """Ask for what is new in `run_dir`, and write all of it but the events. Raises ComputeError; what had come by then
    is as good as if less had been there."""
    place = f"{session.host}:{run_dir}"
    taken = int(run.read_json(_TAKEN).get(place, 0))
    have = {pull.EVENTS: [taken, 0], **_have(run.path)}
    try:
        assert session.process.stdin is not None
        session.process.stdin.write(json.dumps(have).encode())
    except OSError:
        pass  # it has ended, and says why
    session.close_stdin()
    if not session.skip_to(pull.MARK):
        code = session.code()
        if code == 2 and parcel.BOOTSTRAP in session.err():
            raise ComputeError(f"{session.host}: {run_dir} of run {run.name} is not there any more")
        session.check()
        raise ComputeError(f"{session.host}: no answer about run {run.name}")
    events = b""
    while True:
        line = session.out.readline()
        if not line.endswith(b"\n"):
            session.check()
            raise ComputeError(f"{session.host}: the connection was lost")
        head = json.loads(line)
        if head.get("end"):
            return Received(run, place, taken, events, list(head["living"]))
        if head["path"] == pull.EVENTS:
            events = session.out.read(head["size"])
            if len(events) < head["size"]:
                raise ComputeError(f"{session.host}: the connection was lost")
        else:
            _write(run.path, head["path"], head["at"], session.out, head["size"])


def _have(folder: Path) -> dict[str, list[int]]:
    """Size and checksum of what is here."""
    found = {}
    names = [
        os.path.join(above, one) for name in pull.FOLDERS for above, _, ones in os.walk(folder / name) for one in ones
    ]
    for path in [*names, str(folder / pull.REPORT)]:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                found[os.path.relpath(path, folder)] = [size, pull.checksum(file, size)]
        except FileNotFoundError:
            pass
    return found


def _write(folder: Path, path: str, at: int, source: IO[bytes], size: int) -> None:
    """Put bytes where they belong. The report and answers are there as a whole or not at all, all else grows."""
    parts = path.split("/")
    is_whole = path == pull.REPORT or (len(parts) == 1 and pull.is_answer(path))
    if not is_whole and (parts[0] not in pull.FOLDERS or ".." in parts or "" in parts):
        raise ComputeError(f"the other end sent {path!r}, which is no file of a run")
    target = folder / path
    private.make_within(str(target.parent))
    if is_whole:
        content = source.read(size)
        if len(content) == size:
            private.replace(str(target), content)
        return
    if not at:
        open(target, "wb", opener=private.opener).close()
    with open(target, "r+b") as file:
        file.seek(at)
        for start in range(0, size, _CHUNK):
            file.write(source.read(min(_CHUNK, size - start)))


def unpack(stream: IO[bytes], targets: Sequence[Path]) -> dict[int, list[LeftOut]]:
    """Unpack a tar stream whose members are named INDEX or INDEX/PATH to the targets of these indexes: files, folders,
    and links that stay inside. For each target that came, what was left out of it.

    Nothing is written outside the targets, whatever the other end sends. Raises OSError, tarfile.TarError.
    """
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        found = extract(archive, {str(index): str(target) for index, target in enumerate(targets)})
    left: dict[int, list[LeftOut]] = {int(key): [] for key in found.came}
    for one in found.left_out:
        index, _, path = one.path.partition("/")
        left.setdefault(int(index), []).append(LeftOut(path or ".", one.reason))
    return left

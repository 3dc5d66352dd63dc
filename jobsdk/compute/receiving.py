"""What comes over ssh from a run's folder elsewhere, written to the run's folder here."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from jobsdk.bootstrap import pull
from jobsdk.errors import ComputeError

if TYPE_CHECKING:
    from jobsdk.compute.ssh.session import Session
    from jobsdk.runs import RunFolder

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
        with open(self.run.events_file, "ab", buffering=0) as file:
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
        if code == 2 and "bootstrap.pyz" in session.err():
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
            events = _exactly(session.out, head["size"])
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
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_whole:
        content = _exactly(source, size)
        if len(content) == size:
            partly = target.with_name(f".{target.name}.{os.getpid()}.tmp")
            partly.write_bytes(content)
            os.replace(partly, target)
        return
    if not at:
        target.open("wb").close()
    with open(target, "r+b") as file:
        file.seek(at)
        for start in range(0, size, _CHUNK):
            file.write(_exactly(source, min(_CHUNK, size - start)))


def _exactly(source: IO[bytes], size: int) -> bytes:
    """So many bytes, or fewer where the stream ends."""
    return source.read(size)


def unpack(stream: IO[bytes], targets: Sequence[Path]) -> set[int]:
    """Unpack a tar stream whose members are named INDEX or INDEX/PATH to the targets of these indexes; which came.

    Files only, folders and links; nothing is written outside the targets. Raises OSError, tarfile.TarError.
    """
    came = set()
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            index, _, rest = member.name.partition("/")
            top = targets[int(index)]
            came.add(int(index))
            place = top / rest if rest else top
            place.parent.mkdir(parents=True, exist_ok=True)
            if rest and not place.parent.resolve().is_relative_to(top.resolve()):
                raise tarfile.TarError(f"{member.name} leads out of its folder")
            if member.isdir():
                place.mkdir(exist_ok=True)
                continue
            place.unlink(missing_ok=True)
            if member.issym():
                place.symlink_to(member.linkname)
            elif member.islnk():
                other, _, inside = member.linkname.partition("/")
                os.link(targets[int(other)] / inside, place, follow_symlinks=False)
            else:
                content = archive.extractfile(member)
                assert content is not None
                with open(place, "wb") as file:
                    shutil.copyfileobj(content, file)
                place.chmod(0o755 if member.mode & 0o111 else 0o644)
                os.utime(place, (member.mtime, member.mtime))
    return came

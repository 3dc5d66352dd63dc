"""What an engine's driver has to do with a run's folder: it brings in what the nodes write, and takes out requests."""

from __future__ import annotations

import os
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.transport.extraction import LeftOut, extract
from jobsdk.compute.ends import EngineEnd, finish
from jobsdk.compute.engine import node
from jobsdk.compute.shipping import packing, parcel
from jobsdk.compute.shipping.relayed import Mirror
from jobsdk.runs.folder import RunFolder
from jobsdk.snapshot.listing import scan

_EVERY_S = 0.1  # seconds between two looks at what a client has left in the folder


class Hold:
    """A run that is being driven, by one process."""

    def __init__(self, run: RunFolder, spec: Mapping[str, Any]) -> None:
        self.run = run
        self.spec = spec
        self.plan = run.plan()
        self._mirror = Mirror(run)
        self._looked = 0.0
        self._told = ""
        self._is_cancelled = False

    def files(self) -> dict[str, bytes]:
        """The parcel of the run, with its code, as `node.HeldNode` takes it."""
        files = parcel.make(self.run).files
        if self.spec["code"] is not None:
            from pathlib import Path

            with tempfile.TemporaryFile() as file:
                packing.pack(scan(Path(self.spec["code"])), file)
                file.seek(0)
                files[node.CODE] = file.read()
        return files

    def take(self, node_rank: int, lines: Iterable[bytes]) -> None:
        """Bring in what a node has written."""
        for line in lines:
            self._mirror.take(node_rank, line)
        self._mirror.tell()

    def last_words(self, node_rank: int) -> str:
        return self._mirror.last_words(node_rank)

    def blamed(self) -> int | None:
        """The node that node 0's report blames; None where there is no report yet."""
        found = (self._mirror.report().get("cause") or {}).get("node")
        return found if isinstance(found, int) else None

    def tell(self, event: str, **facts: Any) -> None:
        """Note what only the engine knows, `queued` with a message or `allocated`, unless it was the last said."""
        if (said := repr((event, facts))) != self._told:
            self._told = said
            self.run.append_event(event, **facts)

    def asked(self) -> list[str]:
        """The requests that are new: `cancel`, and others for node 0. To be called often."""
        if time.monotonic() - self._looked < _EVERY_S:
            return []
        self._looked = time.monotonic()
        found = []
        if not self._is_cancelled and os.path.exists(paths.cancel_mark(str(self.run.path))):
            self._is_cancelled = True
            found.append("cancel")
        folder = self.run.path / "requests"
        for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
            (folder / name).unlink(missing_ok=True)
            found.append(name)
        return found

    def leave(self, chunks: Iterable[bytes]) -> None:
        """Unpack what a node has left besides logs. Where nodes have left files of one name the first one stays."""
        with tempfile.TemporaryFile() as file:
            for chunk in chunks:
                file.write(chunk)
            if not file.tell():
                return
            file.seek(0)
            with tarfile.open(fileobj=file) as archive:
                found = extract(archive, {name: str(self.run.path / name) for name in node.LEAVINGS}, keep=True)
            left: dict[str, list[LeftOut]] = {}
            for path, reason in found.left_out:
                top, _, rest = os.path.normpath(path).partition("/")
                if top == "outputs":
                    output, _, below = rest.partition("/")
                    left.setdefault(output, []).append(LeftOut(below or ".", reason))
            self.run.note_left_out(left)

    def finish(self, end: EngineEnd | None) -> None:
        """Write down the end: as node 0 has reported it, or as the engine says. The nodes are gone."""
        self._mirror.tell()
        report = self._mirror.report()
        if self.run.recorded_state().is_terminal:
            return
        if report and end is not None and not end.explains(report):
            end = None
        elif not report and end is None:
            words = next(filter(None, map(self._mirror.last_words, range(self.plan["nodes"]))), "")
            end = EngineEnd.lost("the nodes ended without a report" + (f": {words}" if words else ""))
        finish(self.run, end, report)


class Foreign(NamedTuple):
    """Of the environment of an engine's processes what is not for ranks."""

    names: list[str]
    beginnings: list[str]


def foreign() -> Foreign:
    """As `jobsdk.compute.environ` knows them."""
    from jobsdk.compute import environ

    return Foreign(*environ.foreign())

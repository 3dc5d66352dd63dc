"""The run's folder here, rebuilt from what its nodes write to their stdout (`bootstrap/transport/stdout_relay.py`)."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, BinaryIO, cast

from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.system import files, private
from jobsdk.bootstrap.transport import stdout_relay
from jobsdk.runs.folder import RunFolder

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.report import RunReport

_FOLDER = "relayed"
_ORIGIN = re.compile(rb'"origin":\[(\d+),(\d+),(\d+)\]')
_OF_OTHER = re.compile(r"node-(\d+)\.(.+)")  # a log of another node than the one that writes it
_STRAYS = 20
_OPEN = 64  # files that are written to at the same time


class Mirror:
    """Takes the nodes' output, in any order between nodes, from any point on, as often as one likes.

    The files' own sizes say what is there already, so that a reader that was killed leaves nothing to repair. Not for
    two processes at once.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._sizes: dict[str, int] = {}
        self._files: dict[str, BinaryIO] = {}
        self.ended: dict[int, int] = {}  # node -> its bootstrap's exit code
        self.strays: dict[int, list[str]] = {}  # node -> last lines that are no records: Python's own, a shell's

    def take(self, node: int, line: bytes, life: int = 0) -> None:
        """One line of a node's output. `life` counts the containers that the engine has started for it one by one."""
        record = stdout_relay.parse(line)
        if record is None:
            said = self.strays.setdefault(node, [])
            said.append(line.decode("utf-8", "replace").rstrip())
            del said[:-_STRAYS]
        elif record.source == stdout_relay.END:
            self.ended[node] = int(record.data)
        elif record.source == stdout_relay.REPORT:
            path = self._path(node, "report.json")
            self._write(path, record)
            if record.data.endswith(b"\n"):
                self._report(path)
        elif record.source.startswith(stdout_relay.STACKS):
            path = f"{self._run.path}/{record.source}.json.part"
            self._write(path, record)
            if record.data.endswith(b"\n"):
                self.flush()
                os.replace(path, path.removesuffix(".part"))
        elif record.source == stdout_relay.EVENTS:
            self._write(self._path(node, f"life-{life}.events.jsonl"), record)
        else:
            # Ranks that are started again have new files; the bootstrap of a new container has an old name.
            again = f".life-{life}" if life and record.source == stdout_relay.BOOTSTRAP else ""
            other = _OF_OTHER.fullmatch(record.source)
            name = other[2] if other else record.source
            folder = paths.node_logs(str(self._run.path), int(other[1]) if other else node)
            self._write(f"{folder}/{name}{again}.log", record)

    def flush(self) -> None:
        """Let all that was taken be in the files, as after `tell`."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def report(self) -> RunReport:
        """The report that node 0 has written; empty where it has come to none yet."""
        return cast("RunReport", self._run.read_json(f"{_FOLDER}/report.json"))

    def last_words(self, node: int) -> str:
        """What the last lines of a node that are no records, or else its bootstrap's own, say."""
        self.flush()
        path = f"{paths.node_logs(str(self._run.path), node)}/{stdout_relay.BOOTSTRAP}.log"
        lines = self.strays.get(node, [])
        if not lines and os.path.exists(path):
            with open(path, "rb") as file:
                file.seek(max(0, files.size(path) - 4096))
                lines = file.read().decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def tell(self) -> bool:
        """Add the nodes' events to the run's, each once; whether the run's end is among those that are known.

        `ended` itself is not added: that is for who knows that all logs are there.
        """
        self.flush()
        done = self._told()
        is_over = False
        folder = self._run.path / _FOLDER
        for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
            match = re.fullmatch(r"node-(\d+)\.life-(\d+)\.events\.jsonl", name)
            if match is None:
                continue
            origin = int(match[1]), int(match[2])
            begin = done.get(origin, 0)
            with open(folder / name, "rb") as file:
                file.seek(begin)
                data = file.read()
            lines = []
            for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
                begin += len(line)
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if event.get("event") == "ended":
                    is_over = True
                    continue
                event["origin"] = [*origin, begin]
                lines.append(json.dumps(event, separators=(",", ":")) + "\n")
            if lines:
                with open(self._run.events_file, "ab", buffering=0, opener=private.opener) as out:
                    out.write("".join(lines).encode())
        return is_over

    def _told(self) -> dict[tuple[int, int], int]:
        """(node, life) -> up to where its events have been added."""
        done: dict[tuple[int, int], int] = {}
        if self._run.events_file.exists():
            for found in _ORIGIN.finditer(self._run.events_file.read_bytes()):
                origin, end = (int(found[1]), int(found[2])), int(found[3])
                done[origin] = max(done.get(origin, 0), end)
        return done

    def _path(self, node: int, name: str) -> str:
        return f"{self._run.path}/{_FOLDER}/node-{node}.{name}"

    def _report(self, path: str) -> None:
        self.flush()
        os.replace(path, self._run.path / _FOLDER / "report.json")
        self._sizes.pop(path, None)

    def _write(self, path: str, record: stdout_relay.Record) -> None:
        """Write what of a record is not in its file yet. What is missing before it becomes a line that says so."""
        size = self._sizes.get(path)
        if size is None:
            private.make_within(os.path.dirname(path))
            size = files.size(path)
        end = record.offset + len(record.data)
        if record.offset > size:
            self.flush()
            _fill(path, size, record.offset)
            size = record.offset
        if end > size:
            self._open(path).write(record.data[size - record.offset :])
            size = end
        self._sizes[path] = size

    def _open(self, path: str) -> BinaryIO:
        if path not in self._files:
            if len(self._files) >= _OPEN:
                self.flush()
            self._files[path] = open(path, "ab", opener=private.opener)  # noqa: SIM115
        return self._files[path]


def _fill(path: str, size: int, until: int) -> None:
    """The engine has thrown away what it was asked for too late: a line in its place, of the same length."""
    words = b"[%d bytes are missing: the engine no longer had them when they were asked for]" % (until - size)
    with open(path, "r+b") as file:
        file.seek(size)
        file.write((words + b"\n" if len(words) < until - size else b"")[: until - size])
        file.truncate(until)  # the rest is a hole

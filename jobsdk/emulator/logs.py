"""The logs of a running job, carried to the blob store while they grow, under the names that Azure ML gives them."""

from __future__ import annotations

import re
from pathlib import Path

from jobsdk.emulator.settings import Settings
from jobsdk.emulator.storage import Storage

_RANK = re.compile(r"rank-(\d+)\.log")
_CHUNK = 4 << 20  # bytes that are read at once


def log_name(rank: int, world_size: int) -> str:
    """The log of a process: one alone has `std_log.txt`, several have numbers of equal width."""
    if world_size == 1:
        return "user_logs/std_log.txt"
    return f"user_logs/std_log_process_{rank:0{len(str(world_size - 1))}d}.txt"


class Logs:
    """`carry` brings what is new in the logs of one run to its append blobs."""

    def __init__(self, storage: Storage, settings: Settings, job: str, folder: Path, world_size: int) -> None:
        self._storage = storage
        self._container = settings.containers["workspaceartifactstore"]
        self._prefix = f"ExperimentRun/dcid.{job}"
        self._folder = folder
        self._world_size = world_size
        self._carried: dict[Path, int] = {}

    def name_of(self, rank: int) -> str:
        return log_name(rank, self._world_size)

    def carry(self) -> None:
        """Everything that has been written since the last time."""
        for path in sorted(self._folder.glob("node-*/*.log")):
            match = _RANK.fullmatch(path.name)
            if match:
                self._carry(path, self.name_of(int(match.group(1))))
            elif path.name == "launcher.log":
                self._carry(path, "user_logs/mpi_log.txt")

    def _carry(self, path: Path, name: str) -> None:
        blob = f"{self._prefix}/{name}"
        if path not in self._carried:
            self._storage.append(self._container, blob, b"", is_new=True)
            self._carried[path] = 0
        with path.open("rb") as file:
            file.seek(self._carried[path])
            while data := file.read(_CHUNK):
                self._storage.append(self._container, blob, data, is_new=False)
                self._carried[path] += len(data)

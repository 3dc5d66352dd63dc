"""Making and running a run folder with the bootstrap alone, without the rest of jobsdk."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobsdk.bootstrap.archive import command
from jobsdk.bootstrap.system import procfs
from jobsdk.job.command import CommandJob
from jobsdk.planning.plan import make_plan

PYTORCH = {"type": "pytorch", "processes": 2, "launcher": "direct"}
#: Ranks of these tests end at once by SIGTERM, or never: only tests of the grace time itself need another one.
GRACE_S = 5.0
#: Keys that only some plans have.
_OPTIONAL = {"network", "preflight", "sealed", "hang_warning_s"}


@functools.lru_cache
def _product_plan() -> dict[str, Any]:
    return make_plan(CommandJob(command="true"), name="run")


def plan(command_text: str, nodes: int = 2, distribution: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The plan that jobsdk makes, with these values in it. A node has two processes by default."""
    base = copy.deepcopy(_product_plan())
    assert more.keys() <= base.keys() | _OPTIONAL, f"no keys of a plan: {more.keys() - base.keys() - _OPTIONAL}"
    return {
        **base, "command": [command_text], "nodes": nodes, "distribution": dict(distribution or PYTORCH),
        "grace_s": GRACE_S, "rendezvous_timeout_s": 60.0, **more,
    }  # fmt: skip


class LocalRun:
    """A supervisor started on a plan in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        the_plan: dict[str, Any],
        argv: list[str] | None = None,
        work: Path | None = None,
        remove_work: bool = False,
        **env: str,
    ) -> None:
        self.folder = folder
        work = work or folder / "work"
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        work.mkdir(exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(the_plan))
        native = {"working_dir": str(work), "in_place": True}
        (folder / "native.json").write_text(json.dumps(native))
        if remove_work:
            work.rmdir()
        self.process = subprocess.Popen(
            argv or command("local", str(folder)),
            env={**os.environ, "JOBSDK_RUN_DIR": str(folder), **env},
            start_new_session=True,
        )

    def wait(self) -> int:
        return self.process.wait(timeout=200)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [event for event in events_in(self.folder) if kind in (None, event["event"])]

    def report(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return content

    def log(self, rank: int) -> str:
        (path,) = self.folder.glob(f"logs/node-*/rank-{rank}.log")
        return path.read_text()

    def until(self, happened: Callable[[], Any]) -> Any:
        """Wait for a condition; its value. Fails after two minutes, or earlier where the run has long ended without."""
        ended: list[float] = []
        too_late = object()

        def happened_or_ended() -> Any:
            if not ended and self.process.poll() is not None:
                ended.append(time.monotonic())
            return happened() or (too_late if ended and time.monotonic() - ended[0] > 30 else None)

        value = wait_for(happened_or_ended)
        assert value is not too_late, f"the run ended before with {self.process.returncode}"
        return value

    def bootstrap_pid(self, node: int) -> int:
        self.until(lambda: len(self.events("rank_started")) >= 1 and self.events("started"))
        # The supervisor may be behind those that it has started.
        return int(self.until(lambda: [one["pid"] for one in self.events("bootstrap_up") if one["node"] == node])[0])


def events_in(folder: Path) -> list[dict[str, Any]]:
    """The events of the run in `folder`; one that is just being written is none yet."""
    path = folder / "events.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def wait_for(happened: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait for a condition; its value. The time is for machines that stand still now and then: it costs nothing."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = happened()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"did not happen within {seconds} s")


def processes_of(folder: Path) -> list[int]:
    """Living processes that were started for the run in `folder`."""
    return carrying(f"JOBSDK_RUN_DIR={folder}")


def carrying(variable: str) -> list[int]:
    """Living processes that were started with this `NAME=value` in their environment (Linux only; elsewhere none)."""
    found = []
    for pid in procfs.table():
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if variable.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found

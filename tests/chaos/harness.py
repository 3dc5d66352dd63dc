"""Running one row of the table, and comparing what came with what should have come."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.archive import command
from jobsdk.bootstrap.system import network
from jobsdk.runs import card
from jobsdk.runs.folder import RunFolder
from tests.bootstrap.runs import LocalRun, events_in, plan, processes_of, wait_for
from tests.chaos.fault import ANY, Fault

TOKEN = "ab" * 32
NAME = "chaos"
_LIMIT = 200.0  # seconds; every row ends long before

Wrap = Callable[[list[str]], list[str]]


def headline(lines: list[str]) -> str:
    """The first line of a card, which may go on in a second."""
    return f"{lines[0]} {lines[1].strip()}" if len(lines) > 1 and lines[1].startswith("  ") else lines[0]


class Result(NamedTuple):
    """What came of a row: `wrong` tells all that is not as it should be."""

    line: str
    line_is_right: bool
    wrong: list[str]
    card: str


class Job:
    """The job of a row. `folder` is its own; the run folders, the code and what ranks tell lie in it."""

    def __init__(self, fault: Fault, folder: Path, jitter: float) -> None:
        self.fault = fault
        self.folder = folder
        self.work = folder / "work"
        self.told = folder / "told"
        self.wraps: dict[int, Wrap] = {}  # how the bootstrap of a node (the supervisor: 0) is started
        self.environ = {"CHAOS": str(self.told), "CHAOS_JITTER": str(jitter), **fault.environ}
        self.environ["PATH"] = self.environ.get("PATH", _path())
        self.address = "127.0.0.1"  # of node 0
        self.more: dict[str, Any] = {}  # changes of the plan
        self.processes: dict[int, subprocess.Popen[Any]] = {}
        self.hosts: Any = None  # namespaces.Hosts, where each node has one of its own
        self.held: list[socket.socket | FileIO] = []  # what is to stay open while the job runs
        self.extra: list[subprocess.Popen[Any]] = []  # bootstraps that are one too many
        self.work.mkdir(parents=True)
        self.told.mkdir()
        os.mkfifo(self.told / "gate")
        if fault.apart:
            (self.port,) = network.free_ports(1)

    # -- what it consists of -------------------------------------------------------------------------------------

    @property
    def run_dir(self) -> Path:
        return self.run_dir_of(0)

    def run_dir_of(self, node: int) -> Path:
        return self.folder / (f"run-{node}" if self.fault.apart else "run")

    def plan(self) -> dict[str, Any]:
        fault = self.fault
        settings = {"grace_s": 6.0, "run": NAME, **fault.plan, **self.more}
        return plan(fault.command, fault.nodes, dict(fault.distribution) if fault.distribution else None, **settings)

    def start(self) -> None:
        shutil.copy(Path(__file__).with_name("part.py"), self.work)
        (self.work / "train.py").write_text("from part import *\n" + self.fault.script)
        if not self.fault.apart:
            argv = self._argv(0, command("local", str(self.run_dir)))
            self.processes[0] = LocalRun(self.run_dir, self.plan(), argv, self.work, **self.environ).process
            return
        for node in range(self.fault.nodes):
            if node not in self.fault.absent:
                self.start_node(node)

    def start_node(self, node: int, run_dir: Path | None = None, **environ: str) -> subprocess.Popen[Any]:
        """The bootstrap of one node, as a scheduler starts it."""
        run_dir = run_dir or self.run_dir_of(node)
        (run_dir / "logs").mkdir(parents=True, exist_ok=True)
        (run_dir / "plan.json").write_text(json.dumps(self.plan()))
        env = {
            **os.environ, "JOBSDK_NODE_RANK": str(node), "JOBSDK_CONTROL": f"{self.address} {self.port}",
            "JOBSDK_TOKEN": TOKEN, "JOBSDK_RUN_DIR": str(run_dir), **self.environ, **environ,
        }  # fmt: skip
        argv = self._argv(node, command("node", str(run_dir)))
        with open(run_dir / "bootstrap.log", "wb") as log:
            started = subprocess.Popen(argv, env=env, cwd=self.work, stderr=log, start_new_session=True)
        if node in self.processes:
            self.extra.append(started)
        else:
            self.processes[node] = started
        return started

    def _argv(self, node: int, argv: list[str]) -> list[str]:
        return self.wraps.get(node, lambda same: same)(argv)

    def said(self, node: int) -> str:
        """What the bootstrap of a node wrote on its stderr."""
        return (self.run_dir_of(node) / "bootstrap.log").read_text()

    # -- what it is doing ----------------------------------------------------------------------------------------

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in events_in(self.run_dir) if event["event"] == kind]

    def until(self, happened: Callable[[], Any]) -> Any:
        return wait_for(happened, _LIMIT)

    def until_up(self, restart: int = 0) -> None:
        world = distributions.of(self.plan()).world_size()
        expected = range(world) if self.fault.comes_up is None else self.fault.comes_up
        files = [self.told / f"up-{restart}-{rank}" for rank in expected]

        def are_up() -> bool:
            if self.processes[0].poll() is not None:
                raise AssertionError(f"it ended too early, with {self.processes[0].returncode}: {self.report()}")
            return all(file.exists() for file in files)

        self.until(are_up)

    def pid(self, rank: int, restart: int = 0) -> int:
        path = self.told / f"up-{restart}-{rank}"
        return int(self.until(path.read_text))  # a shell opens it before it writes

    def bootstrap(self, node: int) -> int:
        """The pid of a node's bootstrap, the present one."""
        if self.fault.apart:
            return self.processes[node].pid
        # The supervisor may be behind those that it has started.
        return int(self.until(lambda: [one["pid"] for one in self.events("bootstrap_up") if one["node"] == node])[-1])

    def report(self) -> dict[str, Any]:
        """As a client sees it."""
        if not self.fault.apart:
            RunFolder(self.run_dir).state()
        return RunFolder(self.run_dir).report()

    def go(self) -> None:
        """Let all go on who wait for it."""
        (self.told / "go").touch()
        self.held.append(open(self.told / "gate", "r+b", buffering=0))  # noqa: SIM115

    # -- its end -------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        for process in self.processes.values():
            process.wait(timeout=_LIMIT)

    def left(self) -> list[str]:
        """What still runs a moment after the end; on a cluster, a killed node 0's ranks are its scheduler's to end."""
        deadline = time.monotonic() + 60.0
        killed = {node for node, process in self.processes.items() if process.returncode == -signal.SIGKILL}
        folders = {
            self.run_dir_of(node) for node in range(self.fault.nodes) if not (self.fault.apart and node in killed)
        }
        while left := [pid for folder in folders for pid in processes_of(folder)]:
            if time.monotonic() > deadline:
                return [f"{pid}: {_command_line(pid)}" for pid in left]
            time.sleep(0.02)
        return []

    def clean(self) -> None:
        for held in self.held:
            held.close()
        for process in [*self.processes.values(), *self.extra]:
            if process.poll() is None:
                process.kill()
            process.wait()
        for node in range(self.fault.nodes):
            for pid in processes_of(self.run_dir_of(node)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def run(fault: Fault, folder: Path, delay: float = 0.0, jitter: float = 0.0) -> Result:
    """Run one row. `delay`: seconds between all ranks being up and the fault; `jitter`: at most so much later in each
    rank."""
    job = Job(fault, folder, jitter)
    with fault.around(job) if fault.around else contextlib.nullcontext():
        try:
            job.start()
            if fault.waits:
                job.until_up()
                time.sleep(delay)
            if fault.inject is not None:
                fault.inject(job)
            job.go()
            job.wait()
            return _compared(job)
        finally:
            job.clean()


def _compared(job: Job) -> Result:
    fault, report, left = job.fault, job.report(), job.left()
    cause = report.get("cause") or {}
    lines = card.render(report, NAME)
    is_right = bool(re.search(fault.first_line, headline(lines)))
    wanted: dict[str, Any] = {"status": fault.status, "exit_code": fault.exit_code}
    came = {"status": report.get("status"), "exit_code": report.get("exit_code"), "class": cause.get("class")}
    wanted["class"] = fault.kind
    if fault.buried and not cause:  # nobody of the run was left to tell more
        del wanted["class"]
    elif fault.kind is not None:
        came.update(rank=cause.get("rank"), node=cause.get("node"))
        wanted.update({key: came[key] if value == ANY else value for key, value in fault.place().items()})
    if fault.ranks is not None:
        wanted["ranks"], came["ranks"] = list(fault.ranks), cause.get("ranks")
    wanted["restarts"] = list(fault.history)
    came["restarts"] = [one["class"] for one in report.get("restarts") or []]
    if fault.process_code is not None:
        wanted["process_code"], came["process_code"] = (
            fault.process_code or fault.exit_code,
            job.processes[0].returncode,
        )
    wrong = [f"{key}: {came[key]!r}, not {wanted[key]!r}" for key in wanted if came[key] != wanted[key]]
    if not is_right:
        wrong.insert(0, f"the first line is {lines[0]!r}")
    text = "\n".join(lines)
    if fault.card and not re.search(fault.card, text):
        wrong.append(f"the card has no {fault.card!r}")
    if len(lines) > 20 or "\x1b" in text:
        wrong.append("the card is too long or not safe for a terminal")
    if cause.get("time") and not (report["started"] or 0.0) - 1 <= cause["time"] <= report["ended"] + 0.1:
        wrong.append(f"the cause is at {cause['time']}, the run from {report['started']} to {report['ended']}")
    if left:
        wrong.append(f"left running: {left}")
    return Result(lines[0], is_right, wrong, text)


def _path() -> str:
    return os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "gone"

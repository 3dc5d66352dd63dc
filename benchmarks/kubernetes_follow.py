"""Following a run of 1,000 pods on Kubernetes: what it costs while nothing happens, and how soon a line is shown."""

from __future__ import annotations

import os
import queue
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

from benchmarks import harness
from benchmarks.harness import Figures, Table
from jobsdk import MLClient, PyTorchDistribution, command
from tests.compute.kubernetes.pods import RUN, Pods
from tests.compute.kubernetes.server import ApiServer

#: A checkout of another version, to be measured beside this one.
_BEFORE = "JOBSDK_BENCH_BEFORE"
_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE_S = 300.0  # seconds in which a line must be shown


class _Client:
    """`jobsdk job stream`, or another command, and the lines that it shows."""

    def __init__(self, tree: Path, *argv: str) -> None:
        env = {**os.environ, "PYTHONPATH": str(tree)}
        argv = (sys.executable, "-m", "jobsdk", "job", *argv)
        self._process = subprocess.Popen(argv, env=env, cwd=tree, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def wait_for(self, text: str, count: int = 1) -> None:
        """Until so many lines with that text have been shown."""
        until = time.monotonic() + _PATIENCE_S
        while count:
            count -= text.encode() in self._lines.get(timeout=until - time.monotonic())

    def cpu(self) -> float:
        """Seconds."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory(self) -> float:
        """Megabytes."""
        found = re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{self._process.pid}/status").read_text())
        return int(found[1]) / 1000 if found else 0.0

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class _Run:
    """A run whose pods do nothing but write a line now and then."""

    def __init__(self, server: ApiServer, home: Path, nodes: int) -> None:
        shutil.rmtree(home, ignore_errors=True)
        (home / "config/jobsdk").mkdir(parents=True)
        os.environ.update(JOBSDK_HOME=str(home / "jobsdk"), XDG_CONFIG_HOME=str(home / "config"))
        os.environ["KUBECONFIG"] = str(home / "kubeconfig")
        server.kubeconfig(home / "kubeconfig")
        (home / "config/jobsdk/computes.yml").write_text("computes: {cluster: {type: kubernetes, image: none}}\n")
        job = command(command="true", compute="cluster", instance_count=nodes, distribution=PyTorchDistribution())
        MLClient().jobs.create_or_update(job, name=RUN)
        self._pods = Pods(server)
        self._sizes = [0] * nodes
        self._pods.runs(*range(nodes))
        self._pods.event({"t": time.time(), "event": "started", "restart": 0})

    def say(self, node: int, text: str) -> None:
        data = f"{text}\n".encode()
        self._pods.writes(node, f"rank-{node}", data, self._sizes[node])
        self._sizes[node] += len(data)


def _streamed(tree: Path, home: Path, nodes: int, seconds: float, *, may_watch: bool) -> Figures:
    """`job stream` of all ranks."""
    with ApiServer() as server:
        server.log_written.every_s = 600.0
        if not may_watch:
            server.forbidden |= {"watch pods", "watch jobs"}
        run = _Run(server, home, nodes)
        for node in range(nodes):
            run.say(node, "begun")
        began = time.monotonic()
        client = _Client(tree, "stream", RUN)
        try:
            client.wait_for("begun", nodes)
            found = {"all ranks' first lines": time.monotonic() - began}
            found |= _idle(server, client, seconds, "streaming")
            waits = []
            for number in range(10):
                time.sleep(random.uniform(0.5, 1.5))
                began = time.monotonic()
                run.say(random.randrange(nodes), f"line {number}.")
                client.wait_for(f"line {number}.")
                waits.append(time.monotonic() - began)
            return {**found, "line to display": median(waits), "line to display, longest": max(waits)}
        finally:
            client.stop()


def _waited(tree: Path, home: Path, nodes: int, seconds: float, *, may_watch: bool) -> Figures:
    """`job wait`, which shows no lines."""
    with ApiServer() as server:
        server.log_written.every_s = 600.0
        if not may_watch:
            server.forbidden |= {"watch pods", "watch jobs"}
        _Run(server, home, nodes)
        server.requests.clear()
        client = _Client(tree, "wait", RUN)
        try:
            while not any("/log" in one for one in server.requests):
                time.sleep(0.05)
            return _idle(server, client, seconds, "waiting")
        finally:
            client.stop()


def _idle(server: ApiServer, client: _Client, seconds: float, doing: str) -> Figures:
    """What the client does while nothing happens, after the same time in which it may become calmer."""
    time.sleep(seconds)
    requests, cpu = len(server.requests), client.cpu()
    time.sleep(seconds)
    return {
        f"requests a minute while {doing}": (len(server.requests) - requests) * 60 / seconds,
        f"CPU a minute while {doing}": (client.cpu() - cpu) * 60 / seconds,
        f"memory while {doing}": client.memory(),
    }


_UNITS = {
    "all ranks' first lines": "s",
    "line to display": "s",
    "line to display, longest": "s",
    "requests a minute while streaming": "",
    "CPU a minute while streaming": "s",
    "memory while streaming": "MB",
    "requests a minute while waiting": "",
    "CPU a minute while waiting": "s",
    "memory while waiting": "MB",
}


def measure(quick: bool) -> Table:
    nodes, seconds = (50, 3.0) if quick else (1000, 30.0)
    here = Path(__file__).resolve().parents[1]
    ways = {"jobsdk": (here, True)}
    if os.environ.get("JOBSDK_BENCH_WITHOUT_PEERS") != "1":
        ways["jobsdk without the right to watch"] = here, False
    if os.environ.get(_BEFORE):
        ways["before"] = (Path(os.environ[_BEFORE]), True)
    medians: dict[str, Figures] = {}
    with harness.scratch() as folder:
        for name, (tree, may_watch) in ways.items():
            streamed = _streamed(tree, folder, nodes, seconds, may_watch=may_watch)
            medians[name] = {**streamed, **_waited(tree, folder, nodes, seconds, may_watch=may_watch)}
    return Table(
        f"Following {nodes:,} pods on Kubernetes",
        "The API server of the tests holds the pods and feeds their logs. `job stream` and `job wait` run in a process "
        f"of their own: {seconds:.0f} s to settle, {seconds:.0f} s in which nothing happens, then ten lines of random "
        f"ranks. {_BEFORE} names a checkout of another version to be measured beside this one.",
        "What following a large run costs the API server and this machine, and how soon a line is seen.",
        harness.by_figure(medians, _UNITS),
    )

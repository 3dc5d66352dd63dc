"""Node 0's control port with up to 10,000 simulated nodes."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time

from benchmarks import harness
from benchmarks.harness import Figures, Row, Table

_UNITS = {
    "all joined": "s", "all told to start": "s", "failure known to all": "s", "failure to the end": "s",
    "one core while idle": "", "CPU in all": "s", "event log": "bytes", "report": "bytes",
}  # fmt: skip
_QUIET_S = 10.0  # seconds over which the heartbeats' cost is measured


def _ours(nodes: int) -> Figures:
    with harness.scratch() as folder:
        program = harness.PROGRAMS / "control_node0.py"
        with _started([program, nodes, folder, _QUIET_S]) as node0:
            assert node0.stdout is not None
            port, half = node0.stdout.readline().split()[1], nodes // 2
            began = time.monotonic()
            members = [
                _started([harness.PROGRAMS / "control_members.py", first, count, port])
                for first, count in ((0, half), (half, nodes - half))
            ]
            joined, started = _all(members, "joined"), _all(members, "started")
            _quiet_has_passed(node0)
            first = members[0]
            assert first.stdin is not None
            first.stdin.write("fail\n")
            first.stdin.flush()
            failed = _one(first, "failed")
            stopped, gone = _all(members, "stopped"), _all(members, "gone")
            found = json.loads(node0.stdout.readline())
            for process in members:
                process.communicate()
    if found["code"] != 3:
        raise RuntimeError(f"the job ended with {found['code']}, not with the failed rank's 3")
    return {
        "all joined": joined - began,
        "all told to start": started - began,
        "failure known to all": stopped - failed,
        "failure to the end": gone - failed,
        "one core while idle": found["idle CPU"],
        "CPU in all": found["CPU in all"],
        "event log": found["events"],
        "report": found["report"],
    }


def _started(words: list[object]) -> subprocess.Popen[str]:
    command = [sys.executable, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _one(process: subprocess.Popen[str], what: str) -> float:
    assert process.stdout is not None
    found, at = process.stdout.readline().split()
    if found != what:
        raise RuntimeError(f"simulated nodes: {found!r} instead of {what!r}")
    return float(at)


def _all(members: list[subprocess.Popen[str]], what: str) -> float:
    """When it had happened to the last member."""
    return max(_one(one, what) for one in members)


def _quiet_has_passed(node0: subprocess.Popen[str]) -> None:
    assert node0.stdout is not None
    if node0.stdout.readline() != "quiet\n":
        raise RuntimeError("node 0 has ended")


def _tcpstore(nodes: int) -> Figures:
    with harness.scratch() as folder:
        return harness.figures([sys.executable, harness.PROGRAMS / "control_tcpstore.py", str(nodes)], folder=folder)


def measure(quick: bool) -> Table:
    rows: list[Row] = []
    for nodes in (100,) if quick else (100, 1000, 10_000):
        contenders = {"jobsdk": functools.partial(_ours, nodes)}
        if harness.takes_part("torch"):
            contenders["torch's TCPStore"] = functools.partial(_tcpstore, nodes)
        medians = harness.rounds(contenders, 1 if quick else 3)
        rows += harness.by_figure(medians, _UNITS, f", {nodes:,} nodes")
    return Table(
        "Many nodes",
        "One coordinator, and simulated nodes of one rank in two other processes: they join, start, send a heartbeat "
        "every 3 s, and stop when one rank has failed. A failure is held for 0.2 s, to see which one was first. "
        "TCPStore: one server and as many clients in two processes, which wait for a key; it has neither heartbeats "
        "nor a log. Its joining is left out where the machine has no quick name service, which its clients ask.",
        "Node 0 can look after 10,000 nodes without relays.",
        rows,
    )

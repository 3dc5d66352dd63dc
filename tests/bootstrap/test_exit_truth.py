"""What a job ends with, whatever goes wrong in it: every fault, all distributions, one node and two.

State, exit code, class and place of the cause; and never success. A scheduler, a script and a person rely on it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from jobsdk.bootstrap.archive import command
from tests.cgroups import memory_cgroup

from .runs import LocalRun, plan, processes_of

DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "pytorch": {"type": "pytorch", "processes": 2, "launcher": "direct"},
    "tensorflow": {"type": "tensorflow", "launcher": "direct", "parameter_servers": 0, "chief": False},
    "mpi": {"type": "mpi", "processes": 2, "launcher": "mpirun"},
    "deepspeed": {"type": "deepspeed", "processes": 2, "launcher": "direct"},
}

SCRIPT = """
import os, signal, sys, time
fault, last, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if int(os.environ["RANK"]) == last:
    open(folder + "/pid", "w").write(str(os.getpid()))
    if fault == "exit":
        sys.exit(7)
    if fault == "exception":
        raise ValueError("no such layer")
    if fault == "signal":
        os.kill(os.getpid(), signal.SIGUSR1)
    if fault == "memory":
        keep = [bytearray(8 << 20) for _ in range(200)]
open(f"{folder}/up-{os.environ['RANK']}", "w").close()
time.sleep(600)
"""


class Fault(NamedTuple):
    """What is done, and what must come of it."""

    name: str
    status: str
    exit_code: int
    kind: str | None  # the class of the cause; None: there is none
    is_of_rank: bool = False  # the cause is the last rank
    do: Callable[[LocalRun, int], None] = lambda run, nodes: None
    plan: Mapping[str, Any] = MappingProxyType({})


def kill_last_rank(run: LocalRun, nodes: int) -> None:
    run.until(lambda: (run.folder / "pid").exists() and (run.folder / "pid").read_text())
    os.kill(int((run.folder / "pid").read_text()), signal.SIGTERM)


def kill_last_node(run: LocalRun, nodes: int) -> None:
    os.kill(run.bootstrap_pid(nodes - 1), signal.SIGKILL)


def take_last_node(run: LocalRun, nodes: int) -> None:
    os.kill(run.bootstrap_pid(nodes - 1), signal.SIGTERM)


def cancel(run: LocalRun, nodes: int) -> None:
    run.process.send_signal(signal.SIGTERM)


FAULTS = [
    Fault("exit", "Failed", 7, "exit", True),
    Fault("exception", "Failed", 1, "exception", True),
    Fault("signal", "Failed", 138, "signal", True),
    Fault("memory", "Failed", 137, "out_of_memory", True),
    Fault("SIGTERM to a rank", "Failed", 143, "signal", True, kill_last_rank),
    Fault("SIGTERM to a bootstrap", "Preempted", 143, "preempted", False, take_last_node),
    Fault("timeout", "TimedOut", 124, "timeout", plan={"timeout_s": 1}),
    Fault("missing input", "Failed", 126, "bootstrap_error",
          plan={"inputs": {"data": {"type": "uri_folder", "mode": None, "uri": "/nowhere/at/all"}}}),
    Fault("no working folder", "Failed", 126, "bootstrap_error"),
    Fault("node lost", "Lost", 125, "node_lost", False, kill_last_node),
    Fault("cancel", "Canceled", 130, None, False, cancel),
]  # fmt: skip


_LIMIT = 400 << 20


def _rows() -> Iterator[Any]:
    """Every fault on two nodes with each way of starting ranks: by jobsdk itself and by mpirun.

    The other distributions, which jobsdk starts as it does pytorch's, and one node take turns with the faults.
    """
    for number, fault in enumerate(FAULTS):
        chosen = [("pytorch", 2), ("mpi", 2), (["tensorflow", "deepspeed"][number % 2], 2)]
        for distribution, nodes in [*chosen, (list(DISTRIBUTIONS)[number % 4], 1)]:
            engine = [pytest.mark.engine("cgroup")] if fault.name == "memory" else []
            framework = [pytest.mark.framework("mpi")] if distribution == "mpi" else []
            name = f"{fault.name.replace(' ', '-')}-{distribution}-{nodes}"
            yield pytest.param(fault, distribution, nodes, id=name, marks=[*engine, *framework])


@pytest.mark.parametrize(("fault", "distribution", "nodes"), list(_rows()))
def test_truth(
    tmp_path: Path, fault: Fault, distribution: str, nodes: int, may_leave_files: Callable[[], None]
) -> None:
    if fault.do is kill_last_node:
        may_leave_files()
    shape = dict(DISTRIBUTIONS[distribution])
    if distribution == "tensorflow":
        shape["workers"] = nodes
    last = nodes * shape.get("processes", 1) - 1
    folder, script = tmp_path / "run", tmp_path / "script.py"
    script.write_text(SCRIPT)
    text = f"exec python {script} {fault.name.split()[0]} {last} {folder}"
    work = tmp_path / "work"
    argv = command("local", str(folder))
    with contextlib.ExitStack() as stack:
        if fault.name == "memory":
            cgroup = stack.enter_context(memory_cgroup(_LIMIT))
            argv = ["sh", "-c", 'echo $$ > "$0"/cgroup.procs; exec "$@"', str(cgroup), *argv]
        the_plan = plan(text, nodes, shape, **fault.plan)
        _check(fault, nodes, last, LocalRun(folder, the_plan, argv, work, fault.name == "no working folder"))


def _check(fault: Fault, nodes: int, last: int, run: LocalRun) -> None:
    folder = run.folder
    if fault.do is kill_last_node or fault.do is take_last_node or fault.do is cancel:
        run.until(lambda: len(list(folder.glob("up-*"))) == last + 1)
    fault.do(run, nodes)
    code = run.wait()
    report = run.report()
    cause = report["cause"] or {"class": None}
    truth = (report["status"], report["exit_code"], cause["class"])
    assert truth == (fault.status, fault.exit_code, fault.kind), report
    assert code == fault.exit_code
    if fault.is_of_rank:
        assert (cause["rank"], cause["node"]) == (last, nodes - 1)
    assert not processes_of(folder)

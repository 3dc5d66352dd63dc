"""From a command to the first optimizer step of a DistributedDataParallel model, and the job's memory then."""

from __future__ import annotations

import functools
import time
from pathlib import Path

from benchmarks import harness, launchers
from benchmarks.harness import Figures, Table

SCRIPT = harness.PROGRAMS / "first_step.py"
RANKS = 4
#: DistributedDataParallel and the optimizers import torch._dynamo, which takes nearly as long as torch itself.
MODULES = "torch,torch._dynamo"


def _first_step(command: launchers.Command, ranks: int) -> Figures:
    with harness.scratch() as folder:
        with harness.Job(command, folder=folder, env={"BENCHMARK_FOLDER": str(folder)}) as job:
            while job.runs() and len(list(folder.glob("clock-*"))) < ranks:
                time.sleep(0.01)
            memory = _memory(job.processes())
            (folder / "go").touch()
            usage = job.wait()
        clocks = [float(clock.read_text()) for clock in folder.glob("clock-*")]
    if len(clocks) != ranks:
        raise RuntimeError(f"{len(clocks)} of {ranks} ranks took their step: {command}")
    return {
        "first step of all ranks": max(clocks) - job.began_at,
        "CPU until the end": usage.cpu,
        "memory of all processes": memory,
    }


def _memory(pids: list[int]) -> float:
    """Megabytes of all these processes together: what several share counts once (PSS)."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def measure(quick: bool) -> Table:
    ranks = 2 if quick else RANKS
    commands = {
        f"jobsdk run --preload {MODULES}": launchers.jobsdk(ranks, SCRIPT, options=["--preload", MODULES]),
        "jobsdk run --preload torch": launchers.jobsdk(ranks, SCRIPT, options=["--preload", "torch"]),
        "jobsdk run": launchers.jobsdk(ranks, SCRIPT),
        "bare loop": launchers.bare(ranks, SCRIPT),
    }
    if launchers.find("torchrun"):
        commands["torchrun"] = launchers.torchrun(ranks, SCRIPT)
    medians = harness.rounds(
        {name: functools.partial(_first_step, command, ranks) for name, command in commands.items()},
        1 if quick else 3,
    )
    units = {"first step of all ranks": "s", "CPU until the end": "s", "memory of all processes": "MB"}
    return Table(
        f"From a command to the first optimizer step, {ranks} ranks",
        "Every rank imports torch, joins a gloo group, wraps a linear layer in DistributedDataParallel and takes one "
        "step; the clock of the last one counts. Then all wait while the memory of the job's whole tree is summed "
        "up, launcher included, with shared pages counted once (PSS).",
        "The wait from the command until training moves. `--preload` imports the modules once on each node, and its "
        "ranks begin as forks of that process; torch itself imports `torch._dynamo` when the first optimizer or "
        "DistributedDataParallel is made.",
        harness.by_figure(medians, units),
    )

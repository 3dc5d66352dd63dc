"""The CIFAR-10 example's training under jobsdk and under torchrun."""

from __future__ import annotations

import functools
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness, launchers
from benchmarks.harness import Figures, Row, Table
from jobsdk.bootstrap.system.processes import cores

EXAMPLE = Path(__file__).resolve().parent.parent / "src_examples" / "cifar10"
SCRIPT = harness.PROGRAMS / "train.py"


def _jobsdk(nodes: int, processes: int, arguments: Sequence[str]) -> Sequence[launchers.Command]:
    return [launchers.jobsdk(processes, SCRIPT, *arguments, nodes=nodes)]


def _torchrun(nodes: int, processes: int, arguments: Sequence[str]) -> Sequence[launchers.Command]:
    rendezvous = launchers.rendezvous("static")
    agents = [launchers.torchrun_node(node, nodes, processes, rendezvous) for node in range(nodes)]
    return [[*agent, str(SCRIPT), *arguments] for agent in agents]


LAUNCHERS = {"jobsdk run": _jobsdk, "torchrun": _torchrun}


def _train(launcher: str, nodes: int, processes: int, data: Path, epochs: int, env: dict[str, str]) -> Figures:
    with harness.scratch() as folder:
        arguments = [str(EXAMPLE / "train.py"), "--data-dir", str(data), "--epochs", str(epochs), "--device", "cpu"]
        commands = LAUNCHERS[launcher](nodes, processes, [*arguments, "--model-dir", str(folder)])
        usage = harness.run(*commands, folder=folder, env={"BENCHMARK_FOLDER": str(folder), **env})
        output = (folder / "stdout").read_text()
        threads = int((folder / "threads").read_text())
    seconds = [float(text) for text in re.findall(r"epoch \d+/\d+ loss \S+ \((\S+) s\)", output)]
    if len(seconds) != epochs:
        raise RuntimeError(f"{len(seconds)} of {epochs} epochs in the output:\n{output[-3000:]}")
    warm = seconds[1:] or seconds
    return {"an epoch": statistics.median(warm), "the whole command": usage.seconds, "threads of a process": threads}


def _settings(nodes: int, processes: int) -> dict[str, dict[str, str]]:
    """Each launcher's default, and the same number of threads for both where the defaults differ."""
    ours = max(1, cores() // nodes // processes)
    theirs = 1 if processes > 1 else cores()
    shape = f"{nodes} node{'s' * (nodes > 1)} x {processes}"
    alike = {f"{shape}, OMP_NUM_THREADS={theirs}": {"OMP_NUM_THREADS": str(theirs)}} if ours != theirs else {}
    return {shape: {}, **alike}


def measure(quick: bool) -> Table:
    images, epochs, turns = (20, 1, 1) if quick else (400, 8, 3)
    shapes = [(2, 2)] if quick else [(2, 2), (1, 1)]
    names = [name for name in LAUNCHERS if name == "jobsdk run" or launchers.find(name)]
    units = {"an epoch": "s", "the whole command": "s", "threads of a process": ""}
    rows: list[Row] = []
    with harness.scratch() as folder:
        data = folder / "cifar-10-batches-py"
        make = [sys.executable, str(EXAMPLE / "make_data.py"), str(data), "--images-per-batch", str(images)]
        subprocess.run(make, check=True)
        for nodes, processes in shapes:
            for where, env in _settings(nodes, processes).items():
                contenders = {
                    name: functools.partial(_train, name, nodes, processes, data, epochs, env) for name in names
                }
                rows += harness.by_figure(harness.rounds(contenders, turns), units, f", {where}")
    return Table(
        "Training the CIFAR-10 example",
        f"`src_examples/cifar10/train.py` on {5 * images:,} images in the data set's format, {epochs} epochs; an epoch "
        "is the median of all but the first, as the script prints them. torchrun runs as one agent for each node, with "
        "static rendezvous on loopback. By default a process gets the node's cores over its processes from jobsdk, "
        "and one thread from torchrun when a node has several; where the two differ on the machine, both are measured "
        "with torchrun's number as well.",
        "A launcher should cost nothing while training runs. Two simulated nodes share this machine's cores.",
        rows,
    )

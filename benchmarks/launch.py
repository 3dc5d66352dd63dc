"""From a command to the first line of user code."""

from __future__ import annotations

import functools
from collections.abc import Callable

from benchmarks import harness, launchers
from benchmarks.harness import Figures, Row, Table

SCRIPT = harness.PROGRAMS / "first_line.py"
UNITS = {"first line": "s", "last rank's first line": "s", "end": "s", "CPU of all processes": "s"}


def launch(launcher: Callable[..., launchers.Command], ranks: int) -> Figures:
    with harness.scratch() as folder:
        with harness.Job(launcher(ranks, SCRIPT), folder=folder, env={"BENCHMARK_FOLDER": str(folder)}) as job:
            usage = job.wait()
        clocks = [float(file.read_text()) for file in folder.glob("clock-*")]
    if len(clocks) != ranks:
        raise RuntimeError(f"{len(clocks)} of {ranks} ranks wrote their first line")
    return {
        "first line": min(clocks) - job.began_at,
        "last rank's first line": max(clocks) - job.began_at,
        "end": usage.seconds,
        "CPU of all processes": usage.cpu,
    }


def measure(quick: bool) -> Table:
    contenders = {
        "jobsdk run": launchers.jobsdk,
        "bare loop": launchers.bare,
        **launchers.present(torchrun=launchers.torchrun, mpirun=launchers.mpirun, accelerate=launchers.accelerate),
    }
    rows: list[Row] = []
    for ranks in (2,) if quick else (1, 4, 8, 32):
        medians = harness.rounds(
            {name: functools.partial(launch, launcher, ranks) for name, launcher in contenders.items()},
            1 if quick else 5 if ranks <= 8 else 3,
        )
        where = f", {ranks} rank{'s' if ranks > 1 else ''}"
        over = {name: figures["first line"] - medians["bare loop"]["first line"] for name, figures in medians.items()}
        del over["bare loop"]
        rows += harness.by_figure(medians, UNITS, where)
        rows.append(Row(f"first line over the bare loop's{where}", "s", over))
    return Table(
        "From a command to the first line of user code",
        "The script imports nothing but `os` and `time` and writes the clock to a file. The bare loop is a loop of "
        "`sh` that starts N processes and waits for them. accelerate is given `--multi_gpu` from 4 ranks on, "
        "since with `--cpu` it starts one process only.",
        "What a launcher adds to the start and the end of every job, and to each try while one develops.",
        rows,
    )

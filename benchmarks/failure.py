"""From a rank's failure to the end of the job, on two nodes of two processes."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Sequence

from benchmarks import harness, launchers
from benchmarks.harness import Figures, Row, Table

SCRIPT = harness.PROGRAMS / "failing.py"


def _jobsdk() -> Sequence[launchers.Command]:
    return [launchers.jobsdk(2, SCRIPT, nodes=2)]


def _torchrun(backend: str) -> Sequence[launchers.Command]:
    rendezvous = launchers.rendezvous(backend)
    return [[*launchers.torchrun_node(node, 2, 2, rendezvous), str(SCRIPT)] for node in range(2)]


def _fail(commands: Callable[[], Sequence[launchers.Command]], limit: float) -> Figures:
    with harness.scratch() as folder:
        with harness.Job(*commands(), folder=folder, env={"BENCHMARK_FOLDER": str(folder)}) as job:
            while job.runs() and not (folder / "failed").exists():
                time.sleep(0.01)
            killer = threading.Timer(limit, job.kill)
            killer.start()
            usage = job.wait(may_fail=True)
            killer.cancel()
        failed = float((folder / "failed").read_text()) - job.began_at
        errors = (folder / "stderr").read_text(errors="replace")
    if all(code < 0 for code in usage.codes) or not any(usage.codes):
        raise RuntimeError(f"no command told of the failure: {usage.codes}\n{errors[-3000:]}")
    ends = [math.inf if code == -9 else end - failed for end, code in zip(usage.ends, usage.codes, strict=True)]
    return {
        "until a command has ended": min(ends),
        "until the whole job has ended": max(ends),
        "exit code (the rank's was 3)": max(usage.codes),
    }


def measure(quick: bool) -> Table:
    limit = 2 if quick else 10
    contenders = {"jobsdk run": _jobsdk}
    if launchers.find("torchrun"):
        contenders["torchrun, c10d"] = functools.partial(_torchrun, "c10d")
        contenders["torchrun, static"] = functools.partial(_torchrun, "static")
    medians = harness.rounds(
        {name: functools.partial(_fail, commands, limit) for name, commands in contenders.items()}, 1 if quick else 3
    )
    units = {"until a command has ended": "s", "until the whole job has ended": "s", "exit code (the rank's was 3)": ""}
    rows = [
        Row(figure, unit, {name: f"not within {limit} s" if v == math.inf else v for name, v in values.items()})
        for figure, unit, values in harness.by_figure(medians, units)
    ]
    return Table(
        "From a rank's failure to the job's end, 2 nodes x 2 processes",
        "Rank 3 exits with code 3 when all have started; the other ranks are busy and would go on for an hour. "
        f"torchrun runs as one agent for each node. What still ran {limit} s after the failure was killed.",
        "How long machines stay occupied by a job that is dead already.",
        rows,
    )

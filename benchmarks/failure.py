"""From a rank's failure to the end of the job, and to the words that say which rank it was."""

from __future__ import annotations

import functools
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import harness, launchers
from benchmarks.harness import Figures, Row, Table

SCRIPT = harness.PROGRAMS / "failing.py"
#: The culprit in the launcher's own words, on its stdout or stderr: jobsdk's, torchrun's.
_NAMED = re.compile(rb"rank 3 on node \d|exitcode: 3\) local_rank: \d")

_FIRST, _END, _TOLD, _CODE = "first command ended", "job ended", "cause named", "exit code (the rank's was 3)"
_UNITS = {_FIRST: "s", _END: "s", _TOLD: "s", _CODE: ""}
Commands = Callable[[], Sequence[launchers.Command]]


def _jobsdk(nodes: int, *arguments: str) -> Sequence[launchers.Command]:
    return [launchers.jobsdk(4 // nodes, SCRIPT, *arguments, nodes=nodes)]


def _torchrun(*arguments: str) -> Sequence[launchers.Command]:
    return [launchers.torchrun(4, SCRIPT, *arguments)]


def _agents(backend: str) -> Sequence[launchers.Command]:
    rendezvous = launchers.rendezvous(backend)
    return [[*launchers.torchrun_node(node, 2, 2, rendezvous), str(SCRIPT)] for node in range(2)]


def _fail(commands: Commands, limit: float) -> Figures:
    """Seconds from the failure on; what has not come by `limit` is infinite."""
    with harness.scratch() as folder:
        with harness.Job(*commands(), folder=folder, env={"BENCHMARK_FOLDER": str(folder)}) as job:
            while job.runs() and not (folder / "failed").exists():
                time.sleep(0.01)
            killer = threading.Timer(limit, job.kill)
            killer.start()
            told = _Told(folder)
            usage = job.wait(may_fail=True)
            killer.cancel()
            killer.join()  # it would take the next job for what is left of this one
            named_at = told.at()
        errors = (folder / "stderr").read_text(errors="replace")
        failed_at = float((folder / "failed").read_text()) if (folder / "failed").exists() else math.nan
    if math.isnan(failed_at) or not all(code > 0 or code == -9 for code in usage.codes):
        raise RuntimeError(f"not every command told of the failure: {usage.codes}\n{errors[-3000:]}")
    ends = [
        math.inf if code == -9 else job.began_at + end - failed_at
        for end, code in zip(usage.ends, usage.codes, strict=True)
    ]
    code = max(usage.codes)
    return {
        _FIRST: min(ends),
        _END: max(ends),
        _TOLD: named_at - failed_at,
        _CODE: code if code > 0 else math.inf,
    }


class _Told(threading.Thread):
    """Looks at what the job writes until it names the culprit."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._files = [folder / "stdout", folder / "stderr"]
        self._over = threading.Event()
        self._at = math.inf
        self.start()

    def run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(0.005)  # and then a last look
            if any(_NAMED.search(file.read_bytes()) for file in self._files):
                self._at = time.time()
                return

    def at(self) -> float:
        """When it was named, now that the job has ended; infinite if it never was."""
        self._over.set()
        self.join()
        return self._at


def _rows(contenders: Mapping[str, Commands], where: str, limit: float, count: int) -> list[Row]:
    """`limit`: seconds after the failure at which what still runs is killed."""
    several = any(len(commands()) > 1 for commands in contenders.values())
    units = {figure: unit for figure, unit in _UNITS.items() if figure != _FIRST or several}
    medians = harness.rounds(
        {name: functools.partial(_fail, commands, limit) for name, commands in contenders.items()}, count
    )
    return [
        Row(row.figure, row.unit, {name: _shown(value, limit) for name, value in row.values.items()})
        for row in harness.by_figure(medians, units, f", {where}")
    ]


def _shown(value: harness.Value, limit: float) -> harness.Value:
    return f"still running after {limit:g} s" if value == math.inf else value


def measure(quick: bool) -> Table:
    partial = functools.partial
    one: dict[str, Commands] = {"jobsdk run": partial(_jobsdk, 1)}
    stubborn: dict[str, Commands] = {"jobsdk run": partial(_jobsdk, 1, "stubborn")}
    two: dict[str, Commands] = {"jobsdk run": partial(_jobsdk, 2)}
    if launchers.find("torchrun"):
        one["torchrun"] = _torchrun
        stubborn["torchrun"] = partial(_torchrun, "stubborn")
        two["torchrun"] = partial(_agents, "c10d")
        two["torchrun, static"] = partial(_agents, "static")
    count = 1 if quick else 3
    rows = [
        *_rows(one, "1 node x 4", 5 if quick else 15, count),
        *_rows(stubborn, "1 node x 4, rank 0 ignores SIGTERM", 2 if quick else 60, count),
        *_rows(two, "2 nodes x 2", 5 if quick else 15, count),
    ]
    return Table(
        "From a rank's failure to the job's end",
        "Rank 3 exits with code 3 when all have started; the others go on for an hour. The cause is named when the "
        "launcher's own output says which rank failed. What ignores SIGTERM is killed after a grace time of 10 s "
        "(jobsdk's default) or 30 s (torchrun's). On two nodes torchrun runs as one agent for each, with its c10d "
        "rendezvous or a static one. What still ran 15 s after the failure (60 s where SIGTERM is ignored) was killed.",
        "How long machines stay occupied by a job that is dead already, and how long until its user knows why.",
        rows,
    )

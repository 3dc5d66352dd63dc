"""What the benchmarks share: contenders measured in turn, jobs timed from outside, tables of ratios."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

from jobsdk.bootstrap.system import processes

PROGRAMS = Path(__file__).with_name("programs")

_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT  # leaves what has ended to `Job.wait`

Figures = Mapping[str, float]
Value = float | str  # words where there is no number
Env = Mapping[str, str]  # variables besides the benchmark's own
NONE: Env = {}


def takes_part(module: str) -> bool:
    """Whether a peer's module is installed, and not left out by `--without-peers`."""
    if os.environ.get("JOBSDK_BENCH_WITHOUT_PEERS") == "1":
        return False
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


class Row(NamedTuple):
    """One figure of several contenders, ours first."""

    figure: str
    unit: str  # "s", "MB", "lines/s", ...; "" for a number that has no use for a ratio
    values: Mapping[str, Value]


class Table(NamedTuple):
    title: str
    method: str  # how it is measured
    meaning: str  # what it says to a user
    rows: Sequence[Row]

    def __str__(self) -> str:
        """A Markdown table that reads well as it is. A peer's cell has its ratio to ours first."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row.values))
        cells = [["figure", *columns]]
        for row in self.rows:
            ours = row.values.get(columns[0])
            shown = [_cell(row.values.get(name), row.unit, None if name == columns[0] else ours) for name in columns]
            cells.append([row.figure, *shown])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
        lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
        return "\n".join(lines)


def _cell(value: Value | None, unit: str, ours: Value | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    text = _number(value, unit)
    if not unit or not isinstance(ours, (int, float)) or ours <= 0 or value <= 0:
        return text
    return f"{_digits(value / ours)} x ({text})"


def _number(value: float, unit: str) -> str:
    if unit == "s" and 0 < value < 1:
        value, unit = 1000 * value, "ms"
    return f"{_digits(value)} {unit}".rstrip()


def _digits(value: float) -> str:
    """Three digits that count, whole numbers from 100 on."""
    if value == 0 or abs(value) >= 99.95 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def rounds(contenders: Mapping[str, Callable[[], Figures]], count: int) -> dict[str, dict[str, float]]:
    """Measure each contender in turn (A B C A B C ...), so that a drift of the machine meets all: name -> medians.

    A first round, which warms caches, is not counted; a `count` of 1 is for trying things out and does without it.
    """
    found: dict[str, list[Figures]] = {name: [] for name in contenders}
    for number in range(count + (count > 1)):
        for name, measure in contenders.items():
            figures = measure()
            if number > 0 or count == 1:
                found[name].append(figures)
    return {
        name: {figure: statistics.median(one[figure] for one in measured) for figure in measured[0]}
        for name, measured in found.items()
    }


def by_figure(medians: Mapping[str, Figures], units: Mapping[str, str], where: str = "") -> list[Row]:
    """Rows of what `rounds` found: one for each figure in `units`."""
    return [
        Row(figure + where, unit, {name: figures[figure] for name, figures in medians.items() if figure in figures})
        for figure, unit in units.items()
    ]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one measurement."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        yield Path(folder)


class Usage(NamedTuple):
    """What a job took."""

    ends: tuple[float, ...]  # seconds from the start to the end of each of its commands
    codes: tuple[int, ...]  # their exit codes
    cpu: float  # seconds, of all its processes

    @property
    def seconds(self) -> float:
        return max(self.ends)


class Job:
    """Commands that belong together (one for each node), started at once and timed from outside.

    What they write goes to the files `stdout` and `stderr` in `folder`. The benchmark is a subreaper, so that daemons
    count as well: no other child process may be left when a job starts. After `limit` seconds all is killed.
    """

    def __init__(
        self,
        *commands: Sequence[str | Path],
        folder: Path,
        cwd: Path | None = None,
        env: Env = NONE,
        limit: float = 300,
    ) -> None:
        processes.become_subreaper()
        self._folder = folder
        self.killer = threading.Timer(limit, self.kill)
        self.killer.daemon = True
        with open(folder / "stdout", "ab") as out, open(folder / "stderr", "ab") as errors:
            self.began_at = time.time()
            self._began = time.monotonic()
            self._commands = [
                subprocess.Popen(
                    list(map(str, command)),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=errors,
                    cwd=cwd or folder,
                    env={**os.environ, **env},
                    start_new_session=True,
                )
                for command in commands
            ]
        self.killer.start()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves nothing running, whatever happened."""
        self.killer.cancel()
        self.kill()
        processes.reap()

    def processes(self) -> list[int]:
        """The pids of all that the job has started and that still runs."""
        return processes.descendants(os.getpid())

    def runs(self) -> bool:
        """Whether none of the commands has ended."""
        return all(os.waitid(os.P_PID, command.pid, _LOOK) is None for command in self._commands)

    def wait(self, may_fail: bool = False) -> Usage:
        """Wait for the end of all its processes. Raises RuntimeError if a command fails, unless it `may_fail`."""
        cpu = 0.0
        ends: dict[int, float] = {}
        while True:
            try:
                pid, status, usage = os.wait4(-1, 0)
            except ChildProcessError:
                break
            cpu += usage.ru_utime + usage.ru_stime
            for command in self._commands:
                if command.pid == pid:
                    ends[pid] = time.monotonic() - self._began
                    command.returncode = os.waitstatus_to_exitcode(status)
        for command in self._commands:
            if command.returncode != 0 and not may_fail:
                last = (self._folder / "stderr").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{command.args!r} ended with {command.returncode}:\n{last}")
        codes = tuple(command.returncode for command in self._commands)
        return Usage(tuple(ends[command.pid] for command in self._commands), codes, cpu)

    def kill(self) -> None:
        """SIGKILL; `wait` or the end of the block collects what it ended."""
        while left := self.processes():
            processes.send(left, SIGKILL)
            time.sleep(0.01)


def run(*commands: Sequence[str | Path], folder: Path, cwd: Path | None = None, env: Env = NONE) -> Usage:
    """Run one job to its end."""
    with Job(*commands, folder=folder, cwd=cwd, env=env) as job:
        return job.wait()


def figures(command: Sequence[str | Path], *, folder: Path, env: Env = NONE) -> dict[str, float]:
    """What a program that measures by itself writes on stdout, as JSON."""
    run(command, folder=folder, env=env)
    found: dict[str, float] = json.loads((folder / "stdout").read_text())
    return found

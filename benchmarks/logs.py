"""The lines of all ranks as a launcher shows them: how many in a second, whether all and whole, at what cost."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import harness, launchers
from benchmarks.harness import Figures, Table

SCRIPT = harness.PROGRAMS / "lines.py"
RANKS = 8
ONE_BY_ONE = "of a tenth, written one by one"

#: `[rank 3] text`, `[default3]:text`, `[1,3]<stdout>:text`
_LINE = re.compile(rb"\[[^\]]*?(\d+)\](?:<stdout>)?:? *((\d+) (\d+) .*) ([0-9a-f]{8})")


class _Shown(NamedTuple):
    lost: int
    torn: int


def _check(output: Path, lines: int) -> _Shown:
    """How many of every rank's lines are missing, and how many that are shown are no whole line of the rank named."""
    seen = [bytearray(lines) for _ in range(RANKS)]
    torn = 0
    with open(output, "rb") as file:
        for line in file:
            found = _LINE.fullmatch(line.rstrip(b"\n"))
            if found is None or found[1] != found[3] or zlib.crc32(found[2]) != int(found[5], 16):
                torn += 1
            else:
                seen[int(found[3])][int(found[4])] = 1
    return _Shown(RANKS * lines - sum(map(sum, seen)), torn)


class _Written(NamedTuple):
    usage: harness.Usage
    seconds: float  # from the first rank's first byte to the command's end
    size: int
    launcher_cpu: float
    shown: _Shown


def _write(launcher: Callable[..., launchers.Command], lines: int, *how: str) -> _Written:
    with harness.scratch() as folder:
        command = launcher(RANKS, SCRIPT, str(lines), *how)
        with harness.Job(command, folder=folder, env={"BENCHMARK_FOLDER": str(folder)}) as job:
            usage = job.wait()
        ranks = [list(map(float, file.read_text().split())) for file in folder.glob("rank-*")]
        began, sizes, cpu = zip(*ranks, strict=True)
        seconds = job.began_at + usage.seconds - min(began)
        return _Written(usage, seconds, int(sum(sizes)), usage.cpu - sum(cpu), _check(folder / "stdout", lines))


def _measure(launcher: Callable[..., launchers.Command], lines: int) -> Figures:
    """What the lines cost is what the launcher needs more than for hardly any."""
    least, most = _write(launcher, 1), _write(launcher, lines)
    by_line = _write(launcher, lines // 10, "by-line").shown
    return {
        "lines per second": RANKS * lines / most.seconds,
        "lines lost": most.shown.lost,
        "lines torn": most.shown.torn,
        f"lines lost {ONE_BY_ONE}": by_line.lost,
        f"lines torn {ONE_BY_ONE}": by_line.torn,
        "launcher's CPU for 1 MB": (most.launcher_cpu - least.launcher_cpu) / (most.size / 1e6),
    }


def measure(quick: bool) -> Table:
    lines = 2_000 if quick else 125_000
    installed = launchers.present(torchrun=launchers.torchrun, mpirun=launchers.mpirun)
    options = {"torchrun": ["--tee", "3"], "mpirun": ["--tag-output"]}
    contenders: dict[str, Callable[..., launchers.Command]] = {"jobsdk run": launchers.jobsdk}
    for name, launcher in installed.items():
        contenders[f"{name} {' '.join(options[name])}"] = functools.partial(launcher, options=options[name])
    medians = harness.rounds(
        {name: functools.partial(_measure, launcher, lines) for name, launcher in contenders.items()},
        1 if quick else 2,
    )
    units = {
        "lines per second": "lines/s",
        "lines lost": "",
        "lines torn": "",
        f"lines lost {ONE_BY_ONE}": "",
        f"lines torn {ONE_BY_ONE}": "",
        "launcher's CPU for 1 MB": "s",
    }
    return Table(
        f"{RANKS * lines:,} lines of {RANKS} ranks",
        "Each line carries its rank, its number and a checksum. Ranks write in pieces of 8 KiB, as buffered output is "
        "written, or each line by itself. What the launcher shows goes to a file and is read back from there. The time "
        "is from the first byte written to the launcher's end. Its CPU is that of all processes but the ranks, less "
        "that of a job of one line for each rank.",
        "Whether a log can be trusted, and what showing it costs.",
        harness.by_figure(medians, units),
    )

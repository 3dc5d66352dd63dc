"""Planning, explaining and compiling a job of up to 100,000 ranks."""

from __future__ import annotations

import functools
import sys

from benchmarks import harness
from benchmarks.harness import Figures, Row, Table

_UNITS = {"plan": "s", "explain": "s", "compile": "s", "plan's size": "bytes", "compiled job's size": "bytes"}


def _figures(peer: str, ranks: int) -> Figures:
    with harness.scratch() as folder:
        (folder / "train.py").touch()
        return harness.figures([sys.executable, harness.PROGRAMS / f"scale_{peer}.py", str(ranks)], folder=folder)


def measure(quick: bool) -> Table:
    peers = ["jobsdk"] + (["torchx"] if harness.takes_part("torchx") else [])
    rows: list[Row] = []
    for ranks in (8, 1024) if quick else (8, 1024, 8192, 100_000):
        medians = harness.rounds({peer: functools.partial(_figures, peer, ranks) for peer in peers}, 1 if quick else 3)
        rows += harness.by_figure(medians, _UNITS, f", {ranks:,} ranks")
    return Table(
        "Jobs of many ranks",
        "Within one process, imports not counted. explain makes the whole environment of every rank; compile includes "
        "validation and what the compute makes of the job. torchx: `runner.dryrun` of `dist.ddp` on its local "
        "scheduler, as text; it has nothing that corresponds to plan and explain, and no other peer here has either.",
        "You can inspect everything about a large job before you submit it, and the submission does not grow "
        "with the job.",
        rows,
    )

"""The metrics of a run, as its processes logged them with MLflow; read without MLflow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from jobsdk.bootstrap import layout
from jobsdk.bootstrap.metrics import EXPERIMENT_ID, files, others

#: `milliseconds value step`, then perhaps a data set. What a full disk has cut short is no line.
_LINE = re.compile(r"(\d+) (nan|[+-]?(?:inf|[\d.]+(?:e[+-]?\d+)?)) (-?\d+)[ \n]")


class Point(NamedTuple):
    """One logged value of a metric; `time` in seconds since 1970."""

    step: int
    value: float
    time: float


def last(points: Iterable[Point]) -> Point:
    """The point that counts as the metric's value, by MLflow's own rule."""
    return max(points, key=lambda point: (point.step, point.time, point.value))


def read(run: str, run_dir: str) -> dict[str, list[Point]]:
    """Every metric of the job's run by name, with the points of all ranks in the order of their logging."""
    found: dict[str, list[Point]] = {}
    for store in [layout.tracking_folder(run_dir, 0), *others(run_dir)]:
        folder = f"{store}/{EXPERIMENT_ID}/{run}/metrics"
        for path in files(folder):
            with open(path, encoding="utf-8") as file:
                lines = filter(None, map(_LINE.match, file))
                points = [Point(int(line[3]), float(line[2]), int(line[1]) / 1000) for line in lines]
            found.setdefault(os.path.relpath(path, folder), []).extend(points)
    return {name: sorted(found[name], key=lambda point: point.time) for name in sorted(found) if found[name]}

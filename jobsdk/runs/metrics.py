"""The metrics of a run, as its processes reported them or logged them with MLflow; read without MLflow."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.spec.mlflow_store import EXPERIMENT_ID, files, others

#: `milliseconds value step`, then perhaps a data set. What a full disk has cut short is no line.
_LINE = re.compile(r"(\d+) (nan|[+-]?(?:inf|[\d.]+(?:e[+-]?\d+)?)) (-?\d+)[ \n]")
_REPORTS = re.compile(re.escape(os.path.basename(paths.reports("", 0, 0))).replace("0", r"(\d+)(\.restart-\d+)?"))
_NO_NUMBERS = ("nan", "inf", "-inf")  # JSON has texts for them


class Point(NamedTuple):
    """One value of a metric; `time` in seconds since 1970, `rank` as far as it is known."""

    step: int
    value: float
    time: float
    rank: int | None = None


def last(points: Iterable[Point]) -> Point:
    """The point that counts as the metric's value: of the lowest rank that has any, by MLflow's own rule."""
    return max(points, key=lambda point: (-(point.rank or 0), point.step, point.time, point.value))


def read(run: str, run_dir: str) -> dict[str, list[Point]]:
    """Every metric of the job's run by name, with the points of all ranks in the order of time."""
    found: dict[str, list[Point]] = {}
    for store in [paths.tracking_folder(run_dir, 0), *others(run_dir)]:
        folder = f"{store}/{EXPERIMENT_ID}/{run}/metrics"
        for path in files(folder):
            with open(path, encoding="utf-8") as file:
                lines = filter(None, map(_LINE.match, file))
                points = [Point(int(line[3]), float(line[2]), int(line[1]) / 1000) for line in lines]
            found.setdefault(os.path.relpath(path, folder), []).extend(points)
    for report in reports(run_dir):
        for name, value in report["metrics"].items():
            if isinstance(value, int | float) or value in _NO_NUMBERS:
                try:
                    point = Point(int(report["step"]), float(value), float(report["t"]), int(report["rank"]))
                except (ValueError, TypeError, OverflowError):
                    continue  # written by something else than `report`
                found.setdefault(name, []).append(point)
    return {name: sorted(found[name], key=lambda point: point.time) for name in sorted(found) if found[name]}


def reports(run_dir: str) -> Iterator[dict[str, Any]]:
    """What the processes of a run have said with `jobsdk.train.report`, those of one process in its order."""
    for path in sorted(Path(run_dir, "logs").glob("node-*/*.log")):
        if not _REPORTS.fullmatch(path.name):
            continue
        with open(path, "rb") as file:
            for line in file:
                try:
                    report = json.loads(line)
                    if isinstance(report["metrics"], dict) and {"t", "rank", "step"} <= report.keys():
                        yield report
                except (ValueError, KeyError, TypeError):
                    continue  # it is just being written, or a full disk has cut it short


class Row(NamedTuple):
    """A point, with its metric's name."""

    metric: str
    step: int
    value: float
    time: float
    rank: int | None


class Table(Sequence[Row]):
    """Every point of a run's metrics. As text it has a line for each metric, for pandas a row for each point."""

    def __init__(self, metrics: Mapping[str, Sequence[Point]]) -> None:
        self._metrics = metrics
        self._rows = [Row(name, *point) for name, points in metrics.items() for point in points]

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice | str) -> list[Row]: ...
    def __getitem__(self, index: int | slice | str) -> Row | list[Row]:
        """A row by its number; the rows of a metric by its name."""
        if not isinstance(index, str):
            return self._rows[index]
        if index not in self._metrics:
            from jobsdk.findings import meant

            fix = meant(index, self._metrics, f"one of {', '.join(self._metrics) or 'none'}")
            raise KeyError(f"there is no metric {index!r}. Fix: {fix[:200]}")
        return [row for row in self._rows if row.metric == index]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def last(self) -> dict[str, float]:
        """The value of each metric."""
        return {name: last(points).value for name, points in self._metrics.items()}

    def summary(self) -> list[tuple[str, ...]]:
        """A line for each metric: what COLUMNS says, as text."""
        return [_summed_up(name, points) for name, points in self._metrics.items()]

    def __repr__(self) -> str:
        if not self._rows:
            return "no metrics"
        lines = [COLUMNS, *self.summary()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    def _repr_html_(self) -> str:
        from html import escape

        def row(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        return f"<table>{row(COLUMNS, 'th')}{''.join(row(line, 'td') for line in self.summary())}</table>"

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each point: metric, step, value, time, rank. Raises ImportError without pandas."""
        import pandas  # type: ignore[import-untyped, unused-ignore]

        frame = pandas.DataFrame(self._rows, columns=list(Row._fields))
        frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
        return frame


COLUMNS = ("METRIC", "LAST", "STEP", "MIN", "MAX", "POINTS", "RANKS", "AT")


def _summed_up(name: str, points: Sequence[Point]) -> tuple[str, ...]:
    value = last(points)
    values = [point.value for point in points if point.value == point.value]
    bounds = (f"{min(values):.6g}", f"{max(values):.6g}") if values else ("nan", "nan")
    ranks = len({point.rank for point in points if point.rank is not None})
    at = datetime.datetime.fromtimestamp(value.time).strftime("%Y-%m-%d %H:%M:%S")
    return name, f"{value.value:.6g}", str(value.step), *bounds, str(len(points)), str(ranks or ""), at

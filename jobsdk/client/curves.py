"""The metrics of a run, which can draw themselves."""

from __future__ import annotations

import io
from math import isfinite
from typing import Any

from jobsdk import notebook
from jobsdk.runs.metrics import Point

_LEGEND = 10  # lines of a drawing that are named


class Metrics(dict[str, list[Point]]):
    """The points of each metric by its name. In a notebook it shows curves."""

    def plot(self, *names: str) -> Any:
        """Draw the named metrics, or all, over their steps with matplotlib; its Figure.

        Raises KeyError for an unknown metric, ImportError without matplotlib.
        """
        missing = [name for name in names if name not in self]
        if missing:
            raise _brief(KeyError(_not_there(missing[0], list(self))))
        figure = _figure()
        chosen = list(names or self)
        columns = max(1, min(2, len(chosen)))
        rows = max(1, -(-len(chosen) // columns))
        figure.set_size_inches(10, 3 * rows)
        if not chosen:
            figure.text(0.5, 0.5, "no metrics: nothing has been reported", ha="center")
        for place, name in enumerate(chosen, 1):
            axes = figure.add_subplot(rows, columns, place)
            for rank, points in sorted(_by_rank(self[name]).items(), key=lambda one: one[0] or 0):
                points = [point for point in points if isfinite(point.value)]  # what is between others would be lost
                steps, values = [point.step for point in points], [point.value for point in points]
                axes.plot(steps, values, label=None if rank is None else f"rank {rank}", marker="." * (len(points) < 2))
            if not any(isfinite(point.value) for point in self[name]):
                axes.text(0.5, 0.5, "no value is a number", ha="center", transform=axes.transAxes)
            axes.set_title(name, parse_math=False)
            axes.set_xlabel("step")
            if 1 < len(axes.lines) <= _LEGEND:
                axes.legend()
        return figure

    def _repr_html_(self) -> str:
        return notebook.views().of_metrics(self)


def _figure() -> Any:
    """A Figure of no window, whatever backend is chosen. A notebook shows it also where pyplot was not imported, by
    which alone it learns to show those of matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise _brief(ImportError(f"the curves cannot be drawn: {error}. Fix: pip install matplotlib")) from None

    class Drawing(Figure):
        def _repr_png_(self) -> bytes:
            png = io.BytesIO()
            self.savefig(png, format="png")
            return png.getvalue()

    return Drawing(layout="constrained")


def _not_there(name: str, known: list[str]) -> str:
    from jobsdk.findings import nearest

    near = nearest(name, known)
    return f"there is no metric {name!r}; there are {', '.join(known) or 'none'}" + (
        f". Fix: did you mean {near!r}?" if near else ""
    )


def _brief(error: Exception) -> Exception:
    notebook.show_briefly(error)
    return error


def _by_rank(points: list[Point]) -> dict[int | None, list[Point]]:
    found: dict[int | None, list[Point]] = {}
    for point in sorted(points):
        found.setdefault(point.rank, []).append(point)
    return found

"""The metrics of a run, which can draw themselves."""

from __future__ import annotations

from typing import Any

from jobsdk.metrics import Point


class Metrics(dict[str, list[Point]]):
    """The points of each metric by its name. In a notebook it shows curves."""

    def plot(self, *names: str) -> Any:
        """Draw the named metrics, or all, over their steps with matplotlib; its Figure.

        Raises KeyError for a metric that there is not, ImportError without matplotlib.
        """
        from matplotlib.figure import Figure  # no window, whatever backend is chosen

        for name in names:
            if name not in self:
                raise KeyError(f"there is no metric {name!r}; there are {', '.join(self) or 'none'}")
        chosen = list(names or self)
        rows = max(1, (len(chosen) + 1) // 2)
        figure = Figure(figsize=(10, 3 * rows), layout="constrained")
        for place, name in enumerate(chosen, 1):
            axes = figure.add_subplot(rows, min(2, len(chosen)), place)
            for rank, points in sorted(_by_rank(self[name]).items(), key=lambda one: one[0] or 0):
                steps, values = [point.step for point in points], [point.value for point in points]
                axes.plot(steps, values, label=None if rank is None else f"rank {rank}", marker="." * (len(points) < 2))
            axes.set_title(name)
            axes.set_xlabel("step")
            if 1 < len(axes.lines) <= 10:
                axes.legend()
        return figure

    def _repr_html_(self) -> str:
        from jobsdk.views.charts import curves
        from jobsdk.views.markup import card

        return card(curves(self) if self else "no metrics")


def _by_rank(points: list[Point]) -> dict[int | None, list[Point]]:
    found: dict[int | None, list[Point]] = {}
    for point in sorted(points):
        found.setdefault(point.rank, []).append(point)
    return found

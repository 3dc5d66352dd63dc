"""Charts as SVG: the phases of a run, and the curve of a metric."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from jobsdk.runs.metrics import Point
from jobsdk.runs.timeline import PHASES, Timeline
from jobsdk.views.markup import Markup, card, joined, tag

_LABELS, _WIDTH, _ROW = 110, 760, 22
_MOST = 400  # points of a curve that are drawn
_RANKS = 8  # whose points are drawn
_CURVES = 60  # metrics that are drawn
_NAME = 40  # characters of a metric's name, for which there is room


def timeline(found: Timeline) -> Markup:
    """A bar for each phase where it lies in the whole. It scrolls where the window is too narrow for it."""
    begin, whole = found.phases[0].begin if found.phases else 0.0, found.seconds or 1.0
    scale = (_WIDTH - _LABELS - 150) / whole
    rows = []
    for at, phase in enumerate(found.phases):
        y = at * _ROW
        who = f", rank {phase.rank} last" if phase.rank is not None else ""
        who = who or (f", node {phase.node} last" if phase.node is not None else "")
        x, width = _LABELS + (phase.begin - begin) * scale, max(1.0, phase.seconds * scale)
        rows.append(
            tag(
                "g",
                tag("title", PHASES[phase.name]),
                tag("text", phase.name, x=0, y=y + 15),
                tag(
                    "rect",
                    x=f"{x:.1f}",
                    y=y + 4,
                    width=f"{width:.1f}",
                    height=_ROW - 8,
                    rx=2,
                    class_="unattributed" if phase.name == "unattributed" else None,
                ),
                tag("text", f"{phase.seconds:.3f} s{who}", x=f"{x + width + 6:.1f}", y=y + 15, class_="dim"),
            )
        )
    height = len(found.phases) * _ROW + 2
    drawn = tag(
        "svg", *rows, viewBox=f"0 0 {_WIDTH} {height}", width=_WIDTH, height=height, role="img",
        aria_label="launch timeline",
    )  # fmt: skip
    return tag("div", drawn, class_="wide")


def curve(name: str, points: Sequence[Point]) -> Markup:
    """A metric over its steps, a line for each of the first ranks; of many points those that stand out."""
    ranks: dict[int, list[Point]] = {}
    for point in sorted(point for point in points if isfinite(point.value)):
        ranks.setdefault(point.rank or 0, []).append(point)
    lines = [_thinned(ranks[rank]) for rank in sorted(ranks)[:_RANKS]]
    drawn = [point for line in lines for point in line]
    width, height, left, top = 360, 160, 66, 22
    if not drawn:
        return tag("div", tag("b", name), " has no number")
    xs, ys = [point.step for point in drawn], [point.value for point in drawn]
    low, high, first, last = min(ys), max(ys), min(xs), max(xs)

    def place(x: float, y: float) -> str:
        across = (x - first) / ((last - first) or 1) * (width - left - 8)
        up = ((y - low) / (high - low) if high > low else 0.5) * (height - top - 24)
        return f"{left + across:.1f},{height - 22 - up:.1f}"

    levels = [(high, top + 8), (low, height - 22)] if high > low else [(low, (top + height - 18) // 2)]
    return tag(
        "svg",
        tag("title", name),
        tag("text", name if len(name) <= _NAME else name[: _NAME - 1] + "…", x=left, y=14),
        tag("line", x1=left, x2=left, y1=top, y2=height - 22, class_="axis"),
        tag("line", x1=left, x2=width - 8, y1=height - 22, y2=height - 22, class_="axis"),
        *(tag("text", f"{value:.4g}", x=left - 6, y=y, text_anchor="end", class_="dim") for value, y in levels),
        tag("text", first, x=left, y=height - 6, class_="dim"),
        tag("text", last, x=width - 8, y=height - 6, text_anchor="end", class_="dim") if last > first else None,
        *(
            tag("polyline", points=" ".join(place(point.step, point.value) for point in (*line, line[-1])),
                class_="line" if len(line) > 1 else "line dot", opacity=None if number == 0 else 0.4)
            for number, line in enumerate(lines)
        ),
        viewBox=f"0 0 {width} {height}", width=width, height=height, role="img", aria_label=f"curve of {name}",
    )  # fmt: skip


def _thinned(line: list[Point]) -> list[Point]:
    """Of many points the lowest and the highest of each stretch, so that no peak is lost, and both ends."""
    if len(line) <= _MOST:
        return line
    size = -(-len(line) // (_MOST // 2))
    kept = [line[0]]
    for at in range(0, len(line), size):
        part = sorted(line[at : at + size], key=lambda point: point.value)
        kept += sorted({part[0], part[-1]})
    return [*kept, line[-1]]


def of_metrics(metrics: dict[str, list[Point]]) -> Markup:
    """The curves as a card of their own."""
    return card(curves(metrics) if metrics else "no metrics")


def curves(metrics: dict[str, list[Point]]) -> Markup:
    """All metrics side by side."""
    names = sorted(metrics)
    drawn = tag("div", joined(curve(name, metrics[name]) for name in names[:_CURVES]), class_="curves")
    more = tag("p", f"and {len(names) - _CURVES} more metrics", class_="dim") if len(names) > _CURVES else None
    return joined([drawn, more])

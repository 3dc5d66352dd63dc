"""Curves as they are drawn on pages."""

from __future__ import annotations

import re

from jobsdk.runs.metrics import Point
from jobsdk.views.charts import curve


def places(drawn: str) -> list[list[tuple[float, float]]]:
    """Where the points of each line are."""
    found = re.findall('points="([^"]*)"', drawn)
    return [[(float(x), float(y)) for x, y in (place.split(",") for place in line.split())] for line in found]


def test_a_single_value_is_seen_beside_its_number() -> None:
    drawn = curve("one", [Point(3, 0.5, 1.0, 0)])
    (line,) = places(drawn)
    assert len(line) == 2  # a line of one point is drawn by no browser
    assert len(set(line)) == 1
    assert 'class="line dot"' in drawn
    assert re.findall(">([^<>]+)</text>", drawn) == ["one", "0.5", "3"]


def test_no_peak_of_many_points_is_lost() -> None:
    points = [
        Point(step, 100.0 if step == 7_777 else -50.0 if step == 1_234 else 1.0, 1.0, 0) for step in range(10_000)
    ]
    drawn = curve("loss", points)
    (line,) = places(drawn)
    assert len(line) < 500
    assert line == sorted(line, key=lambda place: place[0])
    assert {">100<", ">-50<"} <= set(re.findall(">-?[0-9]+<", drawn))
    assert sum(y == min(y for _, y in line) for _, y in line) == 1


def test_a_long_name_says_that_it_is_cut() -> None:
    drawn = curve("a" * 80, [Point(0, 1.0, 1.0)])
    assert f">{'a' * 39}…</text>" in drawn
    assert f"<title>{'a' * 80}</title>" in drawn

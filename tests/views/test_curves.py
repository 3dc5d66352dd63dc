"""Metrics that draw themselves."""

from __future__ import annotations

import io

import pytest

from jobsdk.metrics import Point
from jobsdk.views.curves import Metrics

METRICS = Metrics(
    {
        "loss": [Point(step, 1 / (step + 1), 10.0 + step, rank) for step in range(5) for rank in (1, 0)],
        "acc<b>": [Point(0, float("nan"), 1.0)],
    }
)


def test_curves_of_each_rank() -> None:
    figure = METRICS.plot("loss")
    (axes,) = figure.axes
    assert axes.get_title() == "loss"
    assert [line.get_label() for line in axes.lines] == ["rank 0", "rank 1"]
    assert list(axes.lines[0].get_xdata()) == [0, 1, 2, 3, 4]
    assert list(axes.lines[0].get_ydata()) == [1 / (step + 1) for step in range(5)]


def test_all_metrics_at_once() -> None:
    figure = METRICS.plot()
    assert [axes.get_title() for axes in figure.axes] == ["loss", "acc<b>"]
    figure.savefig(io.BytesIO(), format="png")
    Metrics().plot().savefig(io.BytesIO(), format="png")


def test_a_metric_that_there_is_not() -> None:
    with pytest.raises(KeyError, match="no metric 'los'; there are loss, acc"):
        METRICS.plot("los")


def test_in_a_notebook() -> None:
    page = METRICS._repr_html_()
    assert "<polyline" in page
    assert "acc<b>" not in page
    assert "no metrics" in Metrics()._repr_html_()

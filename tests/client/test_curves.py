"""Metrics that draw themselves."""

from __future__ import annotations

import io
import sys

import pytest

from jobsdk.client.curves import Metrics
from jobsdk.runs.metrics import Point

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


def test_where_there_are_none_a_plot_says_so() -> None:
    figure = Metrics().plot()
    figure.savefig(io.BytesIO(), format="png")
    assert [text.get_text() for text in figure.texts] == ["no metrics: nothing has been reported"]


def test_numbers_among_what_is_none_are_drawn() -> None:
    values = [1.0, float("nan"), 2.0, float("inf"), 3.0]
    figure = Metrics({"loss": [Point(step, value, 1.0, 0) for step, value in enumerate(values)]}).plot()
    (line,) = figure.axes[0].lines
    assert list(line.get_xdata()) == [0, 2, 4]
    assert list(line.get_ydata()) == [1.0, 2.0, 3.0]
    (axes,) = METRICS.plot("acc<b>").axes
    assert [text.get_text() for text in axes.texts] == ["no value is a number"]


def test_a_plot_is_a_picture_in_a_notebook() -> None:
    from IPython.core.formatters import DisplayFormatter

    data, _ = DisplayFormatter().format(METRICS.plot())
    assert data["image/png"].startswith(b"\x89PNG")


def test_a_dollar_in_a_name_is_no_formula() -> None:
    point = Point(0, 1.0, 1.0)
    Metrics({"$x_{": [point], "a $b$": [point]}).plot().savefig(io.BytesIO(), format="png")


def test_a_metric_that_there_is_not() -> None:
    with pytest.raises(KeyError, match=r"no metric 'los'; there are loss, acc.*Fix: did you mean 'loss'") as raised:
        METRICS.plot("los")
    (line,) = raised.value._render_traceback_()  # type: ignore[attr-defined]
    assert line.startswith("KeyError: ")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="Fix: pip install matplotlib"):
        METRICS.plot()


def test_in_a_notebook() -> None:
    page = METRICS._repr_html_()
    assert "<polyline" in page
    assert "acc<b>" not in page
    assert "no metrics" in Metrics()._repr_html_()

"""A run's metrics from the client and on the command line, from reports and MLflow together."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from jobsdk import MLClient, PyTorchDistribution, command
from jobsdk.bootstrap.spec import mlflow_store as store
from jobsdk.bootstrap.spec import paths
from jobsdk.client.run import Run
from jobsdk.runs.metrics import Point, Row, Table, last, read
from tests.bootstrap.runs import plan
from tests.cli.conftest import Jobsdk, jobsdk  # noqa: F401

SCRIPT = """
import os
from jobsdk.train import get_context, report
here = get_context()
for epoch in range(3):
    report({"loss": 1.5 - epoch / 2 + here.rank * 10, "eval": {"accuracy": epoch / 4}, "name": "resnet"})
if here.rank == 0:
    report({"lr": float("inf")}, step=70)
    os.makedirs("outputs/board/run 1")
    open("outputs/board/run 1/events.out.tfevents.1234.host.1.0", "w").close()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """One of two ranks that report the same metrics."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    pair = PyTorchDistribution(process_count_per_instance=2)
    job = command(code="code", command=f"{sys.executable} train.py", distribution=pair)
    return MLClient().jobs.create_or_update(job).result(timeout=200)


def test_a_table_of_them(run: Run) -> None:
    table = MLClient().jobs.metrics(run.name)
    assert table.last == {"eval/accuracy": 0.5, "loss": 0.5, "lr": float("inf")}
    assert [row[:3] for row in table if row.metric == "loss" and row.rank == 1] == [
        ("loss", 0, 11.5), ("loss", 1, 11.0), ("loss", 2, 10.5)
    ]  # fmt: skip
    assert len(table) == 13
    head, *lines = [line.split()[:7] for line in repr(table).splitlines()]
    assert head == ["METRIC", "LAST", "STEP", "MIN", "MAX", "POINTS", "RANKS"]
    assert lines == [
        ["eval/accuracy", "0.5", "2", "0", "0.5", "6", "2"], ["loss", "0.5", "2", "0.5", "11.5", "6", "2"],
        ["lr", "inf", "70", "inf", "inf", "1", "1"],
    ]  # fmt: skip
    assert "<td>eval/accuracy</td><td>0.5</td>" in table._repr_html_()
    frame = table.to_pandas()
    assert list(frame.columns) == list(Row._fields)
    assert frame[(frame["metric"] == "loss") & (frame["rank"] == 0)]["value"].tolist() == [1.5, 1.0, 0.5]
    assert frame["time"].max().timestamp() <= run.report["ended"]


def test_on_the_command_line(run: Run, jobsdk: Jobsdk) -> None:  # noqa: F811
    shown = jobsdk("job", "show", run.name).out
    assert "metrics          eval/accuracy=0.5, loss=0.5, lr=inf\n" in shown
    assert f"tensorboard      tensorboard --logdir '{run.folder.path}/outputs/default/board/run 1'\n" in shown
    whole = json.loads(jobsdk("job", "show", run.name, "-o", "json").out)
    assert whole["tensorboard"] == [f"{run.folder.path}/outputs/default/board/run 1"]
    assert {point["rank"] for point in whole["metrics"]["loss"]} == {0, 1}
    assert jobsdk("job", "metrics", run.name).out.splitlines()[2].split()[:2] == ["loss", "0.5"]
    assert json.loads(jobsdk("job", "metrics", run.name, "-o", "json").out) == whole["metrics"]
    head, *rows = csv.reader(io.StringIO(jobsdk("job", "metrics", run.name, "-o", "csv").out))
    assert head == ["metric", "step", "value", "time", "rank"]
    assert len(rows) == 13
    assert "reports" not in jobsdk("job", "logs", run.name).out


def test_reports_and_mlflow_together(tmp_path: Path) -> None:
    store.prepare(plan("x"), str(tmp_path), [0])
    (tmp_path / "mlruns/0/run/metrics/loss").write_text("2000 0.5 1\n")
    path = Path(paths.reports(str(tmp_path), 1, 3, restart=2))
    path.parent.mkdir(parents=True)
    path.write_text('{"t":1.0,"rank":3,"step":0,"metrics":{"loss":2,"other":1},"checkpoint":null}\n')
    (path.parent / "rank-3.log").write_text('{"t":1.0,"rank":3,"step":0,"metrics":{"printed":2}}\n')
    found = read("run", str(tmp_path))
    assert found == {"loss": [Point(0, 2.0, 1.0, 3), Point(1, 0.5, 2.0)], "other": [Point(0, 1.0, 1.0, 3)]}
    assert last(found["loss"]) == Point(1, 0.5, 2.0)


def test_the_lowest_rank_that_has_any_says_the_value() -> None:
    points = [Point(9, 1.0, 9.0, 2), Point(3, 2.0, 5.0, 1), Point(4, 3.0, 4.0, 1)]
    assert last(points) == Point(4, 3.0, 4.0, 1)


def test_a_metric_is_found_by_its_name() -> None:
    table = Table({"loss": [Point(0, 2.0, 1.0)], "accuracy": [Point(0, 0.5, 1.0, 0), Point(1, 0.6, 2.0, 0)]})
    assert [row.value for row in table["accuracy"]] == [0.5, 0.6]
    assert table[0] == table["loss"][0] == Row("loss", 0, 2.0, 1.0, None)
    with pytest.raises(KeyError, match=r"there is no metric 'acuracy'. Fix: did you mean 'accuracy'"):
        table["acuracy"]
    with pytest.raises(KeyError, match=r"there is no metric 'x'. Fix: one of loss, accuracy"):
        table["x"]


def test_none() -> None:
    table = Table({})
    assert (len(table), list(table), repr(table), table.last) == (0, [], "no metrics", {})


def test_only_what_is_no_number(tmp_path: Path) -> None:
    table = Table({"x": [Point(0, float("nan"), 1.0)]})
    assert table.summary()[0][:7] == ("x", "nan", "0", "nan", "nan", "1", "")

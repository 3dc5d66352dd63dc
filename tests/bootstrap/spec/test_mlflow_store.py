"""The run's MLflow store, without MLflow: its files are written here as MLflow writes them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.spec import mlflow_store, paths
from jobsdk.runs.metrics import Point, last, read
from tests.bootstrap.runs import PYTORCH, LocalRun, plan

MPI = {"type": "mpi", "processes": 2, "launcher": "mpirun"}

#: A rank that logs as MLflow does.
LOG = """
import os, sys, urllib.parse
store = urllib.parse.unquote(urllib.parse.urlparse(os.environ["MLFLOW_TRACKING_URI"]).path)
run = "%s/%s/%s" % (store, os.environ["MLFLOW_EXPERIMENT_ID"], os.environ["MLFLOW_RUN_ID"])
with open(run + "/metrics/loss", "a") as file:
    for step in range(3):
        file.write("%d %s %d\\n" % (1000 * step + int(os.environ["RANK"]), 0.5 + step, step))
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The folder of a run with two ranks' stores."""
    mlflow_store.prepare(plan("x"), str(tmp_path), [0, 1])
    return tmp_path


def log(folder: Path, rank: int, name: str, text: str) -> None:
    path = Path(paths.tracking_folder(str(folder), rank), "0/run/metrics", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def meta(folder: Path, of: str = "0/run") -> dict[str, str]:
    return dict(line.split(": ", 1) for line in (folder / "mlruns" / of / "meta.yaml").read_text().splitlines())


def test_points_of_all_ranks_by_metric_in_the_order_of_time(store: Path) -> None:
    log(store, 0, "train/loss", "1000 0.5 0\n3000 -1.5e-07 1\n")
    log(store, 1, "train/loss", "2000 nan 0\n4000 inf -1 data digest\n")
    log(store, 1, "count", "5 3 7\n")
    loss = [Point(0, 0.5, 1.0), Point(0, pytest.approx(float("nan"), nan_ok=True), 2.0), Point(1, -1.5e-07, 3.0)]
    expected = {"count": [Point(7, 3.0, 0.005)], "train/loss": [*loss, Point(-1, float("inf"), 4.0)]}
    assert read("run", str(store)) == expected
    assert last(expected["train/loss"]) == Point(1, -1.5e-07, 3.0)
    mlflow_store.finish("run", str(store), "Completed", 9.0)
    assert read("run", str(store)) == expected


def test_a_metric_that_is_a_folder_in_another_rank_is_read_and_ends_the_run_all_the_same(store: Path) -> None:
    log(store, 0, "loss", "1000 0.5 0\n")
    log(store, 1, "loss/part", "2000 0.25 0\n")
    log(store, 1, "other", "3000 1 0\n")
    mlflow_store.finish("run", str(store), "Failed", 9.0)
    assert meta(store)["status"] == "4"
    assert {name: points[0].value for name, points in read("run", str(store)).items()} == {
        "loss": 0.5, "loss/part": 0.25, "other": 1.0
    }  # fmt: skip


def test_a_line_that_is_not_whole_is_no_point(store: Path) -> None:
    log(store, 0, "loss", "1000 0.5 0\n2000 0.")
    log(store, 0, "empty", "")
    assert read("run", str(store)) == {"loss": [Point(0, 0.5, 1.0)]}


@pytest.mark.parametrize(
    ("status", "stored"), [("Completed", "3"), ("Failed", "4"), ("Lost", "4"), ("Canceled", "5"), ("TimedOut", "5")]
)
def test_the_end_is_that_of_the_job(store: Path, status: str, stored: str) -> None:
    log(store, 0, "loss", "1 2 3\n")
    # As MLflow leaves it when the last rank that used it has ended.
    path = store / "mlruns/0/run/meta.yaml"
    path.write_text(path.read_text().replace("status: 1", "status: 3").replace("end_time: null", "end_time: 12"))
    mlflow_store.finish("run", str(store), status, 77.25)
    assert (meta(store)["status"], meta(store)["end_time"]) == (stored, "77250")
    assert meta(store)["run_name"] == '"run"'


def test_runs_that_a_script_could_not_end_are_ended_and_others_stay(store: Path) -> None:
    for name, status in (("left", 1), ("done", 3)):
        folder = store / "mlruns-ranks/1/0" / name
        (folder / "metrics").mkdir(parents=True)
        (folder / "meta.yaml").write_text(f"end_time: 5\nstatus: {status}\n")
    model = store / "mlruns/0/models/m-1"
    (model / "metrics").mkdir(parents=True)
    (model / "meta.yaml").write_text("status: 1\n")
    mlflow_store.finish("run", str(store), "Failed", 2.0)
    assert meta(store, "0/left") == {"end_time": "2000", "status": "4"}
    assert meta(store, "0/done") == {"end_time": "5", "status": "3"}
    assert meta(store, "0/models/m-1") == {"status": "1"}
    assert not (store / "mlruns-ranks").exists()


def test_of_what_two_ranks_set_the_first_stays_and_the_rest_is_put_together(store: Path) -> None:
    for rank in (0, 1):
        params = Path(paths.tracking_folder(str(store), rank), "0/run/params")
        (params / "rate").write_text(str(rank))
        (params / f"own{rank}").write_text("here")
    mlflow_store.finish("run", str(store), "Completed", 2.0)
    found = {path.name: path.read_text() for path in (store / "mlruns/0/run/params").iterdir()}
    assert found == {"rate": "0", "own0": "here", "own1": "here"}


def test_a_store_that_nothing_was_logged_in_goes(store: Path) -> None:
    mlflow_store.tidy(str(store), [0, 1])
    assert not (store / "mlruns-ranks/1").exists()
    assert (store / "mlruns").exists(), "other ranks may still be put into it"
    mlflow_store.finish("run", str(store), "Completed", 2.0)
    assert list(store.iterdir()) == []


def test_a_store_is_made_once(store: Path) -> None:
    log(store, 0, "loss", "1 2 3\n")
    before = meta(store)
    mlflow_store.prepare(plan("x", display_name="another"), str(store), [0, 1])
    assert meta(store) == before


def test_the_uri_survives_any_folder() -> None:
    assert paths.tracking_uri("/a b/50%#?ü", 0) == "file:///a b/50%25%23%3Fü/mlruns"


@pytest.mark.parametrize("distribution", [PYTORCH, MPI], ids=["direct", "mpirun"])
def test_ranks_of_a_job_log_without_disturbing_one_another(
    tmp_path: Path, distribution: dict[str, Any], require_mpirun: str
) -> None:
    (tmp_path / "log.py").write_text(LOG)
    job = plan(f"{sys.executable} {tmp_path}/log.py", distribution=distribution, experiment="mine")
    run = LocalRun(tmp_path / "run #1", job)
    assert run.wait() == 0
    points = read("run", str(run.folder))["loss"]
    assert points == sorted((Point(s, 0.5 + s, s + r / 1000) for s in range(3) for r in range(4)), key=lambda p: p.time)
    assert (meta(run.folder)["status"], meta(run.folder, "0")["name"]) == ("3", '"mine"')
    assert not (run.folder / "mlruns-ranks").exists()


def test_points_can_be_read_while_the_job_runs_and_stay_when_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "log.py").write_text(LOG + "\nimport time; time.sleep(600)\n")
    run = LocalRun(tmp_path / "run", plan(f"{sys.executable} {tmp_path}/log.py"))
    run.until(lambda: len(read("run", str(run.folder)).get("loss", [])) == 12)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 130
    assert len(read("run", str(run.folder))["loss"]) == 12
    assert meta(run.folder)["status"] == "5"


def test_with_a_server_of_the_users_own_there_is_no_store(tmp_path: Path) -> None:
    own: dict[str, Any] = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    run = LocalRun(tmp_path / "run", plan("ls $JOBSDK_RUN_DIR; env | grep MLFLOW", environment=own))
    assert run.wait() == 0
    assert "mlruns" not in run.log(0)
    assert "MLFLOW_TRACKING_URI=http://127.0.0.1:9\n" in run.log(0)
    assert "MLFLOW_RUN_ID" not in run.log(0)

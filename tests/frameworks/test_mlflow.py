"""MLflow in a job: what it logs lands in the run, as on Azure ML, and can be read with and without MLflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jobsdk import MLClient, MpiDistribution, PyTorchDistribution, command
from jobsdk.client.run import Run
from tests.frameworks.runs import check_losses, found, run, start, store_of

MLFLOW = pytest.mark.framework("mlflow")
PAIR = PyTorchDistribution(process_count_per_instance=2)


@pytest.fixture
def open_store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives MLflow's own client of a run's store."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return store_of


def show(done: Run, *options: str) -> str:
    argv = [sys.executable, "-m", "jobsdk", "job", "show", done.name, *options]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@MLFLOW
def test_every_rank_logs_to_the_one_run(open_store: Any) -> None:
    done, logs = run("log_mlflow.py", distribution=PAIR, nodes=2, experiment_name="vision")
    assert [found(r"run (\S+)", log) for log in logs.values()] == [[done.name]] * 4

    client = open_store(done)
    (experiment,) = client.search_experiments()
    (listed,) = client.search_runs([experiment.experiment_id])
    stored = client.get_run(done.name)
    assert (experiment.name, listed.info.run_id) == ("vision", done.name)
    assert (stored.info.status, stored.info.run_name) == ("FINISHED", done.display_name)
    assert stored.info.start_time <= stored.info.end_time == int(done.report["ended"] * 1000)
    assert stored.data.params == {
        "learning_rate": "0.1",
        "layers": "2",
        **{f"rank_{rank}": "here" for rank in range(4)},
    }
    assert stored.data.tags["team"] == "vision"
    expected = Counter((step, rank + step / 100) for step in range(20) for rank in range(4))
    assert Counter((one.step, one.value) for one in client.get_metric_history(done.name, "train/loss")) == expected
    artifacts = [file.path for file in client.list_artifacts(done.name, "notes")]
    assert artifacts == [f"notes/notes-{rank}.txt" for rank in range(4)]
    assert Path(client.download_artifacts(done.name, "notes/notes-3.txt")).read_text() == "all is well\n"
    assert not (done.folder.path / "mlruns-ranks").exists()

    # The same without MLflow.
    points = done.metrics["train/loss"]
    assert Counter((point.step, point.value) for point in points) == expected
    assert [point.time for point in points] == sorted(point.time for point in points)
    assert set(done.metrics) == {"train/loss", "accuracy", *(f"rank_{rank}.seen" for rank in range(4))}
    assert "rank_2.seen=20, rank_3.seen=20, train/loss=" in show(done)
    shown = json.loads(show(done, "-o", "json"))["metrics"]
    assert shown["train/loss"] == [point._asdict() for point in points]


@MLFLOW
def test_ranks_under_mpirun_log_to_the_run_as_well(require_mpirun: str) -> None:
    done, _ = run("log_mlflow.py", distribution=MpiDistribution(process_count_per_instance=2))
    assert Counter(point.value for point in done.metrics["accuracy"]) == {0.5: 2}


@pytest.mark.parity
@pytest.mark.framework("torch")
@MLFLOW
def test_autolog(open_store: Any) -> None:
    done, _ = run("autolog_mlflow.py", distribution=PAIR)
    (losses,) = (done.metrics[name] for name in done.metrics if name == "loss")
    by_step = sorted({point.step: str(point.value) for point in losses}.items())
    check_losses([value for _, value in by_step])
    client = open_store(done)
    stored = client.get_run(done.name)
    assert (stored.info.status, stored.data.params["epochs"]) == ("FINISHED", "3")
    assert "model_summary.txt" in [file.path for file in client.list_artifacts(done.name)]


@MLFLOW
def test_a_script_that_starts_its_own_runs(open_store: Any) -> None:
    done, logs = run("log_mlflow_nested.py")
    assert found(r"searched in (\S+)", logs[0]) == [done.name]
    client = open_store(done)
    stored = {one.info.run_name: one for one in client.search_runs(["0"])}
    assert set(stored) == {"search", "rate 0.1", "rate 0.2", "afterwards"}
    assert all(one.info.status == "FINISHED" for one in stored.values())
    assert stored["search"].info.run_id == done.name
    for rate in ("0.1", "0.2"):
        child = stored[f"rate {rate}"]
        assert (child.data.tags["mlflow.parentRunId"], child.data.params) == (done.name, {"rate": rate})
    assert list(done.metrics) == ["best"]


@MLFLOW
def test_a_run_that_failed_is_failed_in_the_store(open_store: Any) -> None:
    done = start("log_mlflow.py", environment_variables={"EXIT_CODE": "3"}).wait(timeout=280)
    assert (done.status, done.exit_code) == ("Failed", 3)
    stored = open_store(done).get_run(done.name)
    assert (stored.info.status, stored.info.end_time) == ("FAILED", int(done.report["ended"] * 1000))
    assert done.metrics["accuracy"][0].value == 0.5


def variables(**fields: Any) -> tuple[Run, dict[str, str]]:
    """MLflow's variables in a job that does not use it."""
    job = command(command="env | grep ^MLFLOW_ || true", **fields)
    done = MLClient().jobs.create_or_update(job).result(timeout=200)
    lines = (done.folder.logs / "node-0" / "rank-0.log").read_text().splitlines()
    return done, dict(line.split("=", 1) for line in lines)


def test_a_job_that_logs_nothing_leaves_nothing() -> None:
    job = command(command="true", name="silent", distribution=PAIR, instance_count=2)
    explained = [process.environment for process in job.explain()]
    assert [env["MLFLOW_TRACKING_URI"] for env in explained] == [
        "file://<run folder>/mlruns", *(f"file://<run folder>/mlruns-ranks/{rank}" for rank in (1, 2, 3))
    ]  # fmt: skip
    assert {env["MLFLOW_RUN_ID"] for env in explained} == {"silent"}
    done = MLClient().jobs.create_or_update(job).result(timeout=200)
    assert not [path.name for path in done.folder.path.iterdir() if path.name.startswith("mlruns")]
    assert done.metrics == {}
    assert "metrics" not in show(done)


@pytest.mark.parametrize("where", ["job", "inherited"])
def test_a_tracking_server_of_the_users_own_wins(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_EXPERIMENT_NAME": "mine"}
    if where == "inherited":
        for name, value in own.items():
            monkeypatch.setenv(name, value)
    _, found_there = variables(environment_variables=own if where == "job" else {})
    assert found_there == own


def test_a_job_that_a_rank_submits_has_a_run_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inherited = variables()
    for name, value in {**inherited, "JOBSDK_RUN_DIR": str(outer.folder.path)}.items():
        monkeypatch.setenv(name, value)
    inner, found_there = variables()
    assert found_there["MLFLOW_RUN_ID"] == inner.name
    assert found_there["MLFLOW_TRACKING_URI"] == f"file://{os.fspath(inner.folder.path)}/mlruns"

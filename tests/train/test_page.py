"""The script of docs/train.md, run as the job of two ranks that it is; MLflow in a function that is a job."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from jobsdk import MLClient, PyTorchDistribution, command, function

PAGE = Path(__file__).parents[2] / "docs/train.md"
PAIR = PyTorchDistribution(process_count_per_instance=2)


@pytest.mark.framework("torch")
def test_the_script_trains_and_goes_on_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"^```python\n(import os.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    fault = "    if epoch == 1 and here.rank == 0 and not here.restart_count:\n        raise SystemExit(3)\n"
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(found[1] + fault)
    monkeypatch.chdir(tmp_path)
    job = command(
        code="code", command=f"{sys.executable} train.py", distribution=PAIR, max_restarts=1, restart_delay=0,
        environment_variables={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    run = MLClient().jobs.create_or_update(job).result(timeout=280)
    epochs = [point[:2] for point in run.metrics["epoch"] if point.rank == 0]
    assert epochs == [(0, 0.0), (1, 1.0), (2, 2.0)]
    kept = run.folder.path / "outputs/default/checkpoints"
    assert sorted(path.name for path in kept.glob("checkpoint_*")) == [f"checkpoint_00000{n}" for n in range(3)]


@pytest.mark.framework("mlflow")
def test_what_a_function_logs_with_mlflow_is_in_the_table() -> None:
    def train() -> None:
        import mlflow

        from jobsdk.train import get_context, report

        rank = get_context().rank
        mlflow.log_metric("logged", 0.5 + rank, step=rank)
        report({"reported": rank})

    pytest.importorskip("mlflow")
    run = MLClient().jobs.create_or_update(function(train, distribution=PAIR))
    run.wait(timeout=280)
    assert run.status == "Completed", run.report
    table = MLClient().jobs.metrics(run.name)
    assert {(row.metric, row.value) for row in table} == {
        ("logged", 0.5), ("logged", 1.5), ("reported", 0.0), ("reported", 1.0)
    }  # fmt: skip

"""Hugging Face's Trainer, with a small model made from a config."""

from __future__ import annotations

import pytest

from jobsdk import PyTorchDistribution
from tests.frameworks.runs import check_losses, check_training, found, run, store_of

pytestmark = [pytest.mark.framework("torch"), pytest.mark.parity]

LOGGED = r"logged by rank 0: epoch \S+ loss (\S+)"


@pytest.mark.framework("mlflow")
def test_two_nodes_of_two_processes_that_report_to_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = PyTorchDistribution(process_count_per_instance=2)
    done, logs = run("train_transformers.py", "--report-to mlflow", distribution=pair, nodes=2)
    check_training(logs, 4)
    check_losses(found(LOGGED, logs[0]))
    # 320 samples are 40 batches of 8, a quarter of them for each rank.
    assert all(found(r"rank \d of 4 steps (\d+) weights \w+", log) == ["30"] for log in logs.values())
    assert "the main process is rank 0\n" in logs[0]
    assert [rank for rank, log in logs.items() if "logged by" in log or "the main process" in log] == [0]
    assert [rank for rank, log in logs.items() if "'loss':" in log] == [0, 2], "the Trainer's own: once on each node"
    checkpoints = done.folder.path / "outputs" / "default"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["checkpoint-10", "checkpoint-20", "checkpoint-30"]

    check_losses([str(point.value) for point in done.metrics["loss"]])
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    stored = store_of(done).get_run(done.name)
    assert (stored.info.status, stored.data.params["num_hidden_layers"]) == ("FINISHED", "2")


def test_one_process_without_a_distribution() -> None:
    _, logs = run("train_transformers.py")
    check_training(logs, 1)
    check_losses(found(LOGGED, logs[0]))

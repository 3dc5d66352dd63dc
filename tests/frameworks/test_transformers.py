"""Hugging Face's Trainer, with a small model made from a config."""

from __future__ import annotations

import pytest

from jobsdk import PyTorchDistribution
from tests.frameworks.runs import check_losses, check_training, found, run

LOGGED = r"logged by rank 0: epoch \S+ loss (\S+)"


def test_two_nodes_of_two_processes() -> None:
    done, logs = run("train_transformers.py", distribution=PyTorchDistribution(process_count_per_instance=2), nodes=2)
    check_training(logs, 4)
    check_losses(found(LOGGED, logs[0]))
    # 320 samples are 40 batches of 8, a quarter of them for each rank.
    assert all(found(r"rank \d of 4 steps (\d+) weights \w+", log) == ["30"] for log in logs.values())
    assert "the main process is rank 0\n" in logs[0]
    assert [rank for rank, log in logs.items() if "logged by" in log or "the main process" in log] == [0]
    assert [rank for rank, log in logs.items() if "'loss':" in log] == [0, 2], "the Trainer's own: once on each node"
    checkpoints = done.folder.path / "outputs" / "default"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["checkpoint-10", "checkpoint-20", "checkpoint-30"]


@pytest.mark.parametrize("distribution", [None, PyTorchDistribution()])
def test_one_process(distribution: PyTorchDistribution | None) -> None:
    _, logs = run("train_transformers.py", distribution=distribution)
    check_training(logs, 1)
    check_losses(found(LOGGED, logs[0]))

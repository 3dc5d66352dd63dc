"""Hugging Face accelerate: `Accelerator()` in a script written for its own launcher."""

from __future__ import annotations

import pytest

from jobsdk import PyTorchDistribution
from tests.frameworks.runs import check_losses, check_training, found, run

pytestmark = pytest.mark.framework("torch")

LOSS = r"epoch \d loss (\S+)"


def test_two_nodes_of_two_processes() -> None:
    _, logs = run("train_accelerate.py", distribution=PyTorchDistribution(process_count_per_instance=2), nodes=2)
    check_training(logs, 4)
    check_losses(found(LOSS, logs[0]))
    # 256 samples are 32 batches of 8, a quarter of them for each rank.
    assert all(found(r"rank \d of 4 steps (\d+) weights \w+", log) == ["24"] for log in logs.values())
    assert "the main process is rank 0, local rank 0\n" in logs[0]
    assert [rank for rank, log in logs.items() if "the main process" in log] == [0]
    assert [rank for rank, log in logs.items() if found(LOSS, log)] == [0, 2], "accelerator.print: once on each node"


@pytest.mark.parity
def test_one_process_without_a_distribution() -> None:
    _, logs = run("train_accelerate.py")
    check_training(logs, 1)
    check_losses(found(LOSS, logs[0]))

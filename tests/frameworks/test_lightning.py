"""PyTorch Lightning: `Trainer(strategy="ddp")` in a script written for torchrun."""

from __future__ import annotations

import pytest

from jobsdk import PyTorchDistribution
from tests.frameworks.runs import check_losses, check_training, found, run

pytestmark = [pytest.mark.framework("torch"), pytest.mark.parity]


def test_two_nodes_of_two_processes() -> None:
    pair = PyTorchDistribution(process_count_per_instance=2)
    _, logs = run("train_lightning.py", "--nodes 2 --devices 2", distribution=pair, nodes=2)
    check_training(logs, 4)
    check_losses(found(r"epoch \d loss (\S+)", logs[0]))
    # 256 samples are 32 batches of 8, a quarter of them for each rank.
    assert all(found(r"rank \d of 4 steps (\d+) weights \w+", log) == ["24"] for log in logs.values())
    assert not any(found(r"epoch \d loss (\S+)", logs[rank]) for rank in (1, 2, 3))


def test_one_process_without_a_distribution() -> None:
    _, logs = run("train_lightning.py", "--strategy auto")
    check_training(logs, 1)
    check_losses(found(r"epoch \d loss (\S+)", logs[0]))

"""Trains a small network with DeepSpeed, under any ZeRO stage: one process or many, CPU or GPU.

The data are points in 32 dimensions; a point's class is the one of eight hidden directions that it lies along most.
Who a process is DeepSpeed reads from RANK, LOCAL_RANK and WORLD_SIZE, and all else from its configuration.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

DIMENSIONS, CLASSES = 32, 8


def made_data(count: int) -> TensorDataset:
    """The same points in every process; DeepSpeed's loader gives each its share."""
    chance = torch.Generator().manual_seed(1)
    points = torch.randn(count, DIMENSIONS, generator=chance)
    directions = torch.randn(DIMENSIONS, CLASSES, generator=chance)
    return TensorDataset(points, (points @ directions).argmax(dim=1))


def digest(model: nn.Module) -> str:
    """Equal for equal weights. Under ZeRO-3 each process holds a part of them, so they are gathered to be read."""
    weights = hashlib.sha256()
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        for parameter in model.parameters():
            weights.update(parameter.detach().float().cpu().numpy().tobytes())
    return weights.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network with DeepSpeed.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--points", type=int, default=2048, help="points in all, over all processes")
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("outputs/checkpoint"))
    # DeepSpeed's own launcher passes it, unless it is told not to.
    parser.add_argument("--local_rank", type=int, default=-1, help="not used: LOCAL_RANK says it")
    deepspeed.add_config_arguments(parser)  # --deepspeed, --deepspeed_config
    args = parser.parse_args()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(DIMENSIONS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=net.parameters(), training_data=made_data(args.points)
    )
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world_size} on {engine.device}, ZeRO {engine.zero_optimization_stage()}", flush=True)
    loss_of = nn.CrossEntropyLoss()

    for epoch in range(1, args.epochs + 1):
        loader.data_sampler.set_epoch(epoch)
        losses = torch.zeros(2, device=engine.device)  # sum and number
        for points, classes in loader:
            loss = loss_of(engine(points.to(engine.device)), classes.to(engine.device))
            engine.backward(loss)
            engine.step()
            losses += torch.stack([loss.detach(), torch.ones_like(loss)])
        dist.all_reduce(losses)
        if rank == 0:
            print(f"epoch {epoch}/{args.epochs} loss {(losses[0] / losses[1]).item():.4f}", flush=True)

    print(f"rank {rank} weights {digest(engine.module)}", flush=True)
    engine.save_checkpoint(str(args.checkpoint_dir))  # every process saves its part
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

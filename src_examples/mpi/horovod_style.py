"""Trains a small torch network as Horovod does it: the launcher says who each process is, MPI averages gradients.

Rank, size and local rank come from OMPI_COMM_WORLD_* alone, which every MPI job has, whichever mpirun started it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from mpi4py import MPI
from torch import Tensor, nn


def broadcast(model: nn.Module) -> None:
    """Every process begins with rank 0's weights."""
    for tensor in model.state_dict().values():
        MPI.COMM_WORLD.Bcast(tensor.numpy(), root=0)  # the array shares the tensor's memory


def step(parameters: list[nn.Parameter], gradients: Sequence[Tensor], learning_rate: float, size: int) -> None:
    """Gradient descent along the mean over all processes: one Allreduce for all tensors, as Horovod fuses them."""
    fused = torch.cat([gradient.flatten() for gradient in gradients])
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, fused.numpy())
    means = (fused / size).split([gradient.numel() for gradient in gradients])
    with torch.no_grad():
        for parameter, mean in zip(parameters, means, strict=True):
            parameter -= learning_rate * mean.view_as(parameter)


def spiral(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points on two arms of a spiral, and which arm each is on."""
    random = torch.Generator().manual_seed(seed)
    arm = torch.randint(2, (count,), generator=random)
    way = torch.rand(count, generator=random)
    angle = 3.0 * way + torch.pi * arm
    points = torch.stack([way * angle.cos(), way * angle.sin()], dim=1)
    return points + 0.02 * torch.randn(count, 2, generator=random), arm


def digest(model: nn.Module) -> str:
    """Equal for equal weights."""
    weights = hashlib.sha256()
    for tensor in model.state_dict().values():
        weights.update(tensor.numpy().tobytes())
    return weights.hexdigest()[:16]


def save(model: nn.Module, path: Path) -> None:
    """Write the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(model.state_dict(), part)
    os.replace(part, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small torch network over MPI.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=512, help="for each process")
    parser.add_argument("--batch-size", type=int, default=64, help="samples for each process and step")
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--model-dir", type=Path, default=Path("outputs"))
    args = parser.parse_args()

    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    local_rank = int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
    print(f"rank {rank} of {size}, local rank {local_rank}", flush=True)

    torch.manual_seed(rank)  # other weights in each process, until they are broadcast
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    broadcast(model)
    parameters = list(model.parameters())
    loss_of = nn.CrossEntropyLoss()
    points, arms = spiral(args.samples, seed=1 + rank)
    for epoch in range(1, args.epochs + 1):
        losses = []
        for batch in torch.randperm(args.samples).split(args.batch_size):
            loss = loss_of(model(points[batch]), arms[batch])
            step(parameters, torch.autograd.grad(loss, parameters), args.learning_rate, size)
            losses.append(loss.item())
        mean = MPI.COMM_WORLD.allreduce(sum(losses) / len(losses)) / size
        if rank == 0:
            print(f"epoch {epoch}/{args.epochs} loss {mean:.4f}", flush=True)

    print(f"rank {rank} weights {digest(model)}", flush=True)
    if rank == 0:
        save(model, args.model_dir / "model.pt")


if __name__ == "__main__":
    main()

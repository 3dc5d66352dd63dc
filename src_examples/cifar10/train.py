"""Trains a small network on CIFAR-10 with PyTorch DistributedDataParallel: one process or many, GPU or CPU.

Each process reads who it is from WORLD_SIZE, RANK and LOCAL_RANK, and where rank 0 is from MASTER_ADDR, MASTER_PORT.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from cifar import load
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Sequential):
    def __init__(self) -> None:
        def block(inputs: int, outputs: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]

        features = [*block(3, 32), *block(32, 64), *block(64, 128)]
        super().__init__(*features, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(512, 10))


def dataset(folder: str, train: bool) -> TensorDataset:
    images, labels = load(folder, train)
    return TensorDataset(torch.from_numpy(images).float() / 127.5 - 1, torch.from_numpy(labels))


def total(values: Tensor, world_size: int) -> Tensor:
    """The sum of `values` over all processes."""
    if world_size > 1:
        dist.all_reduce(values)
    return values


def digest(model: nn.Module) -> str:
    """Equal for equal weights."""
    weights = hashlib.sha256()
    for tensor in model.state_dict().values():
        weights.update(tensor.cpu().numpy().tobytes())
    return weights.hexdigest()[:16]


def save(content: object, path: Path) -> None:
    """Write the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(content, part)
    os.replace(part, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on CIFAR-10.")
    parser.add_argument("--data-dir", required=True, help="cifar-10-batches-py, or the folder that holds it")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="images for each process and step")
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--model-dir", type=Path, default=Path("outputs"))
    parser.add_argument("--checkpoint-dir", type=Path, help="save here after every epoch, and go on from there")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data, for each process")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    args = parser.parse_args()

    world_size = int(os.environ["WORLD_SIZE"])
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    device = torch.device(f"cuda:{local_rank}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    print(f"rank {rank} of {world_size} on {device}", flush=True)

    torch.manual_seed(0)
    training, test = dataset(args.data_dir, train=True), dataset(args.data_dir, train=False)
    sampler = DistributedSampler(training, num_replicas=world_size, rank=rank)
    loader = DataLoader(training, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers)
    net = Net().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.learning_rate)
    loss_of = nn.CrossEntropyLoss()

    first = 1
    checkpoint = args.checkpoint_dir / "checkpoint.pt" if args.checkpoint_dir else None
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint, map_location=device)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
        print(f"rank {rank} goes on from epoch {first}", flush=True)

    for epoch in range(first, args.epochs + 1):
        started = time.monotonic()
        # What an epoch does depends on its number and on the checkpoint before it alone, so that a run that goes on
        # from there ends bit for bit as an unbroken one. DDP is made anew since it adds up its first step in an order
        # of its own; where rounding does not matter, one for all epochs will do.
        sampler.set_epoch(epoch)
        torch.manual_seed(epoch * world_size + rank)
        model = DistributedDataParallel(net, device_ids=[device] if on_gpu else None) if world_size > 1 else net
        losses = torch.zeros(2, device=device)  # sum and number
        for step, (images, labels) in enumerate(loader, start=1):
            loss = loss_of(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses += torch.stack([loss.detach(), torch.ones((), device=device)])
            if step == len(loader) // 2:
                print(f"rank {rank} epoch {epoch} step {step}/{len(loader)} loss {loss.item():.4f}", flush=True)
        mean = total(losses, world_size)
        if rank == 0:
            seconds = time.monotonic() - started
            print(f"epoch {epoch}/{args.epochs} loss {(mean[0] / mean[1]).item():.6f} ({seconds:.2f} s)", flush=True)
            if checkpoint:
                save({"epoch": epoch, "model": net.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)

    hits = torch.zeros(2, device=device)  # right ones and all
    with torch.no_grad():
        # Every process takes its share of the test images, each image once.
        for images, labels in DataLoader(Subset(test, range(rank, len(test), world_size)), batch_size=256):
            right = net(images.to(device)).argmax(dim=1) == labels.to(device)
            hits += torch.tensor([right.sum(), len(labels)], device=device)
    hits = total(hits, world_size)
    print(f"rank {rank} weights {digest(net)}", flush=True)
    if rank == 0:
        save(net.state_dict(), args.model_dir / "model.pt")
        print(f"accuracy {(hits[0] / hits[1]).item():.4f} on {int(hits[1])} test images", flush=True)
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

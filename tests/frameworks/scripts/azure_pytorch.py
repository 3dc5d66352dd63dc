"""In the manner of Azure ML's CIFAR example: who it is comes from three variables, for a single process too."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def data_of(kind, name):
    return Path(os.environ[f"AZURE_ML_{kind}_{name}"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()

    world_size = int(os.environ["WORLD_SIZE"])
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    distributed = world_size > 1
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if distributed:
        dist.init_process_group(backend="nccl" if device.type == "cuda" else "gloo")

    assert data_of("INPUT", "images").samefile(args.data_dir)
    seed = int((args.data_dir / "seed.txt").read_text())
    torch.manual_seed(seed)
    x = torch.randn(256, 8)
    dataset = TensorDataset(x, x.sum(dim=1, keepdim=True))
    sampler = DistributedSampler(dataset) if distributed else None
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, shuffle=sampler is None)
    model = nn.Linear(8, 1).to(device)
    if distributed:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(args.epochs):
        if distributed:
            sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    node = int(os.environ["NODE_RANK"])
    if not distributed or rank == 0:
        model_dir = data_of("OUTPUT", "model")
        torch.save(model.state_dict(), model_dir / "model.pt")
        os.makedirs("outputs", exist_ok=True)
        Path("outputs", "run_id.txt").write_text(os.environ["AZUREML_RUN_ID"])
    print(f"rank {rank} of {world_size} local rank {local_rank} node {node} loss {loss.item():.6f}", flush=True)
    if torch.distributed.is_initialized():  # else gloo's threads now and then abort a process that is ending
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

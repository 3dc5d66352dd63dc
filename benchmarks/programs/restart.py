"""A rank that takes optimizer steps in DistributedDataParallel; the first attempt's last rank kills itself."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

folder = Path(os.environ["BENCHMARK_FOLDER"])
rank = int(os.environ["RANK"])
is_restarted = (folder / "failed").exists()
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1 if is_restarted else 3):
    optimizer.zero_grad()
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
if is_restarted:
    (folder / f"clock-{rank}").write_text(repr(time.time()))
else:
    if rank == dist.get_world_size() - 1:
        part = folder / "part"
        part.write_text(repr(time.time()))
        part.rename(folder / "failed")
        os.kill(os.getpid(), signal.SIGKILL)
    while True:  # until the rank that is gone is missed
        dist.all_reduce(torch.ones(1))
dist.destroy_process_group()

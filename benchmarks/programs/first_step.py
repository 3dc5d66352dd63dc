"""A rank that takes one optimizer step in DistributedDataParallel, then waits for the file `go`."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

folder = Path(os.environ["BENCHMARK_FOLDER"])
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(8, 32)).square().mean().backward()
optimizer.step()
now = time.time()
part = folder / f"part-{os.environ['RANK']}"
part.write_text(repr(now))
part.rename(folder / f"clock-{os.environ['RANK']}")  # there means whole
while not (folder / "go").exists():
    time.sleep(0.01)
dist.destroy_process_group()

"""What a rank does with its process group; rank 1 keeps away from the last barrier."""

import os
import sys

import torch
import torch.distributed as dist

from jobsdk.train import TrainError, barrier, destroy_process_group, get_context, init_process_group

here = get_context()
init_process_group()
init_process_group()
value = torch.ones(1) * (here.rank + 1)
dist.all_reduce(value)
barrier()
barrier(timeout=60)
said = ""
if here.rank != 1:
    try:
        barrier(timeout=0.5)
    except TrainError as error:
        said = str(error)
store = dist.distributed_c10d._get_default_store()
store.set(f"left-{here.rank}", "")
store.wait([f"left-{rank}" for rank in range(here.world_size)])
interface = os.environ.get("GLOO_SOCKET_IFNAME")
words = (here.rank, dist.get_backend(), dist.get_world_size(), value.item(), interface, said)
sys.stdout.write("|".join(map(str, words)) + "\n")  # at once: both write into one pipe, and torchrun's Pythons by piece
destroy_process_group()
destroy_process_group()

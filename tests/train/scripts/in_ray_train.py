"""Ray Train's own TorchTrainer, whose workers ask jobsdk.train. Usage: in_ray_train.py FOLDER"""

import json
import os
import sys

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train() -> None:
    import torch
    import torch.distributed as dist

    from jobsdk.train import get_context, get_device, init_process_group

    here = get_context()
    init_process_group()  # Ray has done it
    value = torch.ones(1) * (here.rank + 1)
    dist.all_reduce(value)
    said = dict(here._asdict(), device=str(get_device()), all_reduced=value.item())
    with open(f"{os.environ['OUT']}/{here.rank}.json", "w") as file:
        json.dump(said, file)


ray.init(address="local", num_cpus=3, include_dashboard=False, _node_ip_address="127.0.1.1", log_to_driver=False)
run_config = RunConfig(storage_path=sys.argv[1] + "/results", name="mine")
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=run_config).fit()
ray.shutdown()

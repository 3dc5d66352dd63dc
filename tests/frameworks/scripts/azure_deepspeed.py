"""In the manner of Azure ML's DeepSpeed examples: DeepSpeed meets by the pytorch variables, the topology is Azure's."""

import argparse
import os

import deepspeed
import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    assert args.deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    rank, size = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    total = torch.tensor([rank + 1.0])
    deepspeed.comm.all_reduce(total)
    name, node = os.environ["AZUREML_PROCESS_NAME"], int(os.environ["AZUREML_CR_NODE_RANK"])
    hosts = os.environ["AZ_BATCH_HOST_LIST"].split(",")
    assert len(hosts) == int(os.environ["AZUREML_NODE_COUNT"])
    if node == 0 and name == "rank_0":  # who starts the launcher in Azure's example
        print(f"the first process of {len(hosts)} hosts", flush=True)
    print(f"{name} of {size} local rank {args.local_rank} node {node} sum {total.item():.0f}", flush=True)
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main()

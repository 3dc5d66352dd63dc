"""In the manner of Azure ML's MPI examples: a shim makes torch's variables out of Open MPI's and Azure's."""

import os

import torch
import torch.distributed as dist


def set_torch_variables():
    environ = os.environ
    size, local_size = int(environ["OMPI_COMM_WORLD_SIZE"]), int(environ["OMPI_COMM_WORLD_LOCAL_SIZE"])
    if size == local_size:
        environ["MASTER_ADDR"] = environ["AZ_BATCHAI_MPI_MASTER_NODE"]
    else:
        environ["MASTER_ADDR"] = environ["AZ_BATCH_MASTER_NODE"].split(":")[0]
    environ.setdefault("MASTER_PORT", "6105")
    environ["RANK"] = environ["OMPI_COMM_WORLD_RANK"]
    environ["WORLD_SIZE"] = environ["OMPI_COMM_WORLD_SIZE"]
    environ["LOCAL_RANK"] = environ["OMPI_COMM_WORLD_LOCAL_RANK"]


def main():
    set_torch_variables()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    node, nodes = os.environ["AZUREML_CR_NODE_RANK"], os.environ["AZUREML_NODE_COUNT"]
    local_rank = os.environ["LOCAL_RANK"]
    print(f"rank {rank} of {size} local rank {local_rank} node {node} of {nodes} sum {total.item():.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""One process of an emulated job: what jobsdk's local compute has set becomes what Azure ML sets; then the command.

Run by the path of this file, with the path of a JSON file (see `running`) as its only argument. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

#: What jobsdk's environment has beyond Azure ML's, whatever the distribution is.
_BEYOND = ("JOBSDK_", "TORCHELASTIC_", "ROLE_")
_NAMES = (
    "NODE_COUNT", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE",
)  # fmt: skip
#: What only a PyTorch job gets.
_TORCH = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK")

#: What a job's own variables cannot change.
_FIXED = {
    "PyTorch": _TORCH,
    "Mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "TensorFlow": ("TF_CONFIG",),
}


def as_azure(environ: dict[str, str], job: dict[str, Any], here: str) -> dict[str, str]:
    """The environment that a process has in Azure ML, of what it has here; `here` is the working directory."""
    hosts = environ["AZ_BATCH_HOST_LIST"].split(",")
    node, nodes = int(environ["AZUREML_CR_NODE_RANK"]), int(environ["AZUREML_NODE_COUNT"])
    master, port = environ["MASTER_ADDR"], environ["MASTER_PORT"]
    distribution = job["distribution"]
    is_alone = environ["WORLD_SIZE"] == "1"
    own = {name: value for name, value in environ.items() if not name.startswith(_BEYOND) and name not in _NAMES}
    paths = [path for path in own.pop("PYTHONPATH", "").split(":") if path and not path.endswith("/python-armed")]
    if paths:
        own["PYTHONPATH"] = ":".join(paths)
    if distribution != "PyTorch":
        for name in _TORCH:
            own.pop(name, None)
    if distribution == "TensorFlow":
        config = json.loads(own["TF_CONFIG"])
        config["cluster"].setdefault("ps", [])  # the service writes it so; TensorFlow 2.13 and newer refuse it
        own["TF_CONFIG"] = json.dumps(config)
    if nodes > 1:
        own["AZ_BATCH_MASTER_NODE"] = f"{master}:{port}"
    elif distribution == "Mpi":
        own["AZ_BATCHAI_MPI_MASTER_NODE"] = master
    own["AZUREML_PROCESS_NAME"] = "main" if is_alone else environ["AZUREML_PROCESS_NAME"]
    own["AZ_BATCH_NODE_LIST"] = ";".join(hosts)
    own["AZ_BATCH_IS_CURRENT_NODE_MASTER"] = "true" if node == 0 else "false"
    own["AZ_BATCHAI_JOB_MASTER_NODE_IP"] = master
    own["AZ_BATCHAI_TASK_INDEX"] = str(node)
    own["AZUREML_CR_EXECUTION_WORKING_DIR_PATH"] = here
    rank = {"PyTorch": "RANK", "Mpi": "OMPI_COMM_WORLD_RANK"}.get(distribution or "", "AZUREML_CR_NODE_RANK")
    own["AZUREML_CR_DISTRIBUTED_CONFIG"] = json.dumps({"rank": rank, "host_list": hosts})
    own.update(job["variables"])
    fixed = _FIXED.get(distribution or "", ())
    own.update((name, value) for name, value in job["environment"].items() if name not in fixed)
    if job["programs"]:
        own["PATH"] = job["programs"] + os.pathsep + own["PATH"]
    return own


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    environment = as_azure(dict(os.environ), job, os.getcwd())
    os.execvpe("bash", ["bash", "-c", job["command"]], environment)  # nosec B606 # the job's own command


if __name__ == "__main__":
    main()

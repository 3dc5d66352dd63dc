"""What each compute is given for each distribution, against files. JOBSDK_WRITE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from jobsdk import (
    DeepSpeedDistribution,
    Input,
    MLClient,
    MpiDistribution,
    Output,
    PyTorchDistribution,
    RayDistribution,
    TensorFlowDistribution,
    command,
)

GOLDEN = Path(__file__).parent / "golden"
DISTRIBUTIONS: dict[str, Any] = {
    "none": None,
    "pytorch": PyTorchDistribution(process_count_per_instance=4),
    "tensorflow": TensorFlowDistribution(parameter_server_count=1, worker_count=2),
    "mpi": MpiDistribution(process_count_per_instance=4),
    "deepspeed": DeepSpeedDistribution(process_count_per_instance=4),
    "ray": RayDistribution(include_dashboard=True, worker_node_additional_args="--resources '{\"disk\": 1}'"),
}


#: Each as computes.yml has it.
COMPUTES: dict[str, dict[str, Any]] = {
    "local": {"type": "local"},
    "slurm": {"type": "slurm", "partition": "gpu", "gpus_per_node": 8, "setup": ["module load cuda"]},
    "ssh": {
        "type": "ssh",
        "hosts": ["gpu-a", {"host": "me@gpu-b:2222", "address": "10.0.0.2", "gpus": [4, 5, 6, 7]}, "gpu-c"],
        "gpus_per_node": 8,
        "setup": ["module load cuda"],
    },
    "spark": {
        "type": "spark",
        "master": "spark://head:7077",
        "conf": {"spark.executor.memory": "8g"},
        "python": "/opt/train/bin/python",
        "gpus_per_node": 4,
        "cpus_per_node": 16,
    },
    "ray": {
        "type": "ray",
        "address": "http://head:8265",
        "gpus_per_node": 8,
        "runtime_env": {"env_vars": {"NCCL_SOCKET_IFNAME": "ens5"}},
    },
    "azureml": {
        "type": "azureml",
        "subscription_id": "00000000-0000-0000-0000-000000000000",
        "resource_group": "group",
        "workspace_name": "workspace",
        "target": "gpu-cluster",
        "image": "nvcr.io/nvidia/pytorch:25.01-py3",
    },
}


#: A Ray cluster starts none inside of itself.
CELLS = [(compute, kind) for compute in COMPUTES for kind in DISTRIBUTIONS if (compute, kind) != ("ray", "ray")]


@pytest.mark.parametrize(("compute", "kind"), CELLS)
def test_compiled(
    compute: str, kind: str, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(home)
    (home / "computes.yml").write_text(json.dumps({"computes": {compute: COMPUTES[compute]}}))
    (home / "src").mkdir()
    (home / "src/train.py").write_text("")
    (home / "data.csv").write_text("")
    job = command(
        code="src",
        command="python train.py --data ${{inputs.data}} --rate ${{inputs.rate}} --out ${{outputs.model}}",
        inputs={"data": Input(type="uri_file", path="data.csv"), "rate": 0.1},
        outputs={"model": Output(type="uri_folder")},
        environment_variables={"NCCL_DEBUG": "INFO"},
        distribution=DISTRIBUTIONS[kind],
        instance_count=2,
        timeout=3600,
        compute=compute,
    )
    compiled = MLClient().jobs.compile(job, name="golden")
    text = json.dumps({"native": compiled.spec, "plan": compiled.plan}, indent=2, sort_keys=True) + "\n"
    text = text.replace(str(home), "<home>").replace(sys.executable, "<python>")
    text = text.replace(f'"experimentName": "{home.name}"', '"experimentName": "<working directory>"')
    text = re.sub(r'"JOBSDK_PLAN": "[^"]+"', '"JOBSDK_PLAN": "<plan, packed>"', text)  # as this machine's zlib has it
    path = GOLDEN / f"{compute}-{kind}.json"
    if os.environ.get("JOBSDK_WRITE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text()

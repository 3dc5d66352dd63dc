"""The examples as azure-ai-ml sends them to the emulator: they train there, and leave their models."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.bootstrap.runs import wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "src_examples"

#: What scripts for Azure ML have to do there, and here: TensorFlow refuses the empty list that the service sets.
FIX = """
import json, os
config = json.loads(os.environ.get("TF_CONFIG", "{}"))
if config.get("cluster", {}).get("ps") == []:
    del config["cluster"]["ps"]
    os.environ["TF_CONFIG"] = json.dumps(config)
"""


def completed(client: Any, folder: Path, file: str, **changes: Any) -> dict[int, str]:
    """Submit a job file, for Azure ML's own client; what each process has written, once the job has completed."""
    from azure.ai.ml import load_job

    needed = {"environment": {"image": "ubuntu"}, "compute": "cluster"}
    job = load_job(REPOSITORY / "job_specs" / file, params_override=[{**needed, **changes}])
    name = client.jobs.create_or_update(job).name
    wait_for(lambda: client.jobs.get(name).status in ("Completed", "Failed", "Canceled"), 300)
    client.jobs.download(name, download_path=str(folder), all=True)
    logs = {
        int(path.stem.rpartition("_")[2]): path.read_text() for path in folder.glob("artifacts/user_logs/*process*.txt")
    }
    assert client.jobs.get(name).status == "Completed", logs
    client.jobs.download(name, download_path=str(folder), output_name="model")
    return logs


def test_cifar_on_two_nodes_of_two_processes(client: Any, tmp_path: Path) -> None:
    data = tmp_path / "cifar-10-batches-py"
    subprocess.run([sys.executable, EXAMPLES / "cifar10/make_data.py", data, "--images-per-batch", "80"], check=True)
    changes = {"inputs.cifar.path": str(data), "inputs.epochs": 1}
    logs = completed(client, tmp_path, "cifar10-pytorch.yml", **changes)
    assert sorted(logs) == [0, 1, 2, 3]
    digests = {re.findall(r"weights (\w+)", log)[-1] for log in logs.values()}
    assert len(digests) == 1
    assert list((tmp_path / "named-outputs/model").iterdir())


def test_mnist_with_two_workers(client: Any, tmp_path: Path) -> None:
    data = tmp_path / "mnist"
    few = ["--training-images", "320", "--test-images", "60"]
    subprocess.run([sys.executable, EXAMPLES / "mnist_tensorflow/make_data.py", data, *few], check=True)
    code = shutil.copytree(EXAMPLES / "mnist_tensorflow", tmp_path / "code")
    (code / "sitecustomize.py").write_text(FIX)
    changes = {"code": str(code), "environment_variables.PYTHONPATH": ".", "inputs.mnist.path": str(data)}
    logs = completed(client, tmp_path, "mnist-tensorflow.yml", **changes, **{"inputs.epochs": 1})
    assert sorted(logs) == [0, 1]
    digests = [re.findall(rf"^worker {worker} weights (\w+)$", logs[worker], re.MULTILINE) for worker in (0, 1)]
    assert digests[0] == digests[1] != []
    with zipfile.ZipFile(tmp_path / "named-outputs/model/model.keras") as model:
        assert model.testzip() is None


@pytest.mark.parity
def test_mpi_on_two_nodes_of_two_processes(client: Any, tmp_path: Path, require_mpirun: str) -> None:
    from azure.ai.ml import MpiDistribution, command
    from azure.ai.ml.entities import Environment

    job = command(
        command="python -m mpi4py allreduce.py --length 1000",
        code=str(EXAMPLES / "mpi"),
        environment=Environment(image="ubuntu"),
        environment_variables={"WORLD_SIZE": "4"},  # jobsdk gives it to MPI jobs, and Azure ML does not
        compute="cluster",
        instance_count=2,
        distribution=MpiDistribution(process_count_per_instance=2),
    )
    name = client.jobs.create_or_update(job).name
    wait_for(lambda: client.jobs.get(name).status in ("Completed", "Failed", "Canceled"), 120)
    client.jobs.download(name, download_path=str(tmp_path))
    logs = "".join(path.read_text() for path in tmp_path.glob("artifacts/user_logs/*process*.txt"))
    assert client.jobs.get(name).status == "Completed", logs
    assert sorted(re.findall(r"^rank (\d) of 4", logs, re.MULTILINE)) == ["0", "1", "2", "3"]
    assert len(set(re.findall(r"sum (\d+)", logs))) == 1

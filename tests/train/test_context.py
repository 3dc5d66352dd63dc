"""Which process this is: the same answer under every launcher, each started for real where that is cheap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.train import TrainError, get_context
from jobsdk.train.context import of
from tests.bootstrap.detect.test_azureml import MPI, PYTORCH
from tests.compute.slurm.cluster import SlurmCluster
from tests.conftest import Mpi

SCRIPT = Path(__file__).parent / "scripts/say_context.py"
FIELDS = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "node_count")

#: Starts a peer. What it sets is in CASES, and what Ray Train answers in test_what_ray_train_answers.
PARITY = pytest.mark.parity

#: What an outer launcher leaves: a step of Slurm of 8 tasks on 4 nodes, and mpirun's one process on each of 4 nodes.
IN_SLURM = {
    "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x4)", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "8",
}  # fmt: skip
IN_MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}  # fmt: skip
TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
JOBSDK = {
    "JOBSDK_RUN_NAME": "r", "JOBSDK_RUN_DIR": "/r", "JOBSDK_RESTART_COUNT": "1", "RANK": "0", "WORLD_SIZE": "2",
    "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0", "GROUP_RANK": "0", "NODE_COUNT": "2",
}  # fmt: skip
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
TF_CONFIG = {"cluster": {"worker": ["b:1", "c:1"], "chief": ["a:1"], "ps": ["d:1"]}, "task": {"type": "ps", "index": 0}}

CASES: dict[str, tuple[dict[str, str], str, tuple[int, ...]]] = {
    "alone": ({}, "alone", (0, 1, 0, 1, 0, 1)),
    "empty variables are none": ({"RANK": "", "WORLD_SIZE": " "}, "alone", (0, 1, 0, 1, 0, 1)),
    "a rank without a world": ({"RANK": "3"}, "alone", (0, 1, 0, 1, 0, 1)),
    "torchrun": (TORCHRUN, "torchrun", (5, 8, 1, 4, 1, 2)),
    "accelerate": ({**TORCHRUN, "ACCELERATE_DYNAMO_BACKEND": "NO"}, "torchrun", (5, 8, 1, 4, 1, 2)),
    "torchrun in a step of slurm": ({**IN_SLURM, **TORCHRUN}, "torchrun", (5, 8, 1, 4, 1, 2)),
    "torchrun under mpirun": ({**IN_MPIRUN, **TORCHRUN}, "torchrun", (5, 8, 1, 4, 1, 2)),
    "torchrun in a job of jobsdk": ({**JOBSDK, **TORCHRUN}, "torchrun", (5, 8, 1, 4, 1, 2)),
    "deepspeed under mpirun": (
        {**IN_MPIRUN, "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "CROSS_RANK": "1", "CROSS_SIZE": "4",
         "LOCAL_SIZE": "2"}, "torchrun", (3, 8, 1, 2, 1, 4),
    ),
    "deepspeed in a job of jobsdk": (
        {**JOBSDK, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "CROSS_RANK": "1", "CROSS_SIZE": "2",
         "LOCAL_SIZE": "2", "NODE_RANK": "1"}, "torchrun", (3, 4, 1, 2, 1, 2),
    ),
    "open mpi": ({**IN_MPIRUN}, "open mpi", (2, 4, 0, 1, 2, 4)),
    "open mpi in a step of slurm": ({**IN_SLURM, **IN_MPIRUN}, "open mpi", (2, 4, 0, 1, 2, 4)),
    "mpirun of one's own in a job of jobsdk": ({**JOBSDK, **IN_MPIRUN}, "open mpi", (2, 4, 0, 1, 2, 4)),
    "a program that mpirun has started once": (
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "RANK": "1", "WORLD_SIZE": "2"},
        "environment", (1, 2, 0, 1, 1, 2),
    ),
    "hydra": (HYDRA, "hydra", (3, 4, 1, 2, 1, 2)),
    "hydra completed by jobsdk": (
        {**JOBSDK, **HYDRA, "RANK": "3", "WORLD_SIZE": "4", "NODE_RANK": "2", "NODE_COUNT": "3"},
        "hydra", (3, 4, 1, 2, 2, 3),
    ),
    "slurm with pmi2": ({**IN_SLURM, "PMI_RANK": "5", "PMI_SIZE": "8"}, "hydra", (5, 8, 1, 2, 2, 4)),
    "jobsdk": ({**IN_SLURM, **JOBSDK}, "environment", (0, 2, 0, 1, 0, 2)),
    "uneven nodes of jobsdk": (
        {**JOBSDK, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "NODE_RANK": "1"},
        "environment", (3, 4, 0, 1, 1, 2),
    ),
    "kubeflow": ({"RANK": "2", "WORLD_SIZE": "4"}, "environment", (2, 4, 0, 1, 2, 4)),
    "by hand on two nodes": (
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "NODE_RANK": "1"}, "environment", (5, 8, 1, 4, 1, 2),
    ),
    "by hand on one node": ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, "environment", (1, 4, 1, 4, 0, 1)),
    "azure ml, pytorch": (PYTORCH, "environment", (2, 4, 0, 1, 2, 4)),
    "azure ml, mpi": (MPI, "open mpi", (1, 2, 0, 1, 1, 2)),
    "azure ml, two processes a node": (
        {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "AZUREML_NODE_COUNT": "2", "NODE_RANK": "1"},
        "environment", (3, 4, 1, 2, 1, 2),
    ),
    "srun": (IN_SLURM, "slurm", (5, 8, 1, 2, 2, 4)),
    "srun, uneven": (
        {**IN_SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1,1", "SLURM_NODEID": "4", "SLURM_LOCALID": "0",
         "SLURM_PROCID": "7", "SLURM_STEP_NUM_NODES": "5"}, "slurm", (7, 8, 0, 1, 4, 5),
    ),
    "a batch script of slurm": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, "alone", (0, 1, 0, 1, 0, 1)),
    "tensorflow": ({"TF_CONFIG": json.dumps(TF_CONFIG)}, "tensorflow", (3, 4, 0, 1, 3, 4)),
    "no TF_CONFIG": ({"TF_CONFIG": "{"}, "alone", (0, 1, 0, 1, 0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_of_an_environment(name: str) -> None:
    environment, launcher, expected = CASES[name]
    found = of(environment)
    assert (found.launcher, found[:6]) == (launcher, expected)


def test_what_is_no_number_is_named() -> None:
    with pytest.raises(TrainError, match=r"RANK must be a number, not '-1'\. Fix: "):
        of({"RANK": "-1", "WORLD_SIZE": "2"})


def test_the_rest_of_a_job() -> None:
    here = of({**JOBSDK, "MLFLOW_EXPERIMENT_NAME": "vision", "TORCHELASTIC_RESTART_COUNT": "0"})
    assert (here.run_name, here.experiment, here.run_dir, here.restart_count) == ("r", "vision", "/r", 1)
    assert here.outputs == here.storage == "/r/outputs/default"
    assert of({**JOBSDK, "JOBSDK_STORAGE_PATH": "/shared"}).storage == "/shared/r"
    assert of(TORCHRUN).restart_count == 2
    assert (of({}).run_name, of({}).run_dir, of({}).outputs) == (None, None, os.path.abspath("outputs"))


def test_rays_names() -> None:
    here = of({**JOBSDK, "RANK": "1", "NODE_RANK": "1"})
    assert (here.get_world_rank(), here.get_world_size(), here.get_local_rank()) == (1, 2, 0)
    assert (here.get_local_world_size(), here.get_node_rank()) == (1, 1)
    assert (here.get_experiment_name(), here.get_trial_name(), here.get_trial_dir()) == ("r", "r", "/r/outputs/default")
    assert here.get_storage().experiment_fs_path == "/r/outputs/default"


# -- for real ------------------------------------------------------------------------------------------------------


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the script leaves what it finds; nothing of another launcher is in the environment."""
    folder = tmp_path / "out"
    folder.mkdir()
    for name in list(os.environ):
        if name.startswith(("RANK", "WORLD_SIZE", "LOCAL_", "OMPI_", "PMI", "SLURM_", "JOBSDK_RUN", "TORCHELASTIC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OUT", str(folder))
    return folder


def run(*argv: str, **more: str) -> None:
    done = subprocess.run(argv, env={**os.environ, **more}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def found_in(out: Path) -> list[tuple[int, ...]]:
    said = [json.loads(path.read_text()) for path in sorted(out.iterdir())]
    return [tuple(one[field] for field in FIELDS) for one in said]


def test_alone(out: Path) -> None:
    run(sys.executable, str(SCRIPT))
    assert found_in(out) == [(0, 1, 0, 1, 0, 1)]


@pytest.mark.framework("torch")
@PARITY
def test_under_torchrun_on_two_nodes(out: Path) -> None:
    from jobsdk.bootstrap.system.network import free_ports

    argv = [
        "torchrun", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=mine",
        f"--rdzv-endpoint=127.0.0.1:{free_ports(1)[0]}", "--local-addr=127.0.0.1", str(SCRIPT),
    ]  # fmt: skip
    agents = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [agent.communicate(timeout=200)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert found_in(out) == [(0, 4, 0, 2, 0, 2), (1, 4, 1, 2, 0, 2), (2, 4, 0, 2, 1, 2), (3, 4, 1, 2, 1, 2)]
    assert json.loads((out / "3.json").read_text())["run_name"] == "mine"


def test_under_mpirun(mpi: Mpi, out: Path) -> None:
    program = f"{mpi.folder}/{'mpiexec.hydra' if mpi.launcher == 'hydra' else 'mpirun'}"
    more = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    options = [] if mpi.launcher == "hydra" else ["--oversubscribe"]
    run(program, *options, "-n", "2", sys.executable, str(SCRIPT), **more)
    assert found_in(out) == [(0, 2, 0, 2, 0, 1), (1, 2, 1, 2, 0, 1)]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), 2) as cluster:
        yield cluster


@pytest.mark.engine("slurm")
def test_under_srun_and_in_a_batch_script(slurm: SlurmCluster, out: Path, tmp_path: Path) -> None:
    run("srun", "--quiet", "-N2", "-n3", sys.executable, str(SCRIPT), **slurm.environ)
    assert found_in(out) == [(0, 3, 0, 2, 0, 2), (1, 3, 1, 2, 0, 2), (2, 3, 0, 1, 1, 2)]
    for path in out.iterdir():
        path.unlink()
    batch = tmp_path / "batch"
    batch.write_text(f"#!/bin/sh\nexec {sys.executable} {SCRIPT}\n")
    run("sbatch", "--quiet", "--wait", "-n4", f"--output={tmp_path}/batch.log", str(batch), **slurm.environ)
    assert found_in(out) == [(0, 1, 0, 1, 0, 1)]


@pytest.mark.framework("spark")
@pytest.mark.framework("torch")
@pytest.mark.engine("java")
@PARITY
def test_in_torch_distributor(out: Path) -> None:
    """In a process of its own, as a session of Spark is one for each."""
    code = (
        "from pyspark.sql import SparkSession\n"
        "from pyspark.ml.torch.distributor import TorchDistributor\n"
        "spark = SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        f"TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run({str(SCRIPT)!r})\n"
        "spark.stop()\n"
    )
    run(sys.executable, "-c", code, SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    assert found_in(out) == [(0, 2, 0, 2, 0, 1), (1, 2, 1, 2, 0, 1)]


@pytest.mark.framework("ray")
@pytest.mark.framework("torch")
@PARITY
def test_in_a_worker_of_ray_train(out: Path) -> None:
    """Also where the process that has started Ray was a rank of something else."""
    script = Path(__file__).parent / "scripts/in_ray_train.py"
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # a short path: Ray's sockets lie in it
        stale = {"RANK": "6", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "5"}
        run(sys.executable, str(script), folder, RAY_TMPDIR=folder, RAY_USAGE_STATS_ENABLED="0", **stale)
    said: list[dict[str, Any]] = [json.loads(path.read_text()) for path in sorted(out.iterdir())]
    assert [tuple(one[field] for field in FIELDS) for one in said] == [(0, 2, 0, 2, 0, 1), (1, 2, 1, 2, 0, 1)]
    assert [one["launcher"] for one in said] == ["ray train"] * 2
    assert [(one["experiment"], one["device"], one["all_reduced"]) for one in said] == [("mine", "cpu", 3.0)] * 2


class OfRay:
    """ray.train in a worker, by what it answers."""

    def __init__(self, answers: dict[str, Any] | None) -> None:
        self._answers = answers

    def get_context(self) -> Any:
        if self._answers is None:
            raise RuntimeError("`get_context` has been called outside of a training worker")
        return types.SimpleNamespace(**{name: lambda value=value: value for name, value in self._answers.items()})


def test_what_ray_train_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the process that has started Ray was a rank of something else."""
    answers = {
        "get_world_rank": 1, "get_world_size": 2, "get_local_rank": 1, "get_local_world_size": 2, "get_node_rank": 0,
        "get_experiment_name": "mine",
    }  # fmt: skip
    stale = {"RANK": "6", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "5"}
    for name, value in stale.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "ray.train", OfRay(answers))  # type: ignore[arg-type]
    here = get_context()
    assert (here.launcher, here[:6], here.experiment) == ("ray train", (1, 2, 1, 2, 0, 1), "mine")
    for none in (OfRay(None), OfRay({"get_world_rank": lambda: 1}), OfRay({**answers, "get_world_rank": None})):
        monkeypatch.setitem(sys.modules, "ray.train", none)  # type: ignore[arg-type]
        assert get_context().rank == 6


def test_here() -> None:
    assert get_context().launcher == of(os.environ).launcher

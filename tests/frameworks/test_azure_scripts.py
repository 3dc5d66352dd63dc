"""Scripts written for Azure ML's examples, which read its variables in its way, under each distribution.

What they read is looked at by a script that imports no framework; the trainings themselves are run with `make parity`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobsdk import DeepSpeedDistribution, Input, MpiDistribution, Output, PyTorchDistribution, TensorFlowDistribution
from jobsdk.client.run import Run
from tests.frameworks.runs import check_losses, found, run

PARITY = pytest.mark.parity

SHAPES = pytest.mark.parametrize(("nodes", "processes"), [(1, 1), (2, 2)])


def read(arguments: str = "", **fields: Any) -> tuple[Run, list[dict[str, Any]]]:
    """The run, and what each rank finds of what such scripts read."""
    done, logs = run("azure_variables.py", arguments, **fields)
    return done, [json.loads(log) for log in logs.values()]


@SHAPES
@pytest.mark.parametrize("is_distributed", [True, False])
def test_a_pytorch_script_reads(is_distributed: bool, nodes: int, processes: int, tmp_path: Path) -> None:
    (tmp_path / "seed.txt").write_text("7")
    distribution = PyTorchDistribution(process_count_per_instance=processes) if is_distributed else None
    each = processes if is_distributed else 1
    done, ranks = read(
        "--data-dir ${{inputs.images}}",
        inputs={"images": Input(type="uri_folder", path=tmp_path)},
        outputs={"model": Output(type="uri_folder")},
        distribution=distribution,
        nodes=nodes,
    )
    size = nodes * each
    places = [[one[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK")] for one in ranks]
    assert places == [[str(rank), str(size), str(rank % each), str(rank // each)] for rank in range(size)]
    assert {one["AZUREML_RUN_ID"] for one in ranks} == {done.name}
    assert all(one["input is the argument"] and one["seed"] == "7" for one in ranks)
    assert (Path(done.outputs.model.path) / "model.pt").read_text() == "weights"
    assert (done.folder.path / "outputs/default/run_id.txt").read_text() == done.name


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_tensorflow_script_reads(nodes: int) -> None:
    _, ranks = read(
        "--model-dir ${{outputs.model}}",
        outputs={"model": Output(type="uri_folder")},
        distribution=TensorFlowDistribution(worker_count=nodes),
        nodes=nodes,
    )
    configs = [json.loads(one["TF_CONFIG"]) for one in ranks]
    assert [one["task"] for one in configs] == [{"type": "worker", "index": worker} for worker in range(nodes)]
    assert [set(one["cluster"]) for one in configs] == [{"worker"}] * nodes, "TensorFlow refuses an empty ps"
    assert [len(set(one["cluster"]["worker"])) for one in configs] == [nodes] * nodes
    assert all(Path(one["argv"][1]).is_dir() for one in ranks)


@SHAPES
@pytest.mark.parametrize("launcher", [pytest.param("mpirun", marks=pytest.mark.framework("mpi")), "direct"])
def test_an_mpi_script_reads(nodes: int, processes: int, launcher: str) -> None:
    distribution = MpiDistribution(process_count_per_instance=processes, launcher=launcher)
    _, ranks = read(distribution=distribution, nodes=nodes)
    names = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"]
    size = nodes * processes
    assert [[one[name] for name in (*names, "AZUREML_CR_NODE_RANK", "AZUREML_NODE_COUNT")] for one in ranks] == [
        [str(each) for each in (rank, size, rank % processes, processes, rank // processes, nodes)]
        for rank in range(size)
    ]
    for one in ranks:
        if size == processes:  # as azure_mpi.py does
            assert one["AZ_BATCHAI_MPI_MASTER_NODE"] == one["MASTER_ADDR"]
        else:
            assert one["AZ_BATCH_MASTER_NODE"].split(":")[0] == one["MASTER_ADDR"]


@SHAPES
def test_a_deepspeed_script_reads(nodes: int, processes: int) -> None:
    distribution = DeepSpeedDistribution(process_count_per_instance=processes)
    _, ranks = read("--deepspeed --local_rank $LOCAL_RANK", distribution=distribution, nodes=nodes)
    names = ("AZUREML_PROCESS_NAME", "WORLD_SIZE", "AZUREML_CR_NODE_RANK", "AZUREML_NODE_COUNT")
    size = nodes * processes
    assert [[one[name] for name in names] for one in ranks] == [
        [f"rank_{rank}", str(size), str(rank // processes), str(nodes)] for rank in range(size)
    ]
    local_ranks = [str(rank % processes) for rank in range(size)]
    assert [one["argv"] for one in ranks] == [["--deepspeed", "--local_rank", local] for local in local_ranks]
    assert [len(one["AZ_BATCH_HOST_LIST"].split(",")) for one in ranks] == [nodes] * size


# -- the trainings themselves ------------------------------------------------------------------------------------------


@pytest.mark.framework("torch")
@PARITY
@SHAPES
def test_pytorch(nodes: int, processes: int, tmp_path: Path) -> None:
    (tmp_path / "seed.txt").write_text("7")
    done, logs = run(
        "azure_pytorch.py",
        "--data-dir ${{inputs.images}}",
        inputs={"images": Input(type="uri_folder", path=tmp_path)},
        outputs={"model": Output(type="uri_folder")},
        distribution=PyTorchDistribution(process_count_per_instance=processes),
        nodes=nodes,
    )
    said = [found(r"rank (\d) of (\d) local rank (\d) node (\d) loss (\S+)", log)[0] for log in logs.values()]
    size = nodes * processes
    assert [one[:4] for one in said] == [
        (str(rank), str(size), str(rank % processes), str(rank // processes)) for rank in range(size)
    ]
    assert all(float(loss) < 0.1 for *_, loss in said)
    assert (Path(done.outputs.model.path) / "model.pt").stat().st_size > 0
    assert (done.folder.path / "outputs/default/run_id.txt").read_text() == done.name


@pytest.mark.framework("torch")
@PARITY
def test_pytorch_without_a_distribution(tmp_path: Path) -> None:
    (tmp_path / "seed.txt").write_text("7")
    _, logs = run(
        "azure_pytorch.py",
        "--data-dir ${{inputs.images}}",
        inputs={"images": Input(type="uri_folder", path=tmp_path)},
        outputs={"model": Output(type="uri_folder")},
    )
    assert "rank 0 of 1 local rank 0 node 0 loss" in logs[0]


@pytest.mark.framework("tensorflow")
@PARITY
@pytest.mark.parametrize("nodes", [1, 2])
def test_tensorflow(nodes: int) -> None:
    done, logs = run(
        "azure_tensorflow.py",
        "--model-dir ${{outputs.model}}",
        outputs={"model": Output(type="uri_folder")},
        distribution=TensorFlowDistribution(worker_count=nodes),
        nodes=nodes,
        environment_variables={"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert [found(r"worker (\d) of (\d) workers", log) for log in logs.values()] == [
        [(str(worker), str(nodes))] for worker in range(nodes)
    ]
    losses = [found(r"losses (.+)", log)[0].split() for log in logs.values()]
    check_losses(losses[0])
    assert all(one == losses[0] for one in losses)
    assert (Path(done.outputs.model.path) / "weights.h5").exists()


@pytest.mark.framework("torch")
@PARITY
@SHAPES
@pytest.mark.parametrize("launcher", ["mpirun", "direct"])
def test_mpi(nodes: int, processes: int, launcher: str, require_mpirun: str) -> None:
    distribution = MpiDistribution(process_count_per_instance=processes, launcher=launcher)
    _, logs = run("azure_mpi.py", distribution=distribution, nodes=nodes)
    assert [found(r"rank (\d of \d local rank \d node \d of \d sum \d+)", log) for log in logs.values()] == topology(
        "{rank} of {size} local rank {local} node {node} of {nodes} sum {sum}", nodes, processes
    )


@PARITY
@SHAPES
def test_deepspeed(nodes: int, processes: int, require_deepspeed: str) -> None:
    _, logs = run(
        "azure_deepspeed.py",
        "--deepspeed --local_rank $LOCAL_RANK",
        distribution=DeepSpeedDistribution(process_count_per_instance=processes),
        nodes=nodes,
        environment_variables={"DS_ACCELERATOR": "cpu"},
    )
    assert [found(r"(rank_\d of \d local rank \d node \d sum \d+)", log) for log in logs.values()] == topology(
        "rank_{rank} of {size} local rank {local} node {node} sum {sum}", nodes, processes
    )
    assert [found(r"the first process of (\d) hosts", log) for log in logs.values()] == [
        [str(nodes)], *[[]] * (nodes * processes - 1)
    ]  # fmt: skip


def topology(form: str, nodes: int, processes: int) -> list[list[str]]:
    """What each rank says of itself."""
    size = nodes * processes
    return [
        [
            form.format(
                rank=rank, size=size, local=rank % processes, node=rank // processes, nodes=nodes,
                sum=size * (size + 1) // 2,
            )
        ]
        for rank in range(size)
    ]  # fmt: skip

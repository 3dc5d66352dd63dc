"""Scripts written for Azure ML's examples, which read its variables in its way, under each distribution."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobsdk import DeepSpeedDistribution, Input, MpiDistribution, Output, PyTorchDistribution, TensorFlowDistribution
from tests.frameworks.runs import check_losses, found, run

SHAPES = pytest.mark.parametrize(("nodes", "processes"), [(1, 1), (2, 2)])


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


def test_pytorch_without_a_distribution(tmp_path: Path) -> None:
    (tmp_path / "seed.txt").write_text("7")
    _, logs = run(
        "azure_pytorch.py",
        "--data-dir ${{inputs.images}}",
        inputs={"images": Input(type="uri_folder", path=tmp_path)},
        outputs={"model": Output(type="uri_folder")},
    )
    assert "rank 0 of 1 local rank 0 node 0 loss" in logs[0]


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


@SHAPES
@pytest.mark.parametrize("launcher", ["mpirun", "direct"])
def test_mpi(nodes: int, processes: int, launcher: str, require_mpirun: str) -> None:
    distribution = MpiDistribution(process_count_per_instance=processes, launcher=launcher)
    _, logs = run("azure_mpi.py", distribution=distribution, nodes=nodes)
    assert [found(r"rank (\d of \d local rank \d node \d of \d sum \d+)", log) for log in logs.values()] == topology(
        "{rank} of {size} local rank {local} node {node} of {nodes} sum {sum}", nodes, processes
    )


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

"""TorchTrainer on this machine, and Ray's own examples of scaling on a real cluster of Ray."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk import (
    CheckpointConfig,
    FailureConfig,
    JobsdkError,
    MLClient,
    RunConfig,
    ScalingConfig,
    TorchConfig,
    TorchTrainer,
    TrainingFailedError,
    ValidationError,
)
from jobsdk.train import Checkpoint

TORCH = pytest.mark.framework("torch")
PAGE = Path(__file__).parents[2] / "docs" / "ray-train.md"


def _telling() -> Any:
    """A training that says what it finds."""

    def telling(config: dict[str, Any]) -> Any:
        import gc

        frozen = gc.get_freeze_count(), len(gc.get_objects())
        import os
        import tempfile

        import torch
        import torch.distributed as dist

        from jobsdk.train import Checkpoint, get_checkpoint, get_context, get_device, report

        here, before = get_context(), get_checkpoint()
        total = torch.ones(1)
        dist.all_reduce(total)
        for step in range(2):
            with tempfile.TemporaryDirectory() as folder:
                with open(f"{folder}/rank-{here.rank}.txt", "w") as file:
                    file.write(str(step))
                report({"loss": config["lr"] / (step + 1), "rank": here.rank}, checkpoint=Checkpoint(folder))
        report({"last": float("nan")})
        dist.barrier()  # what fails does so when all have reported
        if config.get("fails") and not here.restart_count and here.rank == 1:
            raise ValueError("what was wrong")
        dist.barrier()
        names = ("CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "LOCAL_WORLD_SIZE", "NODE_COUNT")
        found = {name: os.environ.get(name) for name in names}
        group = {"total": total.item(), "backend": dist.get_backend(), "device": str(get_device())}
        return {**found, **group, "frozen": frozen, "before": before.path if before else None}

    return telling


@TORCH
def test_a_training() -> None:
    result = TorchTrainer(
        _telling(),
        train_loop_config={"lr": 8},
        scaling_config=ScalingConfig(num_workers=2),
        torch_config=TorchConfig(backend="gloo"),
        environment_variables={"NCCL_SOCKET_IFNAME": "lo"},
    ).fit()
    value = result.return_value
    assert (value["total"], value["backend"], value["device"], value["before"]) == (2.0, "gloo", "cpu", None)
    assert (value["LOCAL_WORLD_SIZE"], value["NCCL_SOCKET_IFNAME"]) == ("2", "lo")
    count, rest = value["frozen"]
    assert count > 20 * rest, "what is imported for a training costs nothing at its end"
    assert result.error is None
    assert result.metrics is not None
    assert list(result.metrics) == ["last"]
    assert result.metrics["last"] != result.metrics["last"]  # not a number
    assert [metrics["loss"] for _, metrics in result.best_checkpoints] == [8, 4]
    assert [metrics["rank"] for _, metrics in result.best_checkpoints] == [0, 0]
    assert result.checkpoint == result.get_best_checkpoint("loss", "min") == result.best_checkpoints[1][0]
    assert result.get_best_checkpoint("loss", "max") == result.best_checkpoints[0][0]
    with result.best_checkpoints[0][0].as_directory() as folder:
        assert sorted(os.listdir(folder)) == ["rank-0.txt", "rank-1.txt"]
    assert os.path.dirname(os.path.dirname(result.best_checkpoints[0][0].path)) == result.path
    assert list(result.metrics_dataframe["loss"].dropna()) == [8, 4]
    with pytest.raises(ValueError, match="accuracy"):
        result.get_best_checkpoint("accuracy", "max")
    with pytest.raises(ValueError, match="mode"):
        result.get_best_checkpoint("loss", "best")


@TORCH
def test_a_worker_that_fails() -> None:
    trainer = TorchTrainer(
        train_func=_telling(), train_loop_config={"lr": 1, "fails": True}, scaling_config={"num_workers": 2}
    )
    with pytest.raises(TrainingFailedError, match=r"rank 1.*what was wrong") as error:
        trainer.fit()
    cause = error.value.__cause__
    assert isinstance(cause, ValueError)
    assert error.value.worker_failures == {1: cause}
    text = str(cause.__cause__)
    assert text.splitlines()[2:4][-1].endswith("in telling"), text  # it begins in the user's function
    assert error.value.report["exit_code"] == 1


def test_what_cannot_travel_is_told_in_the_trainers_words() -> None:
    lock = threading.Lock()

    def train(config: dict[str, Any]) -> None:
        print(lock, config)

    for given, way in (({}, "train_func.lock"), ({"made": threading.Lock()}, r"train_loop_config\['made'\]")):
        if given:
            lock = None  # type: ignore[assignment]
        with pytest.raises(JobsdkError, match=rf"'_thread.lock' reached through .*train\.{way}"):
            TorchTrainer(train, train_loop_config=given).fit()


@TORCH
def test_a_worker_that_leaves_before_the_others_is_named() -> None:
    def train() -> None:
        import os
        import time

        import torch
        import torch.distributed as dist

        pid = torch.tensor(os.getpid())
        dist.broadcast(pid, 1)
        if dist.get_rank() == 0:
            while os.path.exists(f"/proc/{pid.item()}"):  # until its end has been seen
                time.sleep(0.01)
            dist.barrier()

    with pytest.raises(TrainingFailedError, match="advice: rank 1 left while others needed it"):
        TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit()


@TORCH
def test_what_a_script_defines_can_be_saved_in_a_training(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom jobsdk import TorchTrainer\n"
        "class Net(torch.nn.Linear):\n    pass\n"
        "def train_func():\n    torch.save(Net(1, 1), 'net.pt')\n"
        "    return torch.load('net.pt', weights_only=False).in_features\n"
        "print(TorchTrainer(train_func).fit().return_value)\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr


@TORCH
def test_a_worker_that_exits() -> None:
    def train() -> None:
        import sys

        sys.exit(7)

    with pytest.raises(TrainingFailedError) as error:
        TorchTrainer(train).fit()
    assert error.value.report["exit_code"] == 7
    assert error.value.worker_failures == {}


@TORCH
def test_a_training_that_is_started_again(tmp_path: Path) -> None:
    run_config = RunConfig(name="again", storage_path=str(tmp_path), failure_config=FailureConfig(max_failures=1))
    trainer = TorchTrainer(
        _telling(), train_loop_config={"lr": 1, "fails": True}, scaling_config={"num_workers": 2}, run_config=run_config
    )
    result = trainer.fit()
    (run,) = MLClient().jobs.list(experiment="again")
    assert result.run == run
    assert run.display_name == "again"
    assert result.path == str(tmp_path / "again" / run.name)
    assert os.path.dirname(result.return_value["before"]) == result.path + "/checkpoints"
    assert len(result.best_checkpoints) == 4


@TORCH
def test_the_example(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loss, path = done.stdout.splitlines()[-1].split(maxsplit=1)
    assert float(loss) > 0
    assert (Path(path) / "model.pt").is_file()


@TORCH
def test_only_the_best_checkpoints_stay() -> None:
    def train() -> None:
        import tempfile

        from jobsdk.train import Checkpoints, report

        for loss in (3.0, 1.0, 2.0):
            with tempfile.TemporaryDirectory() as folder:
                open(f"{folder}/model", "w").close()
                report({"loss": loss}, checkpoint=folder)
        with Checkpoints() as checkpoints:
            checkpoints.save({"step": 3}, {"loss": 4.0})

    kept = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    result = TorchTrainer(train, run_config=RunConfig(checkpoint_config=kept)).fit()
    assert [metrics["loss"] for _, metrics in result.best_checkpoints] == [1.0, 2.0, 4.0]
    files = [os.listdir(checkpoint.path) for checkpoint, _ in result.best_checkpoints]
    assert files == [["model"], ["model"], ["rank-00000.pt"]]
    assert result.metrics == {"loss": 4.0}
    assert RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=3)).checkpoint_config.variables() == {
        "JOBSDK_KEEP_CHECKPOINTS": '{"newest": 3, "mode": "max"}'
    }


# -- what is told at once ----------------------------------------------------------------------------------------------


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"datasets": {}}, "datasets: .*Ray Data"),
        ({"dataset_config": None}, "Ray Data"),
        ({"resume_from_checkpoint": Checkpoint("/x")}, "train_loop_config"),
        ({"metadata": {}}, "tags"),
        ({"scaling_confg": {}}, "scaling_confg: .*did you mean 'scaling_config'"),
        ({"scaling": {}}, "scaling: .*did you mean 'scaling_config'"),
        ({"train_loop_confg": {}}, "did you mean 'train_loop_config'"),
        ({"num_workers": 2}, r"num_workers: .*Fix: write scaling_config=ScalingConfig\(num_workers=...\)"),
        ({"instance_coun": 2}, "did you mean 'instance_count'"),
        ({"scaling_config": {"num_workers": -1}}, "scaling_config.num_workers"),
        ({"scaling_config": 2}, "scaling_config"),
        ({"torch_config": {"init_method": "file"}}, "torch_config.init_method"),
        ({"run_config": {"checkpoint_config": {"num_to_keep": 0}}}, "num_to_keep"),
        ({"run_config": {"checkpoint_config": {"checkpoint_score_order": "least"}}}, "checkpoint_score_order"),
        ({"run_config": {"storage_path": "s3://bucket/x"}}, "run_config.storage_path: must be a folder, and s3://"),
        ({"run_config": {"storage_path": "/x", "name": "a/../../b"}}, "run_config.name: leads out of storage_path"),
        ({"run_config": {"nam": "x"}}, "did you mean 'name'"),
        ({"run_config": {"failure_config": {"max_failures": -2}}}, "max_failures"),
        ({"run_config": {"worker_runtime_env": {"pip": []}}}, "worker_runtime_env.pip"),
        ({"environment_variables": {"RANK": "1"}, "scaling_config": {"use_gpu": "perhaps"}}, "use_gpu"),
    ],
)
def test_what_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        TorchTrainer(nothing, **given)


def test_what_is_no_training_function(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="a, b"):
        TorchTrainer(lambda a, b: None)
    with pytest.raises(ValueError, match="lr"):
        TorchTrainer(_with_keyword)
    with pytest.raises(TypeError):
        TorchTrainer("train.py")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="_later is a coroutine function"):
        TorchTrainer(_later)
    with pytest.raises(TypeError):
        TorchTrainer()
    with pytest.raises(TypeError):
        TorchTrainer(nothing, train_func=nothing)
    with pytest.raises(TypeError):
        TorchTrainer(nothing, train_loop_config=[1])  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        TorchTrainer(nothing, train_loop_config={"lr": 1})
    assert "train_loop_config is not used" in caplog.text


async def _later() -> None:
    pass


def _with_keyword(*, lr: float) -> None:
    pass


# -- Ray's own examples, on Ray ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of this process with a cluster of two nodes, of four GPUs each that there are not."""
    import ray

    from tests.compute.ray.cluster import HEAD, RayCluster

    cluster = RayCluster(tmp_path_factory.mktemp("ray"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in cluster.environment.items():
                patch.setenv(name, value)
            variables = {"NCCL_SOCKET_IFNAME": "lo"}
            ray.init(cluster.address, _node_ip_address=HEAD, log_to_driver=False, runtime_env={"env_vars": variables})
            yield ray
            ray.shutdown()
    finally:
        cluster.close()


@pytest.mark.parametrize(
    ("scaling", "gpus"),
    [
        ({"num_workers": 3}, 0),
        ({"num_workers": 2, "use_gpu": True, "accelerator_type": "A100"}, 2),
        ({"num_workers": 1, "use_gpu": True, "resources_per_worker": {"GPU": 2}}, 2),
        ({"num_workers": 2, "use_gpu": True, "resources_per_worker": {"GPU": 0.5}}, 1),
    ],
    ids=["3 workers", "a GPU each, of a type", "2 GPUs for one", "half a GPU each"],
)
def test_scaling_on_ray(ray: Any, scaling: dict[str, Any], gpus: int) -> None:
    workers = scaling["num_workers"]
    config = ScalingConfig(**scaling)
    trainer = TorchTrainer(
        _telling(), train_loop_config={"lr": 1}, scaling_config=config, torch_config=TorchConfig(backend="gloo")
    )
    result = trainer.fit()
    value = result.return_value
    assert result.run.compute == "ray"
    assert (value["total"], value["backend"]) == (workers, "gloo")
    assert value["NCCL_SOCKET_IFNAME"] == "lo"  # of the session's runtime_env
    visible = [one for one in (value["CUDA_VISIBLE_DEVICES"] or "").split(",") if one]
    assert len(visible) == gpus
    assert result.checkpoint is not None
    assert sorted(os.listdir(result.checkpoint.path)) == [f"rank-{rank}.txt" for rank in range(workers)]

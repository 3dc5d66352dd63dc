"""The DeepSpeed example: real training under ZeRO-1 and ZeRO-3 on 2 nodes, and a search by the autotuner."""

from __future__ import annotations

import json
import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk import CommandJob, MLClient, load_job

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing may ask for a remote shell: whoever does is told off, and found out."""
    called = tmp_path / "called"
    for name in ("ssh", "pdsh"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {name} $* >> {called}\nexit 255\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    yield
    assert not called.exists(), called.read_text()


def spec(name: str, **changes: Any) -> CommandJob:
    """A job file of the repository with some fields set."""
    overrides = [{path.replace("__", "."): value} for path, value in changes.items()]
    return load_job(REPOSITORY / "job_specs" / f"deepspeed-{name}.yml", params_override=overrides)


def submitted() -> CommandJob:
    """The job of src_examples/submit_deepspeed.py, whose configuration is a dict."""
    job: CommandJob = runpy.run_path(str(REPOSITORY / "src_examples" / "submit_deepspeed.py"))["job"]
    return job


def run(job: CommandJob) -> Path:
    """The folder of a run of the job that has completed."""
    done = MLClient().jobs.create_or_update(job, compute="local").stream()
    assert done.status == "Completed"
    return Path(done.folder.path)


def test_the_submission_in_python_is_the_job_file_with_its_configuration() -> None:
    """It differs in the launcher, and in that the configuration is in the job instead of in a file."""
    in_python, in_yaml = submitted(), spec("zero3")
    assert in_python.findings() == in_yaml.findings() == ()
    in_file = json.loads((REPOSITORY / "src_examples/deepspeed/zero3.json").read_text())
    config = in_python.distribution.config
    assert (config["optimizer"], config["zero_optimization"]) == (in_file["optimizer"], in_file["zero_optimization"])
    assert in_python.command.replace("$JOBSDK_DEEPSPEED_CONFIG", "zero3.json").split() == in_yaml.command.split()
    for field in ("display_name", "experiment_name", "environment_variables", "inputs", "outputs", "resources"):
        assert getattr(in_python, field) == getattr(in_yaml, field), field
    assert in_python.resolve(in_python.code) == in_yaml.resolve(in_yaml.code).resolve()
    sizes = [job.distribution.process_count_per_instance for job in (in_python, in_yaml)]
    assert sizes == [2, 2]
    assert (in_python.distribution.launcher, in_yaml.distribution.launcher) == ("direct", "deepspeed")


@pytest.mark.parametrize(("stage", "launcher", "processes"), [(1, "direct", 1), (3, "deepspeed", 2)])
def test_training_on_two_nodes(stage: int, launcher: str, processes: int, require_deepspeed: str) -> None:
    job = spec(f"zero{stage}")
    assert job.distribution.launcher == launcher
    job.inputs = {"epochs": 3}
    job.distribution.process_count_per_instance = processes
    folder = run(job)

    world = 2 * processes
    logs = {rank: (folder / f"logs/node-{rank // processes}/rank-{rank}.log").read_text() for rank in range(world)}
    assert all(f"rank {rank} of {world} on cpu, ZeRO {stage}\n" in log for rank, log in logs.items())
    losses = [float(loss) for loss in re.findall(r"^epoch \d/3 loss (\S+)$", logs[0], re.MULTILINE)]
    assert len(losses) == 3
    assert losses[-1] < 0.5 * losses[0]
    weights = [re.findall(rf"^rank {rank} weights (\w+)$", log, re.MULTILINE) for rank, log in logs.items()]
    assert [len(found) for found in weights] == [1] * world
    assert len({found[0] for found in weights}) == 1

    tag = (folder / "outputs/checkpoint/latest").read_text()
    assert len(list((folder / "outputs/checkpoint" / tag).glob("*_optim_states.pt"))) == world
    launched = [(folder / f"logs/node-{node}/launcher.log").exists() for node in range(2)]
    assert launched == [launcher == "deepspeed"] * 2


#: Stands in for the training: it imports no framework, and leaves what DeepSpeed's engine would for the autotuner.
_STAND_IN = """
import base64, json, os, sys
given = sys.argv[sys.argv.index("--deepspeed_config") + 1]
text = open(given).read() if os.path.exists(given) else base64.urlsafe_b64decode(given)
config = json.loads(text)
settings = config.get("autotuning", {})
rank, stage = os.environ["RANK"], config["zero_optimization"]["stage"]
os.write(1, f"rank {rank} of {os.environ['WORLD_SIZE']} on cpu, ZeRO {stage}\\n".encode())
if settings.get("enabled") and rank == "0":
    if "model_info" in settings:
        found = {"num_params": 76296, "trainable_num_params": 76296, "activation_mem_per_gpu": 1000}
    else:
        found = {"throughput": 1, "latency": 1, "FLOPS_per_gpu": 1}
    with open(settings["model_info_path" if "model_info" in settings else "metric_path"], "w") as file:
        json.dump(found, file)
if not settings.get("enabled"):
    epochs = int(sys.argv[sys.argv.index("--epochs") + 1])
    for epoch in range(1, epochs + 1 if rank == "0" else 1):
        os.write(1, f"epoch {epoch}/{epochs} loss {1 / epoch ** 2}\\n".encode())
    os.write(1, f"rank {rank} weights {config['train_micro_batch_size_per_gpu']:x}\\n".encode())
"""


@pytest.mark.parity
@pytest.mark.parametrize("training", ["stand-in", "for real"])
def test_the_autotuner_searches_and_then_trains(training: str, require_deepspeed: str, tmp_path: Path) -> None:
    job = spec("autotuning", inputs__epochs=3, distribution__autotuning="run")
    if training == "stand-in":
        code = tmp_path / "code"
        code.mkdir()
        (code / "train.py").write_text(_STAND_IN)
        job.code = str(code)
    job.distribution.config = {**job.distribution.config, "train_micro_batch_size_per_gpu": [16]}
    folder = run(job)
    report = json.loads((folder / "report.json").read_text())
    assert [(rank["rank"], rank["role"], rank["exit_code"]) for rank in report["ranks"]] == [(0, "tuner", 0)]

    results = folder / "outputs/default/autotuning_results"
    assert json.loads((results / "profile_model_info/model_info.json").read_text())["num_params"] > 70_000
    trial = results / "z1_gas1_tmbspg16"
    said = (trial / "stdout.log").read_text()
    assert all(f"rank {rank} of 2 on cpu, ZeRO 1" in said for rank in range(2))
    assert json.loads((trial / "metrics.json").read_text())["throughput"] > 0
    best = json.loads((results / "ds_config_optimal.json").read_text())
    assert (best["train_micro_batch_size_per_gpu"], best["train_batch_size"]) == (16, 32)

    # The training goes on to its end, where a trial stops after a few steps.
    log = (folder / "logs/node-0/rank-0.log").read_text()
    losses = [float(loss) for loss in re.findall(r"^epoch \d/3 loss (\S+)$", log, re.MULTILINE)]
    assert len(losses) == 3
    assert losses[-1] < 0.5 * losses[0]
    assert len(set(re.findall(r"^rank \d weights (\w+)$", log, re.MULTILINE))) == 1

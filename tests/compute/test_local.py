from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from jobsdk import MLClient, MpiDistribution
from jobsdk import compute as computes
from jobsdk.errors import ComputeError, ValidationError
from jobsdk.job.command import CommandJob, command
from jobsdk.planning.plan import make_plan


def judged(job: CommandJob, **options: Any) -> dict[str, str]:
    """The findings of the local compute: field -> severity and message."""
    target = computes.resolve("local")
    found = target.findings(job, make_plan(job, name="run"), target.place(job), **options)
    return {".".join(map(str, one.path)): f"{one.severity}: {one.message}. {one.fix}" for one in found}


def test_a_plain_job_has_nothing_to_warn_of() -> None:
    assert judged(command(command="true", inputs={"n": 3, "web": {"type": "uri_file", "path": "https://x/y"}})) == {}


def test_every_option_that_does_not_fit_is_a_warning_and_blocks_nothing() -> None:
    job = command(
        command="true",
        environment="azureml://registries/azureml/environments/torch/versions/1",
        instance_type="Standard_NC24",
        shm_size="16g",
        docker_args="--ipc=host",
        locations=["westeurope"],
        max_instance_count=4,
        services={"lab": {"type": "jupyter_lab"}},
        job_tier="spot",
        identity={"type": "user_identity"},
        outputs={
            "model": {"type": "custom_model", "name": "registered"},
            "cloud": {"path": "azureml://datastores/d/paths/p"},
        },
    )
    found = judged(job)
    assert sorted(found) == [
        "environment",
        "identity",
        "outputs.cloud.path",
        "outputs.model.name",
        "queue_settings",
        "resources.docker_args",
        "resources.instance_type",
        "resources.locations",
        "resources.max_instance_count",
        "resources.shm_size",
        "services",
    ]
    assert all(text.startswith("warning: ") for text in found.values())
    assert sys.executable in found["environment"]
    spec = MLClient().jobs.compile(job, name="run").spec
    assert spec["nodes"] == 1


@pytest.mark.parametrize(
    "path",
    [
        "azureml:data:1",
        "azureml://datastores/d/paths/p",
        "wasbs://c@a.blob.core.windows.net/x",
        "adl://a.azuredatalakestore.net/x",
    ],
)
def test_an_input_in_a_cloud_is_an_error_that_names_it_and_the_fix(path: str) -> None:
    job = command(command="cat ${{inputs.data}}", inputs={"data": {"path": path}})
    with pytest.raises(ValidationError) as caught:
        MLClient().jobs.compile(job, name="run")
    assert "inputs.data.path" in str(caught.value)
    assert "--set inputs.data.path=" in str(caught.value)


@pytest.mark.parametrize(
    ("distribution", "program", "hint"),
    [("mpi", "mpirun or mpiexec", "openmpi"), ("deepspeed", "deepspeed", "pip install deepspeed")],
)
def test_a_launcher_that_is_missing_is_an_error_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, distribution: str, program: str, hint: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    launcher = "deepspeed" if distribution == "deepspeed" else "mpirun"
    job = command(command="true", distribution={"type": distribution, "launcher": launcher})
    text = judged(job)["distribution.launcher"]
    assert text.startswith(f"error: there is no {program} on PATH")
    assert hint in text
    (tmp_path / launcher).write_text("#!/bin/sh\n")
    (tmp_path / launcher).chmod(0o755)
    assert judged(job) == {}
    (tmp_path / launcher).unlink()
    job.distribution.launcher = "direct"  # type: ignore[union-attr]
    assert judged(job) == {}


def test_an_mpirun_of_another_family_than_asked_for_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    job = command(command="true", distribution={"type": "mpi", "launcher": "hydra"})
    missing = judged(job)["distribution.launcher"]
    assert missing.startswith("error: there is no mpiexec of Hydra (MPICH, Intel MPI) on PATH. install MPICH")
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    (tmp_path / "mpirun").chmod(0o755)
    assert judged(job)["distribution.launcher"] == missing
    job.distribution.launcher = "openmpi"  # type: ignore[union-attr]
    assert judged(job) == {}


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (command(command="cd src && python train.py", preload=["torch"]), "the command is not of the form"),
        (command(command="bash train.sh", preload="torch"), "the command is not of the form"),
        (
            command(command="python train.py", preload="torch", distribution=MpiDistribution()),
            "mpirun starts the processes, not jobsdk",
        ),
    ],
)
def test_a_preload_that_cannot_be_is_told_before_the_run(job: CommandJob, why: str, require_mpirun: str) -> None:
    assert why in judged(job)["preload"]
    assert judged(job)["preload"].startswith("warning: has no effect")


def test_the_preload_of_the_compute_counts_for_jobs_that_say_nothing() -> None:
    Path("computes.yml").write_text("computes: {local: {type: local, preload: [json, torch.nn]}}")
    plans = {
        tuple(plan["preload"])
        for given in (None, [], "numpy")
        for plan in [MLClient().jobs.compile(command(command="python -m calendar", preload=given)).plan]
    }
    assert plans == {("json", "torch.nn"), (), ("numpy",)}
    Path("computes.yml").write_text("computes: {local: {type: local, preload: [no-module]}}")
    with pytest.raises(ComputeError, match=r"compute local: .*preload.*the name of a Python module"):
        computes.resolve("local")


def test_building_needs_something_to_build() -> None:
    assert "nothing to build" in judged(command(command="true"), build_env=True)["environment"]
    image = command(command="true", environment={"image": "ubuntu"})
    assert judged(image, build_env=True)["environment"].startswith("error: only packages")
    packages = command(command="true", environment={"image": "ubuntu", "requirements": "r.txt"})
    assert judged(packages, build_env=True) == {}
    assert "--build-env builds it" in judged(packages)["environment"]


def test_compiling_writes_nothing_and_says_all_that_is_submitted(home: Path, work: Path) -> None:
    Path("src").mkdir()
    job = command(command="true", code="src", instance_count=2)
    spec = MLClient().jobs.compile(job, name="one").spec
    assert spec == {
        "compute": "local",
        "type": "local",
        "nodes": 2,
        "working_dir": str(home / "runs/one/code"),
        "python": sys.executable,
        "in_place": False,
        "code": str(work / "src"),
        "build_env": None,
    }
    in_place = MLClient().jobs.compile(job, name="one", in_place=True).spec
    assert (in_place["working_dir"], in_place["code"]) == (os.path.abspath("src"), None)
    assert list(home.iterdir()) == []


def test_another_system_than_linux_is_told_once_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    (text,) = judged(command(command="true")).values()
    assert text.startswith("warning: this system has no subreaper")

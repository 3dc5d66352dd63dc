"""Jobs made in Python with azure-ai-ml, and what cannot be carried; `test_differential` has the job files."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import jobsdk
from jobsdk import CommandJob, JobsdkError, ValidationError, from_azure, to_azure
from jobsdk.installation import install_command
from tests.azureml import comparing
from tests.azureml.captured import WORKSPACE, Captured


def _fields(folder: Path) -> dict[str, Any]:
    from azure.ai import ml
    from azure.ai.ml import entities

    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "train.py").write_text("")
    (folder / "conda.yml").write_text("dependencies: [python]\n")
    return {
        "name": "n",
        "display_name": "d",
        "description": "what",
        "tags": {"a": "b"},
        "properties": {"c": "d"},
        "command": "python train.py ${{inputs.x}} ${{inputs.d}} ${{outputs.o}}",
        "code": str(folder / "src"),
        "environment": entities.Environment(name="named", version="2", image="i", conda_file=folder / "conda.yml"),
        "environment_variables": {"E": "1"},
        "inputs": {"x": 3, "d": ml.Input(type="uri_folder", path="https://host.example/d", mode="mount")},
        "outputs": {"o": ml.Output(type="mltable", mode="upload", path_on_compute="/x", description="an output")},
        "compute": "c",
        "distribution": ml.PyTorchDistribution(process_count_per_instance=2),
        "identity": ml.ManagedIdentityConfiguration(client_id="i", resource_id="r"),
        "services": {"s": entities.SshJobService(ssh_public_keys="k"), "t": entities.VsCodeJobService(nodes="all")},
        "parent_job_name": "p",
        "experiment_name": "e",
    }


def _command(folder: Path) -> Any:
    from azure.ai import ml

    return ml.command(**_fields(folder), instance_count=2, shm_size="2g", timeout=60, job_tier="Spot", priority="low")


def _command_job(folder: Path) -> Any:
    from azure.ai.ml import entities

    return entities.CommandJob(
        **_fields(folder),
        resources=entities.JobResourceConfiguration(instance_count=2, docker_args=["a"]),
        limits=entities.CommandJobLimits(timeout=60),
        queue_settings=entities.QueueSettings(job_tier="Spot"),
    )


def test_a_job_made_in_python_is_the_same_after_there_and_back(captured: Captured, away: Path) -> None:
    command = _command(away)
    before = copy.deepcopy(command._to_job()._to_dict())
    job = from_azure(command)
    job.validate()
    assert (job.compute, job.resources.instance_count, job.inputs["d"].mode) == ("c", 2, "ro_mount")
    assert job.environment.conda_file == str(away / "conda.yml")
    assert command._to_job()._to_dict() == before
    sent = captured.sent(to_azure(job))
    assert comparing.theirs(sent, job) == comparing.ours(job)
    assert comparing.theirs(sent, job) == comparing.theirs(captured.sent(command), job)
    environment = captured.service.puts[f"{WORKSPACE.id}/environments/named/versions/2"]
    assert environment["properties"]["image"] == "i"


@pytest.mark.framework("azure")
def test_a_plain_command_job_too(away: Path) -> None:
    given = _command_job(away)
    job = from_azure(given)
    job.validate()
    again = to_azure(job)._to_job()
    theirs = given._to_rest_object().as_dict()["properties"]
    mine = again._to_rest_object().as_dict()["properties"]
    assert {name: value for name, value in mine.items() if name != "environmentId"} == {
        name: value for name, value in theirs.items() if name != "environmentId"
    }
    assert again.environment == given.environment


def test_a_job_that_was_sent_can_be_taken_over(captured: Captured, away: Path) -> None:
    command = _command(away)
    captured.sent(command)  # makes ids of all that was local
    job = from_azure(command)
    assert job.code is not None
    assert job.code.startswith("azureml:/subscriptions/")
    body = comparing.ours(job)
    assert body["properties"]["codeId"].startswith(WORKSPACE.id)
    assert body["properties"]["environmentId"] == f"{WORKSPACE.id}/environments/named/versions/2"


def test_the_job_of_the_caller_stays_as_it_is(captured: Captured, away: Path) -> None:
    job = from_azure(_command(away))
    before = job.to_dict()
    command = to_azure(job)
    captured.sent(command)
    command.environment_variables["F"] = "2"
    command.tags["x"] = "y"
    assert job.to_dict() == before


def test_fields_of_jobsdk_s_own_are_one_property(captured: Captured, away: Path) -> None:
    (away / "requirements.txt").write_text("numpy\n")
    job = jobsdk.command(
        command="nvidia-smi",
        environment=jobsdk.Environment(image="i", requirements="requirements.txt"),
        properties={"mine": "1"},
        max_restarts=3,
        hang_timeout="5m",
        gpus_per_process=1,
        distribution={"type": "mpi", "launcher": "direct", "added_property": 7},
    )
    properties = captured.sent(to_azure(job))["properties"]["properties"]
    assert properties["mine"] == "1"
    assert json.loads(properties["jobsdk"]) == {
        "max_restarts": 3,
        "limits": {"hang_timeout": 300.0},
        "resources": {"gpus_per_process": 1},
        "environment": {"requirements": str(away / "requirements.txt")},
        "distribution": {"launcher": "direct", "added_property": 7},
    }
    back = from_azure(to_azure(job))
    assert comparing.normal(back) == comparing.normal(job)
    assert back.properties == {"mine": "1"}


@pytest.mark.framework("azure")
def test_what_cannot_be_carried_is_said(away: Path) -> None:
    from azure.ai import ml
    from azure.ai.ml import entities

    deepspeed = jobsdk.command(command="x", environment="a:1", distribution=jobsdk.DeepSpeedDistribution())
    with pytest.raises(JobsdkError, match=r"Azure ML has none of the type deepspeed\. Fix: submit the job with jobsdk"):
        to_azure(deepspeed)
    with pytest.raises(JobsdkError, match="environment: is missing"):
        to_azure(jobsdk.command(command="x"))
    lost = ml.command(command="x", environment="a:1", services={"lab": {"type": "jupyter_lab"}})
    with pytest.raises(JobsdkError, match=r"services\.lab: has lost its type"):
        from_azure(lost)
    with pytest.raises(JobsdkError, match="dict is no command job of azure-ai-ml"):
        from_azure({"command": "x"})
    with pytest.raises(JobsdkError, match="a job of jobsdk already"):
        from_azure(deepspeed)
    with pytest.raises(JobsdkError, match="SparkJob is no command job"):
        from_azure(
            entities.SparkJob(
                driver_cores=1, driver_memory="1g", executor_cores=1, executor_memory="1g", entry={"file": "a.py"},
                executor_instances=1,
            )
        )  # fmt: skip
    changed = ml.command(command="x", environment="a:1", properties={"jobsdk": "{"})
    with pytest.raises(JobsdkError, match=r"properties\.jobsdk: is not what jobsdk writes there"):
        from_azure(changed)


@pytest.mark.framework("azure")
def test_what_azure_ai_ml_lets_pass_is_found(away: Path) -> None:
    from azure.ai import ml

    wrong = ml.command(command="x", environment="a:1", instance_count=0, distribution=ml.PyTorchDistribution())
    with pytest.raises(ValidationError, match=r"resources\.instance_count: must be at least 1"):
        from_azure(wrong)


def test_without_azure_ai_ml_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.ai", None)
    with pytest.raises(JobsdkError, match=re.escape(f"Fix: {install_command('azure')}")):
        to_azure(CommandJob(command="x", environment="a:1"))


def test_a_name_keeps_its_capital_letters(captured: Captured, away: Path) -> None:
    job = jobsdk.command(command="x", environment="a:1", name="Name_1")
    captured.sent(to_azure(job))
    assert f"{WORKSPACE.id}/jobs/Name_1" in captured.service.puts

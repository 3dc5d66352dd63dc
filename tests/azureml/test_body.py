"""The body of a job, where it is not azure-ai-ml's: `test_differential` compares the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk import (
    CommandJob,
    Environment,
    Input,
    JobsdkError,
    MLClient,
    UserIdentityConfiguration,
    ValidationError,
    command,
    from_azure,
    load_job,
    to_azure,
)
from jobsdk.compute.azureml import body, hashes
from jobsdk.compute.azureml.compute import AzureMlCompute
from jobsdk.compute.azureml.git import git_properties
from jobsdk.job.expressions import current, problems
from tests.azureml import strategies
from tests.azureml.captured import WORKSPACE, Captured


def _job(**fields: Any) -> CommandJob:
    return command(**{"command": "nvidia-smi", "environment": "azureml:mine:1", **fields})


def _body(job: CommandJob, target: str | None = "gpu-cluster") -> dict[str, Any]:
    properties: dict[str, Any] = body.rest_body(job, WORKSPACE, target=target)["properties"]
    return properties


def test_nothing_of_azure_is_imported() -> None:
    program = (
        "import sys; from jobsdk import MLClient, command; from jobsdk.compute.azureml.body import rest_body\n"
        "from jobsdk.compute.azureml.workspace import Workspace\n"
        "job = command(command='x', environment='a:1', code='.', services={'s': {'type': 'ssh'}})\n"
        "rest_body(job, Workspace('s', 'g', 'w'), target='c')\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] in ('azure', 'marshmallow', 'requests')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_target_is_the_compute() -> None:
    assert _body(_job(compute="entry"), "c")["computeId"] == f"{WORKSPACE.id}/computes/c"
    assert "computeId" not in _body(_job(compute="entry"), None)


_PIECES = ["{inputs.x}", "${inputs.x }", "{outputs.", "{", "}", "$", " ", "{search_space.a}", "${{inputs.y}}"]


@given(st.lists(st.sampled_from(_PIECES), max_size=8).map("".join))
def test_the_older_form_of_references_becomes_what_azure_ai_ml_sends(text: str) -> None:
    from azure.ai.ml._utils.utils import map_single_brackets_and_warn

    errors = [problem for problem in problems(text) if problem.severity == "error"]
    assert errors or current(text) == map_single_brackets_and_warn(text)


def test_variables_are_text() -> None:
    given = _body(_job(environment_variables={"A": 1, "B": True, "C": 1.5}))["environmentVariables"]
    assert given == {"A": "1", "B": "True", "C": "1.5"}


def test_secrets_are_not_shown() -> None:
    job = _job(environment_variables={"PLAIN": "a", "WORD": "swordfish", "HF_TOKEN": "hf_123456789"}, secrets=["WORD"])
    shown = str(_body(job))
    assert "swordfish" not in shown
    assert "hf_123456789" not in shown
    assert job.environment_variables["WORD"] == "swordfish"


def test_an_environment_with_name_and_version_is_that_one() -> None:
    job = _job(environment=Environment(name="n", version="3", image="ubuntu"))
    assert _body(job)["environmentId"] == f"{WORKSPACE.id}/environments/n/versions/3"


def test_what_has_no_name_before_its_upload_has_a_placeholder() -> None:
    job = _job(code=".", environment=Environment(image="ubuntu", inference_config={"liveness_route": {}}))
    assert _body(job)["codeId"] == "azureml:code-of-this-job"
    assert _body(job)["environmentId"] == "azureml:environment-of-this-job"


def test_a_managed_identity_by_its_resource() -> None:
    given = _body(_job(identity={"type": "managed", "msi_resource_id": "r"}))["identity"]
    assert given == {"resourceId": "r", "identityType": "Managed"}
    assert _body(_job(identity=UserIdentityConfiguration()))["identity"] == {"identityType": "UserIdentity"}


def test_an_input_that_is_not_given_is_left_out() -> None:
    job = _job(inputs={"left": Input(type="uri_file", optional=True), "count": Input(type="integer", default=3)})
    assert _body(job)["inputs"] == {"count": {"value": "3", "jobInputType": "literal"}}


def test_a_file_by_its_prefix_is_a_file(tmp_path: Path) -> None:
    strategies.lay_out(tmp_path)
    job = _job(inputs={"a": Input(type="uri_file", path="file:file.csv"), "b": Input(type="uri_file", path="file.csv")})
    job.base_path = tmp_path
    given = _body(job)["inputs"]
    assert given["a"] == given["b"]
    assert given["a"]["uri"].endswith("/file.csv")


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (None, "environment: is missing"),
        (Environment(conda_file={"dependencies": ["x"]}), "names no image"),
        (Environment(image="a", build={"path": "."}), "has both"),
        (Environment(image="a", conda_file="nowhere.yml"), r"nowhere\.yml cannot be read"),
        (Environment(build={"path": "nowhere"}), "nowhere: cannot be read"),
    ],
)
def test_an_environment_that_no_image_can_be_made_of(environment: Any, says: str) -> None:
    with pytest.raises(JobsdkError, match=says):
        _body(_job(environment=environment))


@pytest.mark.framework("azure")
@pytest.mark.parametrize("name", ["data", "model", "file.csv", "context", "."])
def test_the_hash_of_content_is_azure_ai_ml_s(name: str, tmp_path: Path) -> None:
    from azure.ai.ml._utils._asset_utils import get_ignore_file, get_object_hash

    strategies.lay_out(tmp_path)
    (tmp_path / "data" / "link").symlink_to(tmp_path / "model")
    (tmp_path / "data" / "B.csv").write_bytes(b"\0" * 3000)
    path = tmp_path / name
    assert hashes.content(path) == get_object_hash(path, get_ignore_file(path))


def test_a_folder_in_itself_is_said(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to(tmp_path)
    with pytest.raises(JobsdkError, match="is a link to a folder that it is in"):
        hashes.content(tmp_path)


@pytest.mark.parametrize(
    ("seconds", "written"), [(1, "PT1S"), (3600, "PT1H"), (5400, "PT1H30M"), (86400, "P1D"), (100000, "P1DT3H46M40S")]
)
def test_durations(seconds: int, written: str) -> None:
    assert body.duration(seconds) == written


def _git(folder: Path, *args: str) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *author, *args], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def test_git_is_asked_about_the_code_s_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("GIT_", "AZUREML_GIT_"))]:
        monkeypatch.delenv(name)
    code = tmp_path / "repository" / "src"
    code.mkdir(parents=True)
    (code / "train.py").write_text("")
    assert git_properties(code) == {}

    _git(code.parent, "init", "-b", "trunk")
    _git(code.parent, "remote", "add", "origin", "https://me:word@host.example/r.git")
    _git(code.parent, "add", ".")
    _git(code.parent, "commit", "-m", "first")
    found = git_properties(code / "train.py")
    assert found["mlflow.source.git.repoURL"] == "https://host.example/r.git"
    assert found["mlflow.source.git.branch"] == "trunk"
    assert len(found["mlflow.source.git.commit"]) == 40
    assert found["azureml.git.dirty"] == "False"

    (code / "train.py").write_text("changed")
    assert git_properties(code)["azureml.git.dirty"] == "True"
    monkeypatch.setenv("AZUREML_GIT_BRANCH", "built")
    assert git_properties(code)["mlflow.source.git.branch"] == "built"


@pytest.mark.parametrize(
    "code", ["git+https://github.com/a/b", "git+ssh://git@host/a", "azureml://registries/r/codes/c/versions/1"]
)
def test_code_that_azure_ai_ml_refuses_is_refused_before(code: str, captured: Captured, away: Path) -> None:
    from azure.ai.ml import load_job as load_theirs

    (away / "job.yml").write_text(f"command: x\ncode: {code}\nenvironment: azureml:e:1\n")
    with pytest.raises(Exception, match=r"Git paths are not supported|Format not supported for code asset"):
        captured.sent(load_theirs(away / "job.yml"))
    job = load_job(away / "job.yml")
    with pytest.raises(
        ValidationError, match=r"code: Azure ML takes no code from a (git repository|registry)\. Fix: give"
    ):
        MLClient().jobs.compile(job, compute=AzureMlCompute("c", WORKSPACE._asdict()))


@pytest.mark.parametrize(("timeout", "sent", "kept"), [(30.5, "PT30S", 30), ("1h", "PT1H", 3600), (0.5, "PT1S", 1)])
def test_a_timeout_is_whole_seconds_there(timeout: Any, sent: str, kept: int) -> None:
    job = _job(timeout=timeout)
    assert _body(job)["limits"] == {"timeout": sent, "jobLimitsType": "Command"}
    assert to_azure(job)._to_job()._to_rest_object().as_dict()["properties"]["limits"]["timeout"] == sent
    assert "jobsdk" not in _body(job)["properties"]
    back = from_azure(to_azure(job)).limits
    assert back is not None
    assert back.timeout == kept

"""What goes wrong on the way to Azure ML: one line that says it, nothing left behind, no secret told."""

from __future__ import annotations

import logging
import shutil
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from jobsdk import CommandJob, ComputeError, Input, MLClient, RunExists, command
from jobsdk.compute.azureml import bringing, submission
from jobsdk.compute.azureml.compute import AzureMlCompute
from jobsdk.compute.azureml.connection import connect
from jobsdk.compute.azureml.failures import AzureError
from jobsdk.compute.azureml.workspace import Workspace
from jobsdk.compute.base import Wanted
from jobsdk.emulator.process import Running
from jobsdk.home import runs_folder
from tests.emulator import emulated

EXPERIMENT = f"failures-{uuid.uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries wait as often as they do, but not as long."""
    pause = time.sleep
    from azure.core.pipeline.transport import HttpTransport

    monkeypatch.setattr(HttpTransport, "sleep", lambda self, seconds: pause(min(seconds, 0.05)))


@pytest.fixture
def job() -> CommandJob:
    """A job whose code, data and environment were never there before."""
    mark = uuid.uuid4().hex
    Path("src").mkdir()
    Path("src/train.py").write_text(f"print('{mark}')")
    Path("data.csv").write_text(mark)
    return command(
        code="src",
        command="python train.py ${{inputs.data}}",
        inputs={"data": Input(type="uri_file", path="data.csv")},
        environment={"image": "ubuntu"},
        compute="gpu-cluster",
        experiment_name=EXPERIMENT,
    )


def refused(client: MLClient, the_job: CommandJob) -> str:
    """The message with which a submission fails, after which nothing is there, here or in the workspace."""
    with pytest.raises(ComputeError) as caught:
        client.jobs.create_or_update(the_job)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) <= 460, text
    assert ". Fix: " in text
    assert "sig=" not in text
    assert not list(runs_folder().iterdir()) if runs_folder().exists() else True
    return text


def names_there(azure: Running) -> set[str]:
    """The jobs of these tests that the workspace has."""
    connection = connect(Workspace(*emulated.names(azure)))
    jobs = bringing.found(connection, Wanted(experiment=EXPERIMENT), target=None)
    return {one["name"] for one in jobs}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"status": 403}, ["403", "AzureML Data Scientist"]),
        (
            {"status": 403, "code": "AuthorizationFailed", "message": "The client 'x' with object id 'y' does not have "
             "authorization to perform action 'Microsoft.MachineLearningServices/workspaces/jobs/write' over scope "
             "'/subscriptions/1/resourceGroups/rg/providers/Microsoft.MachineLearningServices/workspaces/ws/jobs/j' or "
             "the scope is invalid."},
            ["lacks the right workspaces/jobs/write on the workspace ws, the job j"],
        ),
        ({"status": 429, "retry_after": 1, "times": 50}, ["429", "wait for 1 seconds"]),
        ({"status": 500, "times": 50}, ["500", "try again later"]),
        ({"status": 400, "code": "QuotaExceeded", "message": "The cores are used up."}, ["quota", "The cores are"]),
        ({"status": 401, "times": 9}, ["login (401)", "az login"]),
        ({"status": 404, "message": "Compute target gpu-cluster not found."}, ["no such compute"]),
    ],
)  # fmt: skip
def test_a_refused_job(
    fault: dict[str, Any], words: list[str], azure: Running, client: MLClient, job: CommandJob
) -> None:
    before = names_there(azure)
    azure.add_fault(**{"method": "PUT", "path": "/jobs/", **fault})
    text = refused(client, job)
    assert all(word in text for word in words), text
    azure.clear_faults()
    assert names_there(azure) == before


@pytest.mark.parametrize("path", ["/codes/", "/environments/", "/listSecrets"])
def test_a_failure_before_the_job_is_sent(path: str, azure: Running, client: MLClient, job: CommandJob) -> None:
    azure.add_fault(path=path, status=500, times=50)
    before = names_there(azure)
    azure.forget_requests()
    text = refused(client, job) if path != "/listSecrets" else ""
    if path == "/listSecrets":  # the login itself is tried then, as azure-ai-ml does, which Azurite does not know
        with pytest.raises(ComputeError):
            client.jobs.create_or_update(job)
    else:
        assert "500" in text
    assert not [line for line in emulated.management(azure) if line.startswith("PUT") and "/jobs/" in line]
    azure.clear_faults()
    assert names_there(azure) == before


def test_a_request_that_comes_too_early_is_made_again(azure: Running, client: MLClient, job: CommandJob) -> None:
    azure.add_fault(method="PUT", path="/jobs/", status=429, retry_after=1)
    run = client.jobs.create_or_update(job)
    sent = [line for line in emulated.management(azure) if line.startswith("PUT") and "/jobs/" in line]
    assert len(sent) == 2
    client.jobs.cancel(run)


def test_a_wrong_secret_and_no_login_at_all(
    azure: Running,
    client: MLClient,
    job: CommandJob,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "guessed-secret")
    text = refused(client, job)
    with pytest.raises(AzureError, match="the client secret is wrong"):
        client.jobs.get("unknown")
    said = [record for record in caplog.records if record.name.startswith("azure.identity")]
    assert [record for record in said if record.levelno >= logging.WARNING] == []  # it is told once, in one line
    assert "the client secret is wrong (AADSTS7000215)" in text
    assert "guessed-secret" not in text
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "")  # as a CI's that is not set
    assert "the variables AZURE_* are no login" in refused(client, job)
    for name in ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_ID", "AZURE_TENANT_ID"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    assert "no credentials for Azure are found" in refused(client, job)


def test_a_workspace_that_is_not_there(azure: Running, job: CommandJob) -> None:
    subscription, group, _ = emulated.names(azure)
    text = refused(MLClient(None, subscription, group, "mistyped"), job)
    assert "mistyped" in text
    assert "404" in text


def test_a_proxy_that_is_not_there(
    azure: Running, client: MLClient, job: CommandJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert "look at HTTPS_PROXY" in refused(client, job)


def test_a_certificate_that_nobody_trusts(
    azure: Running, client: MLClient, job: CommandJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    monkeypatch.setenv("AZURE_FRESH", "1")  # another credential, so that none has a token yet
    assert "REQUESTS_CA_BUNDLE" in refused(client, job)


def test_a_connection_that_is_dropped_in_mid_upload(azure: Running, client: MLClient, job: CommandJob) -> None:
    Path("src/large.bin").write_bytes(uuid.uuid4().bytes * 20000)
    before = names_there(azure)
    azure.add_fault(path="blob", drop_after=100_000, times=100)
    text = refused(client, job)
    assert "the connection was lost" in text or "cannot be reached" in text
    azure.clear_faults()
    assert names_there(azure) == before
    azure.add_fault(path="blob", drop_after=100_000, times=1)
    run = client.jobs.create_or_update(job).wait(200)
    assert run.status == "Completed", run.report


def test_a_signature_that_has_expired(azure: Running, client: MLClient, job: CommandJob) -> None:
    azure.add_fault(expired_sas=True, times=20)
    assert "not valid any more" in refused(client, job)
    azure.clear_faults()
    azure.add_fault(expired_sas=True, times=1)
    assert client.jobs.create_or_update(job).wait(200).status == "Completed"


def test_an_answer_that_is_lost_makes_no_second_job(
    azure: Running, client: MLClient, job: CommandJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    from azure.core.exceptions import ServiceResponseError
    from azure.core.pipeline.transport import RequestsTransport

    before, send = names_there(azure), RequestsTransport.send

    def losing(self: Any, request: Any, **options: Any) -> Any:
        answer = send(self, request, **options)
        if request.method == "PUT" and "/jobs/" in request.url:
            raise ServiceResponseError("Connection aborted.")
        return answer

    monkeypatch.setattr(RequestsTransport, "send", losing)
    run = client.jobs.create_or_update(job)
    assert names_there(azure) - before == {run.name}
    assert run.wait(200).status == "Completed"


def test_a_name_stands_for_one_submission(azure: Running, client: MLClient, job: CommandJob) -> None:
    name = f"once-{uuid.uuid4().hex[:8]}"
    first = client.jobs.create_or_update(job, name=name)
    assert client.jobs.create_or_update(job, name=name) == first
    shutil.rmtree(first.folder.path)  # as after a submission that broke off here
    again = client.jobs.create_or_update(job, name=name)
    assert again.wait(200).status == "Completed"
    shutil.rmtree(first.folder.path)
    job.command = "python train.py"
    job.inputs = {}
    with pytest.raises(RunExists, match=f"has another job named '{name}'. Fix: "):
        client.jobs.create_or_update(job, name=name)


def test_what_was_remembered_and_is_gone_is_sent_again(azure: Running, client: MLClient, job: CommandJob) -> None:
    client.jobs.create_or_update(job).wait(200)
    azure.forget_requests()
    azure.add_fault(method="PUT", path="/jobs/", status=404, message="Code 1 not found.")
    run = client.jobs.create_or_update(job)
    sent = [line for line in emulated.management(azure) if line.startswith("PUT")]
    assert len(sent) == 3, sent  # the job, the environment, the job
    assert run.wait(200).status == "Completed"


def test_a_job_that_was_sent_when_its_submission_was_interrupted_is_ended(
    azure: Running, client: MLClient, job: CommandJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = connect(Workspace(*emulated.names(azure))).ml_client().jobs
    send = theirs.create_or_update

    def interrupted(sent: Any) -> None:
        send(sent)
        raise KeyboardInterrupt

    monkeypatch.setattr(theirs, "create_or_update", interrupted)
    job.command, job.name = "sleep 600", f"interrupted-{uuid.uuid4().hex[:8]}"
    with pytest.raises(KeyboardInterrupt):
        client.jobs.create_or_update(job)
    assert not list(runs_folder().iterdir())
    there = client.jobs.get(job.name)  # as somebody else would find it
    assert there.wait(200).status == "Canceled"


def test_a_target_that_no_compute_can_have() -> None:
    with pytest.raises(ComputeError, match=r"target must be a compute's name.*'gpu cluster!'"):
        AzureMlCompute("cluster", {"target": "gpu cluster!"})


def test_an_interrupted_upload_ends_at_once(tmp_path: Path) -> None:
    folder, before = tmp_path / "code", signal.getsignal(signal.SIGINT)
    folder.mkdir()
    with pytest.raises(KeyboardInterrupt), submission._interrupted_at_once(str(folder)):
        signal.raise_signal(signal.SIGINT)
    assert not folder.exists()  # azure-ai-ml finds no further file that it could upload
    assert signal.getsignal(signal.SIGINT) is before

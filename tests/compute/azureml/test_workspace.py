"""Runs of a workspace that were submitted elsewhere; lists, tags and archives; what a connection is checked for."""

from __future__ import annotations

import io
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from jobsdk import JobFailed, MLClient, RunNotFound, command
from jobsdk.compute import type_of
from jobsdk.compute.azureml.compute import of_workspace
from jobsdk.compute.azureml.connection import connect
from jobsdk.compute.azureml.workspace import Workspace
from jobsdk.emulator.process import Running
from tests.emulator import emulated

IMAGE = {"image": "ubuntu"}


def theirs(azure: Running, text: str, **fields: Any) -> str:
    """A job that azure-ai-ml itself submits; its name."""
    from azure.ai.ml import MLClient as TheirClient
    from azure.ai.ml import command as their_command
    from azure.ai.ml.entities import Environment
    from azure.identity import DefaultAzureCredential

    client = TheirClient(DefaultAzureCredential(), *emulated.names(azure))
    job = their_command(command=text, environment=Environment(image="ubuntu"), compute="gpu-cluster", **fields)
    return str(client.jobs.create_or_update(job).name)


def test_a_run_that_was_submitted_elsewhere(azure: Running, client: MLClient, tmp_path: Path) -> None:
    from azure.ai.ml import Output, PyTorchDistribution

    name = theirs(
        azure,
        "echo hello from $RANK && echo $RANK > ${{outputs.model}}/$RANK.txt",
        outputs={"model": Output()},
        instance_count=2,
        distribution=PyTorchDistribution(process_count_per_instance=2),
        tags={"team": "vision"},
    )
    run = client.jobs.get(name)
    out = io.BytesIO()
    run.stream(out=out)
    assert sorted(out.getvalue().decode().splitlines()) == [f"[rank {n}] hello from {n}" for n in range(4)]
    assert (run.status, run.compute, run.nodes, run.processes) == ("Completed", "gpu-cluster", 2, 4)
    assert run.tags == {"team": "vision"}
    assert str(run.studio_url).startswith("https://ml.azure.com/runs/")
    client.jobs.download(name, download_path=tmp_path, output_name="model")
    assert (tmp_path / "named-outputs/model/3.txt").read_text() == "3\n"
    with pytest.raises(RunNotFound, match="no such job in the workspace"):
        client.jobs.get("mistyped_name")


def test_a_run_with_our_bootstrap_is_followed_from_another_machine(
    azure: Running, client: MLClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = command(
        command='test "$RANK" != 2 || { echo ValueError: broken >&2; exit 7; }; exec sleep 600',
        environment=IMAGE,
        compute="gpu-cluster",
        instance_count=2,
        distribution={"type": "pytorch", "process_count_per_instance": 2},
        resources={"instance_count": 2, "properties": {"azureml": {"launcher": "bootstrap"}}},
    )
    name = client.jobs.create_or_update(job).name
    monkeypatch.setenv("JOBSDK_HOME", str(tmp_path / "other"))
    run = client.jobs.get(name).wait(200)
    with pytest.raises(JobFailed, match="rank 2"):
        run.result()
    assert run.exit_code == 7


def test_lists_tags_and_archives(azure: Running, client: MLClient) -> None:
    experiment = f"listed-{uuid.uuid4().hex[:8]}"
    mine = client.jobs.create_or_update(
        command(command="true", environment=IMAGE, compute="gpu-cluster", experiment_name=experiment, tags={"a": "1"})
    )
    other = theirs(azure, "false", experiment_name=experiment, tags={"a": "2"})
    client.jobs.wait(mine, 200)
    client.jobs.wait(other, 200)

    def names(**wanted: Any) -> set[str]:
        return {run.name for run in client.jobs.list(experiment=experiment, **wanted)}

    assert names() == {mine.name, other}
    assert names(status="failed") == {other}
    assert names(tag="a=1") == {mine.name}
    assert names(compute="gpu-cluster") == {mine.name, other}
    assert names(compute="another") == set()
    client.jobs.archive(other)
    assert names() == {mine.name}
    assert names(list_view_type="ArchivedOnly") == {other}
    client.jobs.restore(other)
    assert names() == {mine.name, other}
    run = client.jobs.get(other)
    run.tags["b"] = "3"
    run.display_name = "nicer"
    client.create_or_update(run)
    there = connect(Workspace(*emulated.names(azure))).job(other)["properties"]
    assert (there["tags"], there["displayName"]) == ({"a": "2", "b": "3"}, "nicer")


def test_a_list_of_a_workspace_that_cannot_be_asked_shows_what_is_known(
    azure: Running, client: MLClient, caplog: pytest.LogCaptureFixture
) -> None:
    run = client.jobs.create_or_update(command(command="true", environment=IMAGE, compute="gpu-cluster")).wait(200)
    azure.add_fault(path="/jobs$|/jobs\\?", status=403, times=1)
    assert run in client.jobs.list()
    azure.clear_faults()
    assert "403" in caplog.text


def test_a_run_whose_submitter_was_killed_is_found_out_about(client: MLClient) -> None:
    run = client.jobs.create_or_update(command(command="true", environment=IMAGE, compute="gpu-cluster"))
    place = run.folder.read_json("azureml.json")
    run.folder.write_json("azureml.json", {"launcher": "native", "key": place["key"], "submitting": True})
    run.target.refresh(run.folder)  # its submitter, this process, lives
    assert not (run.folder.path / "azureml-state.json").exists()
    run.folder.update_facts({"submitter_pid": 2**22 + 1, "submitter_start": 1})
    assert run.wait(200).status == "Completed"
    assert str(run.studio_url).startswith("https://")


def test_checks(azure: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    subscription, group, workspace = emulated.names(azure)
    compute = of_workspace(Workspace(subscription, group, workspace), "gpu-cluster")
    assert [one.is_well for one in compute.check()] == [True] * 4
    missing = of_workspace(Workspace(subscription, group, "mistyped"), "gpu-cluster").check()
    assert [one.is_well for one in missing] == [True, False]
    assert "404" in missing[-1].found
    azure.add_fault(path="/datastores/", status=404, times=1)
    (bad,) = [one for one in compute.check() if not one.is_well]
    assert bad.what == "datastore workspaceblobstore"
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "wrong")
    (login,) = compute.check()
    assert "client secret is wrong" in login.found
    assert "AZURE_CLIENT_SECRET" in login.fix


def test_no_more_requests_than_azure_ai_ml_and_no_slower(azure: Running, client: MLClient, tmp_path: Path) -> None:
    """The requests of a submission of new code and data, and of one with nothing new."""
    from azure.ai.ml import Input as TheirInput

    from jobsdk import Input

    def counted(text: str, submit: Any) -> int:
        folder = tmp_path / uuid.uuid4().hex
        (folder / "src").mkdir(parents=True)
        (folder / "src/train.py").write_text(text)
        (folder / "data.csv").write_text(text)
        azure.forget_requests()
        name = submit(folder)
        deadline = time.monotonic() + 60
        while not any(name in one["path"] for one in azure.requests()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return len([line for line in emulated.management(azure) if line.partition(" ")[0] != "CONNECT"])

    def by_theirs(folder: Path) -> str:
        data = TheirInput(type="uri_file", path=str(folder / "data.csv"))
        return theirs(azure, "python train.py ${{inputs.data}}", code=str(folder / "src"), inputs={"data": data})

    def by_ours(folder: Path) -> str:
        data = Input(type="uri_file", path=str(folder / "data.csv"))
        job = command(
            command="python train.py ${{inputs.data}}",
            code=folder / "src",
            inputs={"data": data},
            environment=IMAGE,
            compute="gpu-cluster",
        )
        return client.jobs.create_or_update(job).name

    one, other = f"print('{uuid.uuid4()}')", f"print('{uuid.uuid4()}')"
    first, again = counted(one, by_theirs), counted(one, by_theirs)
    our_first, our_again = counted(other, by_ours), counted(other, by_ours)
    assert our_first <= first
    assert our_again < again
    assert our_again == 1


def test_the_type_is_known() -> None:
    assert type_of("azureml").type == "azureml"

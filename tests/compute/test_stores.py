"""Inputs and outputs in object stores, with real servers on loopback."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk import Input, MLClient, Output, PyTorchDistribution, command
from jobsdk.client.run import Run
from jobsdk.errors import ValidationError
from jobsdk.job.command import CommandJob
from tests import engines, stores
from tests.bootstrap.runs import wait_for
from tests.stores import S3, Azure

jobs = MLClient().jobs


def run_of(text: str, **given: Any) -> Run:
    run = jobs.create_or_update(command(command=text, **given))
    run.wait(200)
    return run


def output(run: Run) -> str:
    return "".join(path.read_text() for path in sorted(run.folder.path.glob("logs/node-*/rank-*.log")))


def failure(run: Run) -> str:
    assert run.status == "Failed", output(run)
    return str(run.folder.report()["cause"]["message"])


def test_a_file_and_a_folder_are_fetched_once_for_all_ranks(s3: S3) -> None:
    s3.put("data/train/a.txt", b"alpha")
    s3.put("data/train/deep/b.txt", b"beta")
    run = run_of(
        "cat ${{inputs.one}} && find ${{inputs.all}} -type f | sort | xargs cat",
        inputs={
            "one": Input(type="uri_file", path=s3.put("data/one.csv", b"single ")),
            "all": Input(path=f"s3://{s3.bucket}/data/train"),
        },
        distribution=PyTorchDistribution(process_count_per_instance=2),
        instance_count=2,
    )
    assert output(run) == "single alphabeta" * 4
    staged = [event for event in run.folder.events() if event["event"] == "input_staged"]
    assert [(event["name"], event["files"], event["bytes"]) for event in staged] == [("one", 1, 7), ("all", 2, 9)]
    assert all(event["seconds"] > 0 for event in staged)
    assert (run.folder.path / "inputs/one/one.csv").read_bytes() == b"single "


def test_with_direct_the_command_gets_the_url_itself(s3: S3) -> None:
    given = Input(type="uri_file", path=f"s3://{s3.bucket}/none.csv", mode="direct")
    assert output(run_of("echo ${{inputs.one}}", inputs={"one": given})) == f"s3://{s3.bucket}/none.csv\n"


def test_a_url_that_a_shell_would_split_is_not_passed_on() -> None:
    job = command(command="echo ${{inputs.x}}", inputs={"x": Input(path="s3://b/a b", mode="direct")})
    with pytest.raises(ValidationError, match=r"inputs\.x\.path.*characters that a shell would interpret"):
        jobs.compile(job, name="run")


def missing_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python whose fsspec finds no s3fs."""
    (folder / "hidden").mkdir()
    (folder / "hidden/s3fs.py").write_text("raise ModuleNotFoundError(\"No module named 's3fs'\", name='s3fs')")
    monkeypatch.setenv("PYTHONPATH", str(folder / "hidden"))


def of(path: str, kind: str = "uri_file") -> CommandJob:
    return command(command="cat ${{inputs.data}}", inputs={"data": Input(type=kind, path=path)})


def failed(job: CommandJob) -> str:
    run = jobs.create_or_update(job)
    run.wait(200)
    return failure(run)


def test_a_missing_package_is_named_with_what_to_install(s3: S3, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing_package(work, monkeypatch)
    said = failed(of(s3.put("x.csv", b"x")))
    assert f"input data: {Path(sys.executable).parent}/python has no s3fs, which s3://{s3.bucket}/x.csv needs" in said
    assert "Fix: pip install fsspec s3fs in the job's image or environment" in said


def test_an_object_that_is_not_there_is_named(s3: S3) -> None:
    said = failed(of(f"s3://{s3.bucket}/no.csv"))
    assert said.endswith(f"input data: there is no s3://{s3.bucket}/no.csv. Fix: correct the URL; case matters")


def test_missing_credentials_are_named(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    url = s3.put("x.csv", b"x")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    said = failed(of(url))
    assert f"input data: no access to {url}: " in said
    assert "Fix: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY as secrets of the job" in said


def test_a_folder_is_no_file(s3: S3) -> None:
    s3.put("train/a.txt", b"a")
    said = failed(of(f"s3://{s3.bucket}/train"))
    assert f"s3://{s3.bucket}/train is a folder. Fix: write type: uri_folder, or name a file in it" in said


def test_credentials_reach_the_node_and_are_written_nowhere(
    s3: S3, work: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    run = run_of(
        "cat ${{inputs.data}}",
        inputs={"data": Input(type="uri_file", path=s3.put("x.csv", b"found"))},
        environment_variables={"FSSPEC_S3_ENDPOINT_URL": s3.url},
        secrets=secrets,
    )
    assert output(run) == "found"
    files = [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(path.name == "plan.json" for path in files)
    for value in (stores.KEY, stores.SECRET):
        assert not [path for path in files if value.encode() in path.read_bytes()]


def test_code_is_fetched_and_is_the_working_directory(s3: S3) -> None:
    s3.put("code/train.py", b"import helper; print(helper.NAME)")
    s3.put("code/helper.py", b"NAME = 'fetched'")
    run = run_of("python train.py; echo x > outputs/y", code=f"s3://{s3.bucket}/code", instance_count=2)
    assert (run.status, output(run)) == ("Completed", "fetched\n" * 2)
    assert (run.folder.path / "outputs/default/y").read_text() == "x\n"
    said = failed(command(command="true", code=f"s3://{s3.bucket}/none.tar.gz"))
    assert f"the code at s3://{s3.bucket}/none.tar.gz cannot be brought here: there is no s3://" in said


# -- outputs -----------------------------------------------------------------------------------------------------------


def uploaded(run: Run) -> list[dict[str, Any]]:
    return [event for event in run.folder.events() if event["event"] == "output_uploaded"]


def to(s3: S3, name: str, **more: Any) -> dict[str, Output]:
    return {"model": Output(path=f"s3://{s3.bucket}/{name}", **more)}


def test_a_folder_is_uploaded_once_by_all_nodes_of_a_machine_with_its_sizes_last(s3: S3, work: Path) -> None:
    run = run_of(
        "mkdir -p ${{outputs.model}}/deep; echo $RANK > ${{outputs.model}}/deep/rank-$RANK.txt",
        outputs=to(s3, "models/one"),
        distribution=PyTorchDistribution(process_count_per_instance=2),
        instance_count=2,
    )
    assert run.status == "Completed"
    files = {f"deep/rank-{rank}.txt": f"{rank}\n".encode() for rank in range(4)}
    found = s3.objects("models/one")
    mark = json.loads(found.pop(".jobsdk-upload.json"))
    assert found == files
    assert mark == {"run": run.name, "node": 0, "files": dict.fromkeys(files, 2)}
    (event,) = uploaded(run)
    assert (event["node"], event["name"], event["files"], event["bytes"]) == (0, "model", 4, 8)
    assert event["url"] == f"s3://{s3.bucket}/models/one"
    jobs.download(run.name, download_path="here", output_name="model")
    assert {name: (work / "here/named-outputs/model" / name).read_bytes() for name in files} == files
    again = run_of("cat ${{inputs.model}}/deep/rank-3.txt", inputs={"model": Input(path=run.outputs["model"].path)})
    assert output(again) == "3\n"


def test_a_file_is_uploaded_under_its_own_name(s3: S3) -> None:
    run = run_of("echo trained > ${{outputs.model}}", outputs=to(s3, "models/net.pt", type="uri_file"))
    assert run.status == "Completed"
    assert s3.objects("models") == {"net.pt": b"trained\n"}


def test_a_job_that_fails_uploads_what_it_has_written(s3: S3) -> None:
    run = run_of("echo half > ${{outputs.model}}/part.txt; exit 3", outputs=to(s3, "models/two"))
    assert (run.status, run.exit_code) == ("Failed", 3)
    assert s3.objects("models/two")["part.txt"] == b"half\n"


def test_a_job_that_is_cancelled_uploads_what_it_has_written(s3: S3) -> None:
    text = "echo half > ${{outputs.model}}/part.txt; echo ready; exec sleep 600"
    run = jobs.create_or_update(command(command=text, outputs=to(s3, "models/three")))
    wait_for(lambda: output(run) == "ready\n")
    jobs.cancel(run.name)
    assert run.wait(200).status == "Canceled"
    assert s3.objects("models/three")["part.txt"] == b"half\n"


def test_with_direct_an_output_is_the_url_and_nothing_is_uploaded(s3: S3) -> None:
    run = run_of("echo ${{outputs.model}}", outputs=to(s3, "models/four", mode="direct"))
    assert output(run) == f"s3://{s3.bucket}/models/four\n"
    assert s3.objects() == {}


def test_a_job_whose_outputs_cannot_be_uploaded_fails_and_says_why(s3: S3) -> None:
    outputs = {"model": Output(path=f"s3://absent-{s3.bucket}/models")}
    run = run_of("echo trained > ${{outputs.model}}/net.pt", outputs=outputs, max_restarts=2)
    assert run.status == "Failed"
    cause = run.folder.report()["cause"]
    assert (cause["class"], cause["node"], cause["exit_code"]) == ("upload_failed", 0, 1)
    assert f"output model: there is no s3://absent-{s3.bucket}/models. Fix: correct the URL" in cause["message"]
    assert (run.folder.path / "outputs/model/net.pt").read_text() == "trained\n"


CHECKPOINTS = """import os, pathlib, sys, time
from jobsdk import train
folder = pathlib.Path("now")
folder.mkdir()
(folder / "weights").write_text("step 1")
train.report({"loss": 1.0}, checkpoint=train.Checkpoint.from_directory(folder))
print("kept", flush=True)
time.sleep(600)
"""


def test_a_checkpoint_is_uploaded_while_the_job_runs(s3: S3, work: Path) -> None:
    (work / "train.py").write_text(CHECKPOINTS)
    text = "JOBSDK_STORAGE_PATH=${{outputs.model}} python train.py"
    run = jobs.create_or_update(command(command=text, code=".", outputs=to(s3, "models/five")))
    (event,) = wait_for(lambda: uploaded(run))
    assert (event["name"], event["checkpoint"]) == ("model", f"{run.name}/checkpoints/.parts/checkpoint_000000")
    found = s3.objects(f"models/five/{run.name}/checkpoints")
    assert found["checkpoint_000000/weights"] == b"step 1"
    assert ".parts/checkpoint_000000/rank-0.json" in found
    jobs.cancel(run.name)
    run.wait(200)


# -- another store -----------------------------------------------------------------------------------------------------


@pytest.fixture
def azure_store(tmp_path: Path) -> Iterator[Azure]:
    with stores.azure_blobs(str(engines.azurite()), tmp_path) as store:
        store.make_container()
        yield store


@pytest.mark.engine("azurite")
@pytest.mark.framework("stores")
def test_blobs_of_azure_with_a_secret_of_the_job(
    azure_store: Azure, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure_store.put("in/a.txt", b"alpha")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_store.connection)
    run = run_of(
        "cat ${{inputs.data}}/a.txt | tee ${{outputs.model}}/b.txt",
        inputs={"data": Input(path="abfss://data@devstoreaccount1.dfs.core.windows.net/in")},
        outputs={"model": Output(path="az://data/out")},
        secrets=["AZURE_STORAGE_CONNECTION_STRING"],
    )
    assert (run.status, output(run)) == ("Completed", "alpha")
    assert azure_store.objects("out")["b.txt"] == b"alpha"
    files = [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in files if azure_store.secret.encode() in path.read_bytes()]


# -- what goes wrong on the way ----------------------------------------------------------------------------------------


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A server that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield server


def test_a_job_is_cancelled_while_it_fetches(s3: S3, silent: socket.socket) -> None:
    run = jobs.create_or_update(of(f"s3://{s3.bucket}/x.csv"))
    silent.accept()
    jobs.cancel(run.name)
    assert run.wait(200).status == "Canceled"


def test_a_job_is_cancelled_while_it_uploads(s3: S3, silent: socket.socket) -> None:
    text = "echo trained > ${{outputs.model}}/net.pt"
    run = jobs.create_or_update(command(command=text, outputs=to(s3, "models/six")))
    silent.accept()
    jobs.cancel(run.name)
    assert run.wait(200).status == "Canceled"
    warnings = [event["message"] for event in run.folder.events() if event["event"] == "warning"]
    assert warnings == ["cancelled before all outputs were uploaded"]

"""Jobs that run on a local Azure ML, submitted, followed and fetched as on the real one."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from jobsdk import CommandJob, Input, JobFailed, MLClient, Output, PyTorchDistribution, command
from jobsdk.client.run import Run
from tests.compute import collectives
from tests.compute.azureml import eventually
from tests.emulator import emulated

_TIMEOUT = 300.0
#: Where TF_CONFIG says who a worker is, in the variables that a script for sockets reads.
_OF_TF_CONFIG = """
import json, os
config = json.loads(os.environ["TF_CONFIG"])
workers = config["cluster"]["worker"]
host, _, port = workers[0].rpartition(":")
print(f"RANK={config['task']['index']} WORLD_SIZE={len(workers)} MASTER_ADDR={host} MASTER_PORT={port}")
"""
#: What scripts do that Azure ML's own launcher starts, since it does not set RANK and WORLD_SIZE for these.
_PREFIXES = {
    "pytorch": "",
    "tensorflow": f"export $(python -c {shlex.quote(_OF_TF_CONFIG)}); ",
    "mpi": "RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE ",
}
IMAGE = {"image": "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"}


def script(text: str, name: str = "train.py") -> Path:
    """A code folder with one script."""
    folder = Path("src")
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


def job(text: str = "", **fields: Any) -> CommandJob:
    """A job of two nodes with two processes each."""
    if text:
        fields["code"] = script(text)
    return command(
        **{
            "command": "python train.py",
            "environment": IMAGE,
            "compute": "gpu-cluster",
            "instance_count": 2,
            "distribution": PyTorchDistribution(process_count_per_instance=2),
            **fields,
        }
    )


def by(launcher: str) -> dict[str, Any]:
    return {"properties": {"azureml": {"launcher": launcher}}}


def lines_of(run: Run) -> list[str]:
    out = io.BytesIO()
    run.stream(out=out)
    return out.getvalue().decode().splitlines()


@pytest.mark.parametrize(
    ("kind", "launcher"),
    [
        ("pytorch", "native"),
        ("tensorflow", "native"),
        pytest.param("mpi", "native", marks=pytest.mark.framework("mpi")),
        ("pytorch", "bootstrap"),
    ],
)
def test_a_real_collective(kind: str, launcher: str, client: MLClient) -> None:
    """Only Azure ML's mpirun starts a framework: all else is what the processes find in their environment."""
    script = "mpi" if kind == "mpi" else "sockets"
    the_job = collectives.job(script, 2, "gpu-cluster", environment=IMAGE)
    the_job.distribution = collectives.DISTRIBUTIONS[kind]
    the_job.resources.properties = by(launcher)["properties"]
    if launcher == "native":
        the_job.command = _PREFIXES[kind] + str(the_job.command)
    shown = {process.rank: process.environment for process in the_job.explain()}
    run = client.jobs.create_or_update(the_job).wait(_TIMEOUT)
    logs = {int(path.stem.partition("-")[2]): path.read_text() for path in run.folder.logs.glob("node-*/rank-*.log")}
    assert run.status == "Completed", "\n".join([str(run.report), *logs.values()])
    size = 2 if kind == "tensorflow" else 4
    assert sorted(logs) == list(range(size))
    for rank, log in logs.items():
        total = size * (size + 1) // 2
        assert re.findall(r"^rank .* total .*$", log, re.MULTILINE) == [f"rank {rank} of {size} total {total}"]
        if launcher == "bootstrap":
            (text,) = re.findall(r"^environ (\{.*\})$", log, re.MULTILINE)
            for name in (
                "RANK",
                "LOCAL_RANK",
                "WORLD_SIZE",
                "NODE_RANK",
                "LOCAL_WORLD_SIZE",
                "OMP_NUM_THREADS",
                "MINE",
            ):
                assert json.loads(text)[name] == shown[rank][name]
    assert run.folder.read_json("native.json")["launcher"] == launcher


@pytest.mark.parametrize("launcher", ["native", "bootstrap"])
def test_all_ranks_lines_come_and_all_outputs_are_fetched(launcher: str, client: MLClient, tmp_path: Path) -> None:
    Path("words.txt").write_text("one two")
    the_job = job(
        "import os, sys\n"
        "rank = os.environ['RANK']\n"
        "for number in range(3):\n"
        "    print('line', number, 'with', open(sys.argv[1]).read(), sys.argv[3], flush=True)\n"
        "os.makedirs(sys.argv[2] + '/deep', exist_ok=True)\n"
        "open(f'{sys.argv[2]}/deep/{rank}.txt', 'w').write(rank)\n"
        "os.makedirs('outputs', exist_ok=True)\n"
        "open(f'outputs/{rank}.log', 'w').write('artifact')\n",
        command="python train.py ${{inputs.words}} ${{outputs.model}} ${{inputs.rate}}",
        inputs={"words": Input(type="uri_file", path="words.txt"), "rate": 0.1},
        outputs={"model": Output(type="uri_folder")},
        resources={"instance_count": 2, **by(launcher)},
        tags={"team": "vision"},
    )
    before = the_job.to_yaml()
    run = client.jobs.create_or_update(the_job)
    lines = lines_of(run)
    assert sorted(lines) == [f"[rank {rank}] line {n} with one two 0.1" for rank in range(4) for n in range(3)]
    assert (run.status, run.exit_code) == ("Completed", 0)
    assert the_job.to_yaml() == before
    assert run.outputs.model.path == f"azureml://datastores/workspaceblobstore/paths/azureml/{run.name}/model/"
    assert str(run.studio_url).startswith(f"https://ml.azure.com/runs/{run.name}?")
    assert "Studio" in run.services
    client.jobs.download(run.name, download_path=tmp_path / "got", all=True)
    got = tmp_path / "got"
    found = {path.relative_to(got).as_posix() for path in got.rglob("*") if path.is_file()}
    logs = {path.relative_to(run.folder.path).as_posix() for path in run.folder.logs.rglob("*") if path.is_file()}
    assert found == {
        *(f"named-outputs/model/deep/{rank}.txt" for rank in range(4)),
        *(f"artifacts/outputs/{rank}.log" for rank in range(4)),
        *(f"artifacts/{name}" for name in logs),
    }
    assert (tmp_path / "got/named-outputs/model/deep/3.txt").read_text() == "3"


@pytest.mark.parametrize("launcher", ["native", "bootstrap"])
def test_a_failure_names_the_rank_that_failed_first(launcher: str, client: MLClient) -> None:
    text = "import os, time\nif os.environ['RANK'] == '3':\n    raise ValueError('no such data')\ntime.sleep(100)\n"
    run = client.jobs.create_or_update(job(text, resources={"instance_count": 2, **by(launcher)}))
    with pytest.raises(JobFailed) as caught:
        run.wait(_TIMEOUT).result()
    assert run.status == "Failed"
    assert "rank 3" in str(caught.value)
    assert "ValueError: no such data" in str(caught.value)
    assert (run.report["cause"]["rank"], run.exit_code) == (3, 1)


@pytest.mark.parametrize("launcher", ["native", "bootstrap"])
def test_a_run_is_cancelled(launcher: str, client: MLClient) -> None:
    text = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
    run = client.jobs.create_or_update(job(text, resources={"instance_count": 2, **by(launcher)}))
    eventually(lambda: run.status == "Running" and (run.folder.logs / "node-1/rank-3.log").exists())
    client.jobs.begin_cancel(run.name).result(_TIMEOUT)
    assert (run.status, run.exit_code) == ("Canceled", 130)
    assert client.jobs.cancel(run.name).status == "Canceled"


def test_an_unchanged_job_is_submitted_with_one_request(azure: Any, client: MLClient) -> None:
    Path("data").mkdir()
    Path("data/a.csv").write_text("1,2")
    Path("conda.yml").write_text("name: x\ndependencies: [python=3.11]\n")
    fields: dict[str, Any] = {
        "inputs": {"data": Input(path="data")},
        "command": "python train.py ${{inputs.data}}",
        "environment": {"image": "ubuntu", "conda_file": "conda.yml"},
    }
    first = client.jobs.create_or_update(job("print(1)", **fields))
    sent = [line for line in emulated.management(azure) if line.startswith("PUT")]
    assert len(sent) == 3, sent  # code, environment, job
    assert "AZUREML_CURRENT_CLOUD" not in os.environ  # of azure-ai-ml; local ranks would find it
    azure.forget_requests()
    second = client.jobs.create_or_update(job("print(1)", **fields))
    assert [line.rpartition("/")[2] for line in emulated.management(azure)] == [second.name]
    bodies = [one.folder.read_json("native.json")["body"] for one in (first, second)]
    assert bodies[0]["properties"]["inputs"] == bodies[1]["properties"]["inputs"]
    for run in (first, second):
        assert sorted(lines_of(run)) == [f"[rank {rank}] 1" for rank in (0, 1, 2, 3)]


def test_what_is_on_disk_now_is_what_runs(client: MLClient) -> None:
    """The experiment of a notebook whose cell is run again after the script was changed."""
    the_job = job("print('old')", instance_count=1, distribution=None)
    assert lines_of(client.jobs.create_or_update(the_job)) == ["[rank 0] old"]
    Path("src/train.py").write_text("print('new')")
    assert lines_of(client.jobs.create_or_update(the_job)) == ["[rank 0] new"]
    Path("src/train.py").write_text("print('old')")
    assert lines_of(client.jobs.create_or_update(the_job)) == ["[rank 0] old"]


def test_what_is_left_out_of_the_code_stays_here(client: MLClient) -> None:
    source = script("import os\nprint(*sorted(os.listdir('.')))\n")
    for name in ("kept.txt", "left.tmp", ".env", "named.log"):
        (source / name).write_text("x")
    (source / ".gitignore").write_text("*.tmp\nkept.txt\n")
    (source / ".amlignore").write_text("!kept.txt\n*.log\n")
    run = client.jobs.create_or_update(job(code=source, instance_count=1, distribution=None))
    (line,) = lines_of(run)
    names = line.split()[2:]
    assert {"kept.txt", "train.py"} <= set(names)
    assert not {"left.tmp", ".env", "named.log"} & set(names)
    assert run.folder.read_json("snapshot.json")["hash"].startswith("sha256:")


def test_the_command_line(azure: Any) -> None:
    import subprocess

    subscription, group, workspace = emulated.names(azure)
    settings = {
        **{"type": "azureml", "target": "gpu-cluster", "launcher": "bootstrap", "image": "ubuntu"},
        **{"subscription_id": subscription, "resource_group": group, "workspace_name": workspace},
    }
    Path("computes.yml").write_text(json.dumps({"computes": {"cloud": settings}}))
    script("print('hello')")
    Path("job.yml").write_text("code: src\ncommand: python train.py\ncompute: cloud\ntags: {team: vision}\n")

    def jobsdk(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "jobsdk", *words], capture_output=True, text=True, check=False)

    checked = jobsdk("compute", "check", "cloud")
    assert (checked.returncode, checked.stdout.count("ok ")) == (0, 4), checked
    compiled = jobsdk("job", "compile", "-f", "job.yml", "-o", "native")
    assert json.loads(compiled.stdout)["properties"]["jobType"] == "Command", compiled
    created = jobsdk("job", "create", "-f", "job.yml", "--stream")
    assert created.returncode == 0, created
    assert "[rank 0] hello" in created.stdout
    listed = json.loads(jobsdk("job", "list", "--compute", "cloud", "--tag", "team=vision", "-o", "json").stdout)
    shown = json.loads(jobsdk("job", "show", listed[0]["name"], "-o", "json").stdout)
    assert shown["studio_url"].startswith("https://ml.azure.com/runs/")


def test_the_commands_of_the_docs(azure: Any) -> None:
    import subprocess

    page = (Path(__file__).parents[3] / "docs/azureml.md").read_text()
    lines = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    commands = [line.partition("  #")[0] for line in lines if line.startswith("jobsdk ")]
    commands += re.findall(r"`(jobsdk job list[^`]*)`", page)
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for before, name in zip(
        ("0" * 8 + "-0000-0000-0000-" + "0" * 12, "research", "vision"), emulated.names(azure), strict=True
    ):
        text = text.replace(before, name)
    Path("computes.yml").write_text(text)
    script("print('hello')")
    Path("job.yml").write_text("code: src\ncommand: python train.py\n")
    assert len(commands) == 4
    for one in commands:
        done = subprocess.run(one, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{one}: {done.stderr}"
    assert "Completed" in done.stdout
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    code = code.replace('"research", "vision"', f"{emulated.names(azure)[1]!r}, {emulated.names(azure)[2]!r}")
    code = code.replace('"' + "0" * 8 + "-0000-0000-0000-" + "0" * 12 + '"', repr(emulated.names(azure)[0]))
    start = "from jobsdk import command\njob = command(command='true', compute='other', environment={'image': 'x'})\n"
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("launcher", ["native", "bootstrap"])
def test_secrets_reach_the_ranks_and_stay_out_of_the_runs_folder(
    launcher: str, client: MLClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "s3cr3t-of-the-tests"
    monkeypatch.setenv("MY_TOKEN", value)
    the_job = job(
        "import hashlib, os\nprint(hashlib.sha256(os.environ['MY_TOKEN'].encode()).hexdigest()[:8])\n",
        secrets=["MY_TOKEN"],
        resources={"instance_count": 2, **by(launcher)},
    )
    warnings: list[str] = []
    run = client.jobs.create_or_update(the_job, warn=warnings.append)
    expected = hashlib.sha256(value.encode()).hexdigest()[:8]
    assert sorted(lines_of(run)) == [f"[rank {rank}] {expected}" for rank in range(4)]
    assert any("everybody who may read the job" in text for text in warnings)
    monkeypatch.setenv("JOBSDK_HOME", str(tmp_path / "other"))
    brought = client.jobs.get(run.name).wait(_TIMEOUT)
    for folder in (run.folder.path, brought.folder.path):
        for path in folder.rglob("*"):
            assert not path.is_file() or value.encode() not in path.read_bytes(), path
    assert not (run.folder.path / "secrets.json").exists()


def test_what_validate_says(client: MLClient) -> None:
    assert client.jobs.validate(job("", command="true")).passed
    found = client.jobs.validate(job("", command="true", environment=None))
    assert "environment" in found.error_messages
    own = client.jobs.validate(job("", command="true", resources={"properties": {"azureml": {"launchr": "native"}}}))
    assert "did you mean 'launcher'" in own.error_messages["resources.properties.azureml.launchr"]

from __future__ import annotations

import copy
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jobsdk import CommandJob, Input, MLClient, PyTorchDistribution, command
from jobsdk.client.run import Run
from jobsdk.compute import supervisor
from jobsdk.errors import JobFailed, JobsdkError, RunExists, RunNotFound, ValidationError
from jobsdk.home import runs_folder
from tests.bootstrap.runs import events_in, processes_of, wait_for

jobs = MLClient().jobs


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a working directory of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def streamed(run: Run, **options: Any) -> bytes:
    out = io.BytesIO()
    try:
        run.stream(out=out, **options)
    except JobFailed:
        pass
    return out.getvalue()


def python(run: Run | str, text: str) -> str:
    """Do something with a run from another process."""
    name = run if isinstance(run, str) else run.name
    program = f"import sys\nfrom jobsdk import MLClient\njobs = MLClient().jobs\nname = {name!r}\n{text}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def in_shell(text: str, **fields: Any) -> CommandJob:
    return command(command=text, **fields)


def until_told(marker: str) -> str:
    """A command that goes on until a file is made."""
    return f"while [ ! -e {marker} ]; do sleep 0.02; done"


def test_a_job_runs_to_its_end() -> None:
    job = in_shell(
        "echo rank $RANK of $WORLD_SIZE on node $NODE_RANK: ${{inputs.word}}",
        inputs={"word": "hello"},
        distribution=PyTorchDistribution(process_count_per_instance=2),
        instance_count=2,
        display_name="nice",
        experiment_name="trials",
        tags={"team": "vision"},
    )
    run = jobs.create_or_update(job)
    lines = streamed(run).decode().splitlines()
    assert sorted(lines) == [f"[rank {rank}] rank {rank} of 4 on node {rank // 2}: hello" for rank in range(4)]
    assert (run.status, run.exit_code) == ("Completed", 0)
    assert run.result() is run
    assert (run.display_name, run.experiment_name, run.tags) == ("nice", "trials", {"team": "vision"})
    assert (run.nodes, run.processes, run.distribution, run.compute) == (2, 4, "pytorch", "local")
    assert run.inputs == {"word": "hello"}
    assert (run.studio_url, run.services) == (None, {})
    assert abs(run.creation_context.created_at.timestamp() - time.time()) < 60
    assert run.name in repr(run)
    assert "Completed" in repr(run)
    assert jobs.get(run.name) == run
    files = {path.name for path in run.folder.path.iterdir()}
    assert {"job.yml", "plan.json", "native.json", "run.json", "events.jsonl", "report.json", "owner.json"} <= files


@pytest.mark.parametrize(("text", "code"), [("exit 3", 3), ("kill -SEGV $$", 139), ("kill -KILL $$", 137)])
def test_the_exit_code_is_the_culprits(text: str, code: int) -> None:
    run = jobs.create_or_update(in_shell(text))
    with pytest.raises(JobFailed) as caught:
        run.result()
    assert run.exit_code == code
    assert caught.value.report["exit_code"] == code
    assert (run.status, jobs.wait(run.name).status) == ("Failed", "Failed")


def test_a_failed_stream_ends_with_who_failed_where_and_the_last_traceback() -> None:
    Path("src").mkdir()
    Path("src/train.py").write_text(
        "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no such data')\ntime.sleep(600)\n"
    )
    job = in_shell("python train.py", code="src", instance_count=2, distribution={"type": "pytorch"})
    run = jobs.create_or_update(job)
    with pytest.raises(JobFailed) as caught:
        jobs.stream(run.name, out=io.BytesIO())
    text = str(caught.value)
    assert "rank 1 on node 1" in text
    assert "Traceback (most recent call last):" in text
    assert text.splitlines()[0].endswith("rank 1 on node 1 exited with code 1: ValueError: no such data")
    assert text.endswith("others: rank 0 stopped by jobsdk")
    assert os.uname().nodename in text


def test_create_returns_at_once_and_the_run_goes_on_without_its_submitter(tmp_path: Path) -> None:
    marker = tmp_path / "go"
    text = f"""
import os
from jobsdk import command
run = jobs.create_or_update(command(command={until_told(str(marker))!r}))
print(run.name, flush=True)
os.killpg(0, 9)
"""
    program = f"from jobsdk import MLClient\njobs = MLClient().jobs\n{text}"
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, start_new_session=True, check=False
    )
    assert process.returncode == -9
    run = jobs.get(process.stdout.strip())
    wait_for(lambda: run.status == "Running")
    marker.touch()
    assert run.wait(200).status == "Completed"


def test_another_process_streams_waits_and_cancels(tmp_path: Path) -> None:
    marker = tmp_path / "go"
    run = jobs.create_or_update(in_shell(f"echo early; {until_told(str(marker))}; printf late; exit 5"))
    assert python(run, "print(jobs.get(name).status in ('Preparing', 'Starting', 'Running', 'Queued'))") == "True\n"
    threading.Timer(0.3, marker.touch).start()
    shown = python(run, "try:\n    jobs.stream(name)\nexcept Exception as error:\n    print(type(error).__name__)")
    assert shown == "[rank 0] early\n[rank 0] late\nJobFailed\n"
    assert python(run, "print(jobs.wait(name).exit_code)") == "5\n"

    run = jobs.create_or_update(in_shell("sleep 600"))
    assert python(run, "jobs.begin_cancel(name).result(); print(jobs.get(name).status)") == "Canceled\n"
    assert (run.status, run.exit_code) == ("Canceled", 130)
    assert streamed(run) == b""
    jobs.cancel(run.name)
    assert [event["event"] for event in run.folder.events()].count("cancel_requested") == 1


def test_a_run_whose_supervisor_is_killed_is_lost_and_nothing_of_it_is_left() -> None:
    run = jobs.create_or_update(in_shell("sleep 600 & sleep 600", instance_count=2, distribution=PyTorchDistribution()))
    wait_for(lambda: len([e for e in run.folder.events() if e["event"] == "rank_started"]) == 2)
    owner = run.folder.owner()
    assert owner is not None
    os.kill(owner[0], signal.SIGKILL)
    with pytest.raises(JobFailed, match="supervisor"):
        run.result(timeout=200)
    assert (run.status, run.exit_code) == ("Lost", 125)
    wait_for(lambda: not processes_of(run.folder.path))


def test_the_users_object_is_not_changed_and_new_code_is_shipped() -> None:
    Path("src").mkdir()
    job = in_shell("cat version.txt", code="src", inputs={"a": 1}, tags={"t": "1"}, environment="some:1")
    before, plain = copy.deepcopy(job), copy.deepcopy(vars(job))
    outputs = []
    for version in ("one", "two"):
        Path("src/version.txt").write_text(version)
        run = jobs.create_or_update(job, warn=lambda text: None, compute="local")
        Path("src/version.txt").write_text("changed after the submission")
        outputs.append(streamed(run))
        assert json.loads((run.folder.path / "snapshot.json").read_text())["hash"].startswith("sha256:")
    assert outputs == [b"[rank 0] one\n", b"[rank 0] two\n"]
    assert job == before
    assert vars(job) == plain
    assert job.name is None


def test_outputs_are_inputs_of_the_next_job() -> None:
    first = jobs.create_or_update(
        in_shell("echo weights > ${{outputs.model}}/w; echo 1 > ${{outputs.note}}", outputs={
            "model": {"type": "uri_folder"}, "note": {"type": "uri_file"}
        })
    ).result()  # fmt: skip
    model = first.outputs.model
    for given in (Input(type="uri_folder", path=model.path), model):
        second = jobs.create_or_update(in_shell("cat ${{inputs.model}}/w", inputs={"model": given}))
        assert streamed(second) == b"[rank 0] weights\n"
    assert Path(first.outputs["note"].path).read_text() == "1\n"
    third = jobs.create_or_update(
        in_shell("cat ${{inputs.note}}", inputs={"note": Input(type="uri_file", path=first.outputs.note.path)})
    )
    assert streamed(third) == b"[rank 0] 1\n"
    with pytest.raises(AttributeError, match="did you mean 'model'"):
        _ = first.outputs.modle


def test_the_kept_job_file_runs_the_same_code_again(tmp_path: Path) -> None:
    from jobsdk import load_job

    Path("src").mkdir()
    Path("src/say.sh").write_text("echo first")
    run = jobs.create_or_update(in_shell("sh say.sh", code="src")).wait()
    Path("src/say.sh").write_text("echo second")
    again = load_job(run.folder.path / "job.yml")
    assert streamed(jobs.create_or_update(again)) == b"[rank 0] first\n"


def test_what_is_wrong_is_said_before_anything_is_written() -> None:
    job = in_shell("echo ${{inputs.missing}}")
    with pytest.raises(ValidationError):
        jobs.create_or_update(job)
    with pytest.raises(ValidationError, match="azureml:data:1"):
        jobs.create_or_update(in_shell("cat ${{inputs.d}}", inputs={"d": {"path": "azureml:data:1"}}))
    with pytest.raises(ValidationError):
        jobs.create_or_update(in_shell("true"), name="a/b")
    with pytest.raises(JobsdkError, match="no compute 'gpus'"):
        jobs.create_or_update(in_shell("true"), compute="gpus")
    with pytest.raises(JobsdkError, match="type str"):
        jobs.create_or_update("job.yml")  # type: ignore[arg-type]
    assert not runs_folder().exists()
    result = jobs.validate(job)
    assert not result.passed
    assert "command" in result.error_messages
    assert jobs.validate(in_shell("true")).passed


def test_what_fails_while_submitting_leaves_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("src").mkdir()
    job = in_shell("true", code="src")
    compiled = jobs.compile(job)
    Path("src").rmdir()
    with pytest.raises(JobsdkError, match="src"):
        jobs.submit(compiled, lambda text: None)
    assert list(runs_folder().iterdir()) == []


def test_an_interrupt_while_submitting_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, start = runs_folder() / "gone", supervisor.start

    def interrupted(*given: Any) -> int:
        start(*given)
        wait_for(lambda: any(event["event"] == "rank_started" for event in events_in(folder)))
        raise KeyboardInterrupt

    monkeypatch.setattr(supervisor, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        jobs.create_or_update(in_shell("sleep 600"), name="gone")
    wait_for(lambda: not processes_of(folder))
    assert not folder.exists()


def test_a_name_is_taken_once() -> None:
    jobs.create_or_update(in_shell("true", name="mine")).wait()
    with pytest.raises(RunExists):
        jobs.create_or_update(in_shell("true"), name="mine")
    with pytest.raises(RunNotFound):
        jobs.get("other")


def test_warnings_are_told_once_and_kept_with_the_run(caplog: pytest.LogCaptureFixture) -> None:
    Path("src").mkdir()
    Path("src/id_rsa").write_text("PRIVATE KEY")
    job = in_shell("ls -A", code="src", instance_type="Standard_NC6", environment="azureml:env:1")
    run = jobs.create_or_update(job)
    assert [record.message.split(":")[0] for record in caplog.records][:2] == ["environment", "resources.instance_type"]
    assert "Fix: start jobsdk with the Python" in caplog.records[0].message
    assert "id_rsa" in caplog.records[2].message
    kept = [event["message"] for event in run.folder.events() if event["event"] == "warning"]
    assert kept == [record.message for record in caplog.records]
    assert b"id_rsa" not in streamed(run)


def test_the_ranks_do_not_inherit_another_launchers_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CPU_BIND", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "poison")
    monkeypatch.setenv("WORLD_SIZE", "77")
    run = jobs.create_or_update(in_shell("env", environment_variables={"MINE": "kept"}))
    text = streamed(run)
    assert b"poison" not in text
    assert b"[rank 0] WORLD_SIZE=1\n" in text
    assert b"[rank 0] MINE=kept\n" in text
    assert b"[rank 0] PATH=" + os.path.dirname(sys.executable).encode() in text


def test_a_run_can_be_changed_found_and_put_away() -> None:
    first = jobs.create_or_update(in_shell("true", experiment_name="a")).wait()
    second = jobs.create_or_update(in_shell("exit 1", experiment_name="b")).wait()
    first.tags["stage"] = "done"
    first.description = "a first try"
    changed = MLClient().create_or_update(first)
    assert (changed.tags, changed.description, changed.status) == ({"stage": "done"}, "a first try", "Completed")
    assert jobs.list() == [second, first]
    assert jobs.list(tag="stage=done") == [first]
    assert jobs.list(status="failed") == [second]
    assert jobs.list(experiment="b", max_results=1) == [second]
    jobs.archive(first.name)
    assert jobs.list() == [second]
    assert jobs.list(list_view_type="ArchivedOnly") == [first]
    assert jobs.list(list_view_type="All") == [second, first]
    jobs.restore(first.name)
    assert jobs.list() == [second, first]
    with pytest.raises(ValueError, match="ActiveOnly"):
        jobs.list(list_view_type="Some")


def test_download(tmp_path: Path) -> None:
    text = "mkdir -p outputs; echo default > outputs/d; echo named > ${{outputs.model}}/m; echo said"
    run = jobs.create_or_update(in_shell(text, outputs={"model": {"type": "uri_folder"}}))
    run.result()
    here = tmp_path / "one"
    assert jobs.download(run.name, download_path=here) == here
    assert (here / "artifacts/outputs/d").read_text() == "default\n"
    assert (here / "artifacts/logs/node-0/rank-0.log").read_text() == "said\n"
    assert not (here / "named-outputs").exists()
    jobs.download(run.name, download_path=tmp_path / "two", output_name="model")
    assert (tmp_path / "two/named-outputs/model/m").read_text() == "named\n"
    assert not (tmp_path / "two/artifacts").exists()
    jobs.download(run.name, download_path=tmp_path / "three", all=True)
    assert (tmp_path / "three/named-outputs/model/m").exists()
    assert (tmp_path / "three/artifacts/outputs/d").exists()
    with pytest.raises(JobsdkError, match="did you mean 'model'"):
        jobs.download(run.name, download_path=here, output_name="modle")
    going = jobs.create_or_update(in_shell("sleep 600"))
    with pytest.raises(JobsdkError, match="only a run that has ended"):
        jobs.download(going.name)
    jobs.begin_cancel(going.name).result(200)


def test_ranks_are_chosen() -> None:
    distribution = PyTorchDistribution(process_count_per_instance=4)
    run = jobs.create_or_update(in_shell("echo one; echo two", distribution=distribution)).result()
    assert streamed(run, ranks="0,last", tail=1) == b"[rank 0] two\n[rank 3] two\n"
    out = io.BytesIO()
    jobs.logs(run.name, ranks=[1], out=out)
    assert out.getvalue() == b"[rank 1] one\n[rank 1] two\n"
    with pytest.raises(ValueError, match="there is no rank 4"):
        jobs.logs(run.name, ranks=4)


def test_a_job_that_takes_too_long_is_ended() -> None:
    run = jobs.create_or_update(in_shell("sleep 600", timeout=1))
    with pytest.raises(JobFailed, match="timeout"):
        run.stream(out=io.BytesIO())
    assert (run.status, run.exit_code) == ("TimedOut", 124)


def test_many_submissions_at_once() -> None:
    found: list[Run] = []

    def submit() -> None:
        found.append(jobs.create_or_update(in_shell("echo $JOBSDK_RUN_NAME")))

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in found:
        assert streamed(run) == f"[rank 0] {run.name}\n".encode()
    assert {run.name for run in jobs.list()} == {run.name for run in found}


def test_what_is_only_azure_mls_is_said_so() -> None:
    with pytest.raises(AttributeError, match=r"MLClient\(\) runs jobs with its \.jobs"):
        _ = MLClient().data
    assert not hasattr(MLClient(), "models")


def test_a_client_of_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobsdkError, match=r"there is no config\.json in .* or above it\. Fix: "):
        MLClient.from_config()
    names = {"subscription_id": "s", "resource_group": "g", "workspace_name": "w"}
    Path("config.json").write_text(json.dumps(names))
    Path("deep/er").mkdir(parents=True)
    monkeypatch.chdir("deep/er")
    for client in (
        MLClient.from_config(),
        MLClient(None, "s", "g", "w"),
        MLClient.from_config(path="../../config.json"),
    ):
        assert (client.subscription_id, client.resource_group_name, client.workspace_name) == ("s", "g", "w")
    assert MLClient().workspace_name is None
    for given in (("credential",), (None, "s", "g")):
        with pytest.raises(JobsdkError, match=r"a workspace has three names.*Fix: "):
            MLClient(*given)  # type: ignore[arg-type]
    with pytest.raises(JobsdkError, match=r"a credential has a method get_token; str has none"):
        MLClient("credential", "s", "g", "w")


def test_a_client_of_a_workspace_knows_its_computes_and_those_of_computes_yml() -> None:
    client = MLClient(None, "s", "g", "w")
    job = in_shell("true", environment={"image": "ubuntu"}, instance_count=2, distribution={"type": "pytorch"})
    there = client.jobs.compile(job, compute="azureml:gpu-cluster")
    assert there.spec["body"]["properties"]["computeId"].endswith("/workspaces/w/computes/gpu-cluster")
    assert client.jobs.compile(job, compute="local").compute.type == "local"
    anywhere = client.jobs.compile(job)
    assert anywhere.compute.type == "azureml"
    assert "computeId" not in anywhere.spec["body"]["properties"]
    Path("computes.yml").write_text("default: here\ncomputes: {here: {type: local}}")
    assert client.jobs.compile(job).compute.name == "here"
    assert client.jobs.create_or_update(in_shell("true", compute="here")).wait().status == "Completed"


def test_outputs_by_name() -> None:
    run = jobs.create_or_update(
        in_shell("mkdir -p outputs; echo x > outputs/f; ls ${{outputs.model}}", outputs={"model": {}})
    )
    assert (Path(run.wait().outputs.default.path) / "f").read_text() == "x\n"
    with pytest.raises(AttributeError, match=r"there is no 'zzz' here; there are default, model"):
        _ = run.outputs.zzz


def test_an_interrupted_stream_says_that_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = jobs.create_or_update(in_shell("sleep 600"))

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run, "logs", interrupted)
        patched.setattr(run.folder, "wait", interrupted)
        for follow in (run.stream, run.wait, run.result):
            with pytest.raises(KeyboardInterrupt):
                follow()
            err = capsys.readouterr().err
            assert f"the run goes on: jobsdk job stream {run.name}" in err
            assert f"jobsdk job cancel {run.name}" in err

    run.cancel().wait()
    monkeypatch.setattr(run, "logs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.stream()
    assert "goes on" not in capsys.readouterr().err  # it has ended

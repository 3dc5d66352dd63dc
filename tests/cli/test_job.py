from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from jobsdk import MLClient

from .conftest import ARGV, Jobsdk

jobs = MLClient().jobs


def test_create_prints_the_name_and_returns(jobsdk: Jobsdk) -> None:
    done = jobsdk("job", "create", "-f", "job.yml", "--name", "first", "--set", "tags.team=vision")
    assert (done.code, done.out, done.err) == (0, "first\n", "")
    run = jobs.wait("first")
    assert (run.status, run.tags) == ("Completed", {"team": "vision"})


@pytest.mark.parametrize("how", ["--wait", "--stream"])
@pytest.mark.parametrize("code", [0, 3])
def test_create_exits_with_the_jobs_code_when_it_waits(jobsdk: Jobsdk, how: str, code: int) -> None:
    done = jobsdk("job", "create", "-f", "job.yml", how, "--set", f"inputs.code={code}", "--name", "one")
    assert done.code == code, done
    if how == "--stream" and code == 0:
        assert sorted(done.out.splitlines()) == ["[rank 0] rank 0", "[rank 1] rank 1"]
    elif how == "--wait":
        assert done.out == "one\n"
    assert ("error: run one ended as Failed: rank" in done.err) == bool(code)


def test_create_saves_the_job_as_it_was_submitted(jobsdk: Jobsdk, work: Path) -> None:
    words = ("--set", "resources.instance_count=2", "--name", "saved", "--compute", "local", "--save-as", "new/sub.yml")
    assert jobsdk("job", "create", "-f", "job.yml", *words, "--wait").code == 0
    saved = yaml.safe_load((work / "new/sub.yml").read_text())
    assert (saved["name"], saved["compute"], saved["resources"]) == ("saved", "local", {"instance_count": 2})


def test_create_reads_stdin_and_prints_records(jobsdk: Jobsdk) -> None:
    done = jobsdk("job", "create", "-f", "-", "--wait", "-o", "json", input=b"command: echo hi\n")
    record = json.loads(done.out)
    assert (done.code, record["status"], record["exit_code"]) == (0, "Completed", 0)


def test_warnings_go_to_stderr_and_do_not_block(jobsdk: Jobsdk) -> None:
    done = jobsdk("job", "create", "-f", "job.yml", "--wait", "--name", "w", "--set", "resources.shm_size=2g")
    assert (done.code, done.out) == (0, "w\n")
    assert done.err == "warning: resources.shm_size: has no effect on the compute local\n"


def test_validate(jobsdk: Jobsdk, work: Path) -> None:
    done = jobsdk("job", "validate", "-f", "job.yml")
    assert (done.code, done.out, done.err) == (0, "job.yml: valid\n", "")
    (work / "bad.yml").write_text("command: echo ${{inputs.x}}\nresources: {instance_count: 0}\ncomand: b\n")
    done = jobsdk("job", "validate", "-f", "bad.yml")
    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("bad.yml:") and " error: " in line for line in lines)
    records = json.loads(jobsdk("job", "validate", "-f", "bad.yml", "-o", "json").out)
    assert {record["path"] for record in records} >= {"comand", "resources.instance_count"}
    assert set(records[0]) == {"path", "line", "column", "file", "severity", "message", "suggestion"}
    assert json.loads(jobsdk("job", "validate", "-f", "job.yml", "-o", "json").out) == []


def test_strict_makes_tolerated_keys_errors(jobsdk: Jobsdk, work: Path) -> None:
    (work / "extra.yml").write_text("command: 'true'\ndistribution: {type: pytorch, added_property: 7}\n")
    assert jobsdk("job", "validate", "-f", "extra.yml").code == 0
    assert jobsdk("job", "validate", "-f", "extra.yml", "--strict").code == 2
    assert jobsdk("job", "create", "-f", "extra.yml", "--strict").code == 2
    assert jobs.list() == []


def test_explain(jobsdk: Jobsdk) -> None:
    text = jobsdk("job", "explain", "-f", "job.yml", "--rank", "1").out
    assert "\n  RANK=1\n" in text
    assert "\n  RANK=0\n" not in text
    processes = json.loads(jobsdk("job", "explain", "-f", "job.yml", "-o", "json").out)["processes"]
    assert [process["environment"]["RANK"] for process in processes] == ["0", "1"]
    done = jobsdk("job", "explain", "-f", "job.yml", "--rank", "7")
    assert done.code == 2
    assert "there is no rank 7" in done.err


def test_compile_prints_what_is_submitted(jobsdk: Jobsdk, home: Path) -> None:
    spec = json.loads(jobsdk("job", "compile", "-f", "job.yml", "--name", "same", "-o", "json").out)
    assert list(home.iterdir()) == []
    assert jobsdk("job", "create", "-f", "job.yml", "--name", "same", "--wait").code == 0
    assert jobs.get("same").folder.read_json("native.json") == spec


@pytest.mark.parametrize("verb", ["create", "validate", "explain", "compile"])
def test_a_job_file_needs_no_option(jobsdk: Jobsdk, verb: str) -> None:
    assert jobsdk("job", verb, "job.yml").code == 0
    for words in ((), ("job.yml", "-f", "job.yml")):
        done = jobsdk("job", verb, *words)
        assert (done.code, done.out) == (2, "")
        assert "Give one job file: -f job.yml" in done.err


def test_a_run_is_submitted_again_with_changes(jobsdk: Jobsdk, work: Path) -> None:
    (work / "job.yml").write_text("command: cat text; exit ${{inputs.code}}\ncode: .\ninputs: {code: 3}\n")
    (work / "text").write_text("first\n")
    assert jobsdk("job", "create", "job.yml", "--name", "first", "--wait").code == 3
    (work / "text").write_text("second\n")
    done = jobsdk("job", "rerun", "first", "--set", "inputs.code=0", "--stream")
    assert (done.code, done.out) == (0, "[rank 0] first\n"), done
    again = jobsdk("job", "rerun", "first", "--set", "name=again")
    assert (again.code, again.out) == (0, "again\n"), again
    assert MLClient().jobs.wait("again").exit_code == 3
    assert MLClient().jobs.rerun("again", {"inputs.code": 0}).wait().status == "Completed"
    (MLClient().jobs.get("again").folder.path / "job.yml").unlink()
    assert "it was not submitted from here" in jobsdk("job", "rerun", "again").err


def test_output_as_az_has_it(jobsdk: Jobsdk) -> None:
    jobsdk("job", "create", "job.yml", "--name", "fine", "--set", "tags={a: 1, b: 'x\ty'}", "--wait")
    jobsdk("job", "create", "job.yml", "--name", "worse", "--set", "inputs.code=3", "--wait")

    def shown(*words: str) -> str:
        done = jobsdk("job", *words)
        assert (done.code, done.err) == (0, ""), done
        return done.out

    assert shown("show", "fine", "--query", "exit_code") == "0\n"
    assert shown("show", "fine", "--query", "status", "-o", "tsv") == "Completed\n"
    assert shown("list", "--query", "[?status=='Failed'].name", "-o", "tsv") == "worse\n"
    assert shown("list", "--query", "[].[name, exit_code, studio_url]", "-o", "tsv") == "worse\t3\t\nfine\t0\t\n"
    assert shown("list", "--query", "[].{Name: name, ok: status}", "-o", "table").splitlines() == [
        "Name   ok", "worse  Failed", "fine   Completed",
    ]  # fmt: skip
    assert shown("show", "fine", "-o", "yaml", "--query", "tags") == "a: '1'\nb: \"x\\ty\"\n"
    assert shown("show", "fine", "-o", "tsv", "--query", "[tags.b, tags]") == 'x y\n{"a": "1", "b": "x\\ty"}\n'
    assert shown("show", "fine", "-o", "tsv").startswith("fine\tfine\tCompleted\t0\t")
    assert shown("create", "job.yml", "--name", "third", "--query", "name", "-o", "tsv") == "third\n"
    assert shown("explain", "job.yml", "--query", "nothing") == "null\n"


def test_show_and_list(jobsdk: Jobsdk) -> None:
    for name, code in (("good", 0), ("bad", 4)):
        words = ("--set", f"inputs.code={code}", "--set", f"tags.kind={name}", "--set", f"experiment_name=e{code}")
        jobsdk("job", "create", "-f", "job.yml", "--name", name, "--wait", *words)
    record = json.loads(jobsdk("job", "show", "bad", "-o", "json").out)
    assert (record["status"], record["exit_code"], record["report"]["cause"]["exit_code"]) == ("Failed", 4, 4)
    assert yaml.safe_load(jobsdk("job", "show", "-n", "good", "-o", "yaml").out)["tags"] == {"kind": "good"}
    assert "Failed" in jobsdk("job", "show", "bad").out

    lines = jobsdk("job", "list").out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["NAME", "STATUS", "CODE"],
        ["bad", "Failed", "4"],
        ["good", "Completed", "0"],
    ]

    def names(*words: str) -> list[str]:
        return [one["name"] for one in json.loads(jobsdk("job", "list", "-o", "json", *words).out)]

    assert names("--status", "failed") == ["bad"]
    assert names("--tag", "kind=good") == ["good"]
    assert names("--experiment", "e4") == ["bad"]
    assert names("--max-results", "1") == ["bad"]
    jobsdk("job", "archive", "bad")
    assert names() == ["good"]
    assert names("--archived-only") == ["bad"]
    assert names("--include-archived") == ["bad", "good"]
    jobsdk("job", "restore", "bad")
    assert names() == ["bad", "good"]


def test_logs_stream_and_wait(jobsdk: Jobsdk, work: Path) -> None:
    (work / "lines.yml").write_text(
        "command: echo one $RANK; echo two $RANK; exit 6\n"
        "distribution: {type: pytorch, process_count_per_instance: 1}\n"
    )
    assert jobsdk("job", "create", "-f", "lines.yml", "--name", "l", "--wait").code == 6
    assert jobsdk("job", "logs", "l").out == "[rank 0] one 0\n[rank 0] two 0\n"
    assert jobsdk("job", "logs", "l", "--tail", "1", "--rank", "last").out == "[rank 0] two 0\n"
    assert jobsdk("job", "logs", "l", "--follow").out == "[rank 0] one 0\n[rank 0] two 0\n"
    streamed = jobsdk("job", "stream", "l")
    assert (streamed.code, streamed.out) == (6, "[rank 0] one 0\n[rank 0] two 0\n")
    assert "error: run l ended as Failed: rank 0 on node 0 exited with code 6" in streamed.err
    assert jobsdk("job", "wait", "l").code == 6
    for verb in ("logs", "stream"):
        done = jobsdk("job", verb, "l", "--rank", "5")
        assert done.code == 2
        assert done.err.startswith("error: there is no rank 5: the job has rank 0 only")


def test_cancel_and_waiting_for_too_long(jobsdk: Jobsdk, work: Path) -> None:
    (work / "long.yml").write_text("command: sleep 600\n")
    assert jobsdk("job", "create", "-f", "long.yml", "--name", "long").code == 0
    done = jobsdk("job", "wait", "long", "--timeout", "0.2")
    assert (done.code, done.out) == (124, "")
    assert "after 0.2 s" in done.err
    done = jobsdk("job", "cancel", "long", "--wait")
    assert (done.code, done.err) == (0, "long: Canceled\n")
    assert jobsdk("job", "wait", "long").code == 130


def test_ctrl_c_detaches_without_a_terminal(work: Path) -> None:
    (work / "long.yml").write_text("command: echo up; sleep 600\n")
    words = ["job", "create", "-f", "long.yml", "--stream", "--name", "long"]
    process = subprocess.Popen(
        [*ARGV, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"[rank 0] up\n"
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=200)[1].decode()
    assert process.returncode == 0, "130 is the code of a run that was cancelled"
    assert "the run goes on: jobsdk job stream long" in err
    run = jobs.get("long")
    assert run.status == "Running"
    jobs.begin_cancel(run).result(200)


def interrupt_until_it_ends(process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        # Not again at once: one more while it is ending would be another test.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)


@pytest.mark.parametrize(("answer", "status"), [(b"c\n", "Canceled"), (b"\n", "Running"), (b"", "Running")])
def test_ctrl_c_asks_on_a_terminal(work: Path, answer: bytes, status: str) -> None:
    import pty

    (work / "long.yml").write_text("command: echo up; sleep 600\n")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*ARGV, "job", "create", "-f", "long.yml", "--stream", "--name", "long"],
        stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    assert process.stdout is not None
    assert process.stdout.readline() == b"[rank 0] up\n"
    process.send_signal(signal.SIGINT)
    asked = b""
    while b"ancel it?" not in asked:
        asked += os.read(ours, 4096)
    if answer:
        os.write(ours, answer)
    else:
        interrupt_until_it_ends(process)  # Python's input() can miss one that comes just before it waits
    process.stdout.read()
    assert process.wait(200) == (130 if status == "Canceled" else 0)
    run = jobs.get("long")
    assert run.status == status
    jobs.begin_cancel(run).result(200)
    os.close(ours)


def test_update(jobsdk: Jobsdk) -> None:
    jobsdk("job", "create", "-f", "job.yml", "--name", "u", "--wait")
    words = ("--set", "tags.a=1", "--set", "tags.b=true", "--set", "description=one: two", "--set", "display_name=D")
    record = json.loads(jobsdk("job", "update", "u", *words, "-o", "json").out)
    assert (record["tags"], record["description"]) == ({"a": "1", "b": "true"}, "one: two")
    assert jobs.get("u").display_name == "D"
    for setting, message in (
        ("status=Completed", "cannot be changed"),
        ("tag.a=1", "did you mean 'tags'"),
        ("tags=1", "--set tags.NAME=VALUE"),
        ("description.a=1", "has no parts"),
    ):
        done = jobsdk("job", "update", "u", "--set", setting)
        assert done.code == 2, done
        assert message in done.err


def test_download(jobsdk: Jobsdk, work: Path) -> None:
    (work / "out.yml").write_text(
        "command: mkdir -p outputs; echo d > outputs/f; echo m > ${{outputs.model}}/w\noutputs: {model: {}}\n"
    )
    jobsdk("job", "create", "-f", "out.yml", "--name", "d", "--wait")
    done = jobsdk("job", "download", "d", "-p", "here", "--all")
    assert (done.code, done.out) == (0, "here\n")
    assert (work / "here/named-outputs/model/w").read_text() == "m\n"
    assert (work / "here/artifacts/outputs/f").read_text() == "d\n"
    assert jobsdk("job", "download", "d", "--output-name", "modl").code == 2


@pytest.mark.slow
def test_delete_and_prune(jobsdk: Jobsdk, work: Path) -> None:
    for name in ("one", "two", "three"):
        jobsdk("job", "create", "job.yml", "--name", name, "--set", f"inputs.code={int(name == 'two')}", "--wait")
    done = jobsdk("job", "delete", "one")
    assert done.code == 0
    assert done.err.startswith("one: deleted, ")
    dry = jobsdk("prune", "--failed", "--dry-run")
    assert (dry.code, dry.err[: len("would delete 1 run, ")]) == (0, "would delete 1 run, "), dry
    assert [line.split()[:2] for line in dry.out.splitlines()] == [["NAME", "STATUS"], ["two", "Failed"]]
    assert jobsdk("prune", "--failed", "--query", "[].name", "-o", "tsv").out == "two\n"
    assert jobsdk("prune", "--older-than", "30d", "--keep", "20").err == "deleted 0 runs, 0 bytes\n"
    assert jobsdk("job", "list", "--query", "[].name", "-o", "tsv").out == "three\n"
    jobsdk("job", "create", "job.yml", "--name", "four", "--set", "command=sleep 600", "--set", "inputs={}")
    refused = jobsdk("job", "delete", "-n", "three", "four")
    assert refused.code == 2
    assert "run four is" in refused.err
    assert jobsdk("job", "delete", "-n", "three", "four", "--force").code == 0
    assert jobsdk("job", "list").out.count("\n") == 1


def test_builds_the_environment_when_asked(jobsdk: Jobsdk, work: Path) -> None:
    (work / "requirements.txt").write_text("")
    (work / "env.yml").write_text(
        "command: python -c 'import sys; print(sys.prefix)'; echo $VIRTUAL_ENV\n"
        "environment: {requirements: requirements.txt}\n"
    )
    plain = jobsdk("job", "create", "-f", "env.yml", "--wait")
    assert "--build-env builds it" in plain.err
    built = jobsdk("job", "create", "-f", "env.yml", "--build-env", "--stream")
    assert built.code == 0, built
    first, second = (line.removeprefix("[rank 0] ") for line in built.out.splitlines())
    assert first == second
    assert "/envs/" in first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["jbo"], "No such command 'jbo'. Did you mean 'job'?"),
        (["job", "craete"], "Did you mean 'create'?"),
        (["create", "-f", "job.yml"], "Did you mean 'jobsdk job create'?"),
        (["explain"], "Did you mean 'jobsdk job explain'?"),
        (["job", "prune"], "Did you mean 'jobsdk prune'?"),
        (["run", "job.yml"], "did you mean 'jobsdk job create -f job.yml'?"),
        (["job", "create"], "Give one job file: -f job.yml"),
        (["job", "create", "-f", "missing.yml"], "missing.yml"),
        (["job", "create", "-f", "."], "."),
        (["job", "validate", "-f", __file__], "this is a Python file, not a job file"),
        (["job", "create", "-f", "job.yml", "--compute", "nowhere"], "--compute local"),
        (["job", "create", "-f", "job.yml", "--name", "a/b"], "name"),
        (["job", "create", "-f", "job.yml", "--save-as", "job.yml"], "job.yml exists already. Fix: give another name"),
        (["job", "show"], "Give the name of one run"),
        (["job", "show", "nothing"], "there is no run named 'nothing'"),
        (["job", "logs", "a", "-n", "b"], "Give the name of one run"),
        (["job", "list", "--status", "finished"], "there is no status 'finished'"),
        (["job", "list", "-o", "xml"], "'xml' is not one of"),
        (["job", "update", "x"], "Missing option '--set'"),
        (["job", "update", "x", "--set", "a..b=3"], "'a..b=3' is no override (write it as key.key=value)"),
        (["job", "update", "x", "--set", "tags.a=" + "[" * 20_000], "levels deep"),
        (["compute", "show", "nowhere"], "there is no compute 'nowhere'"),
        (["completion", "csh"], "'csh' is not one of"),
        (["job", "list", "--status", "faild"], "there is no status 'faild'; did you mean Failed?"),
        (["job", "list", "--query", "[?"], "'[?' is not JMESPath"),
        (["job", "list", "--query", "to_number()"], "--query: "),
        (["job", "timeline", "x", "--query", "name", "-o", "text"], "-o json, yaml, tsv or table"),
        (["job", "delete"], "Give the names of the runs to delete."),
        (["job", "delete", "nothing"], "there is no run named 'nothing'"),
        (["prune"], "nothing says which runs may go. Fix: give older_than (--older-than 30d)"),
        (["prune", "--older-than", "month"], "'month' is not a length of time"),
    ],
)
def test_wrong_use_is_one_clear_error(jobsdk: Jobsdk, words: list[str], message: str) -> None:
    done = jobsdk(*words)
    assert done.code == 2, done
    assert message in done.err
    assert "error: " in done.err
    assert len(done.err.splitlines()) == 1
    assert done.out == ""


def test_a_run_without_its_files_can_be_shown(jobsdk: Jobsdk, home: Path) -> None:
    (home / "runs" / "empty").mkdir(parents=True)
    os.utime(home / "runs" / "empty", (1, 1))
    assert jobsdk("job", "show", "empty").code == 0
    assert jobsdk("job", "list").code == 0
    assert jobsdk("job", "logs", "empty").code == 0


def test_validate_says_what_create_would_say_of_the_compute(jobsdk: Jobsdk, work: Path) -> None:
    ray = "command: echo hi\ndistribution:\n  type: ray\n  worker_node_additional_args: --block\n"
    (work / "ray.yml").write_text(ray)
    assert jobsdk("job", "validate", "-f", "ray.yml").code == jobsdk("job", "create", "-f", "ray.yml").code == 2
    said = "ray.yml:4:32: error: distribution.worker_node_additional_args: --block is set by jobsdk. Fix: remove it"
    assert said in jobsdk("job", "validate", "-f", "ray.yml").err
    (work / "far.yml").write_text("command: echo hi\ncompute: azureml:far\n")
    elsewhere = jobsdk("job", "validate", "-f", "far.yml")
    assert (elsewhere.code, "far.yml:2:10: warning: compute: there is no compute 'far'" in elsewhere.err) == (0, True)
    shown = jobsdk("job", "explain", "-f", "far.yml")
    assert (shown.code, "there is no compute 'far'" in shown.err, "RANK=0" in shown.out) == (0, True, True)
    assert jobsdk("job", "validate", "-f", "far.yml", "--compute", "local").err == ""


@pytest.mark.parametrize("words", [["job", "create", "-f", "job.yml"], ["run", "true"], ["compute", "list"]])
def test_a_deleted_working_directory_is_said(jobsdk: Jobsdk, work: Path, words: list[str]) -> None:
    gone = work / "gone"
    gone.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *ARGV, *words],
        cwd=gone, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the working directory has been deleted. Fix: change to a folder that exists\n"


def test_a_home_that_cannot_be_made_is_named(jobsdk: Jobsdk, work: Path) -> None:
    home = str(work / "job.yml" / "home")
    done = jobsdk("job", "create", "-f", "job.yml", env={**os.environ, "JOBSDK_HOME": home})
    assert (done.code, f"set JOBSDK_HOME (now {home})" in done.err, len(done.err.splitlines())) == (2, True, 1)


def test_a_run_is_found_by_the_beginning_of_its_name_and_shown_line_by_line(jobsdk: Jobsdk, work: Path) -> None:
    (work / "two.yml").write_text("command: |\n  echo one\n  echo two\n")
    for name in ("abc_1", "abc_2"):
        assert jobsdk("job", "create", "-f", "two.yml", "--name", name, "--wait").code == 0
    shown = [line.split() for line in jobsdk("job", "show", "abc_2").out.splitlines()]
    assert shown[shown.index(["command", "echo", "one"]) + 1] == ["echo", "two"]
    assert [] not in shown
    (work / "more.yml").write_text("command: 'true'\n")
    jobsdk("job", "create", "-f", "more.yml", "--name", "other", "--wait")
    assert jobsdk("job", "wait", "oth").code == 0
    assert "2 runs have names that begin with 'abc'" in jobsdk("job", "wait", "abc").err


def test_show_says_what_ran_and_diff_what_differs(jobsdk: Jobsdk, work: Path) -> None:
    for name, code in (("a", 0), ("b", 3)):
        jobsdk("job", "create", "-f", "job.yml", "--wait", "--name", name, "--set", f"inputs.code={code}")
    shown = jobsdk("job", "show", "a").out
    assert re.search(r"^command +echo rank \$RANK; exit 0\ninputs +code = 0$", shown, re.MULTILINE)
    record = json.loads(jobsdk("job", "show", "a", "-o", "json").out)
    assert record["inputs"]["code"] == "0"
    assert "${{" in record["command"]
    assert "${{inputs" not in record["rendered_command"]
    assert record["submitted_from"] == str(work)
    assert [rank["state"] for rank in record["ranks"]] == ["completed", "completed"]
    assert record["machines"][0]["cores"] >= 1
    done = jobsdk("job", "diff", "a", "b")
    assert done.out.splitlines()[1].split() == ["job", "inputs.code", "0", "3"]
    assert json.loads(jobsdk("job", "diff", "a", "b", "-o", "json").out) == [
        {"part": "job", "what": "inputs.code", "first": "0", "second": "3"}
    ]
    same = jobsdk("job", "diff", "a", "a")
    assert (same.code, same.out, same.err) == (0, "", "nothing that jobsdk knows differs\n")


def test_the_list_names_what_it_can_and_is_shown_again_and_again(jobsdk: Jobsdk, work: Path) -> None:
    jobsdk("job", "create", "-f", "job.yml", "--wait", "--name", "bad", "--set", "inputs.code=3",
           "--set", "display_name=my run")  # fmt: skip
    head, row = jobsdk("job", "list").out.splitlines()
    assert re.split("  +", head) == [
        "NAME", "DISPLAY NAME", "STATUS", "CODE", "EXPERIMENT", "COMPUTE", "NODES", "RANKS", "CREATED", "TOOK",
        "MESSAGE",
    ]  # fmt: skip
    cells = re.split("  +", row)
    assert cells[:4] == ["bad", "my run", "Failed", "3"]
    assert re.fullmatch(r"[-0-9]+ [:0-9]+ [A-Z+0-9]+", cells[8])
    assert cells[10].startswith("rank ")
    process = subprocess.Popen([*ARGV, "job", "list", "--watch"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    heads = [line for line in (process.stdout.readline() for _ in range(4)) if line.startswith("NAME")]
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert (process.wait(200), len(heads)) == (130, 2)


def test_download_says_what_came_and_what_was_there(jobsdk: Jobsdk) -> None:
    jobsdk("job", "create", "-f", "job.yml", "--wait", "--name", "done")
    first = jobsdk("job", "download", "done", "-p", "to")
    assert re.fullmatch(r"artifacts: \d+ files\n", first.err)
    assert first.out == "to\n"
    second = jobsdk("job", "download", "done", "-p", "to")
    assert re.fullmatch(r"artifacts: \d+ files, with what was there before\n", second.err)

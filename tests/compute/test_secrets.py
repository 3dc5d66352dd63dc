"""A job's secrets on their way: the ranks have them, and nothing that is kept, shown or listed by `ps` does."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobsdk import (
    DeepSpeedDistribution,
    MLClient,
    MpiDistribution,
    PyTorchDistribution,
    TensorFlowDistribution,
    command,
)
from jobsdk.errors import JobsdkError
from jobsdk.job.command import CommandJob
from jobsdk.runs.folder import RunFolder
from tests.bootstrap.runs import wait_for

GIVEN, TAKEN, SIGNED = "given-swordfish", "taken-swordfish", "signed-swordfish"
VALUES = (GIVEN, TAKEN, SIGNED)
#: Ends with code 0 if it has its secrets, and no process of the machine has one of them on its command line.
SCRIPT = """import os, pathlib, sys
for value in (os.environ["MY_PASSWORD"], os.environ["FROM_SHELL"]):
    assert value.endswith("-swordfish"), value
for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        assert b"-sword" + b"fish" not in line.read_bytes(), line.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        pass
"""


def job(script: str = SCRIPT, **more: Any) -> CommandJob:
    Path("src").mkdir(exist_ok=True)
    Path("src/check.py").write_text(script)
    return command(
        command="python check.py", code="src", environment_variables={"MY_PASSWORD": GIVEN, "N": "1"},
        secrets=["FROM_SHELL"], **more,
    )  # fmt: skip


def holders(folder: Path) -> set[str]:
    """The files that hold a secret."""

    def holds(path: Path) -> bool:
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # one that a run that goes on has just put in the place of another
            return False
        return any(value.encode() in content for value in VALUES)

    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)) for path in files if holds(path)}


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_SHELL", TAKEN)


DISTRIBUTIONS = {
    "pytorch": PyTorchDistribution(process_count_per_instance=2),
    "preloaded": PyTorchDistribution(process_count_per_instance=2),
    "tensorflow": TensorFlowDistribution(),
    "mpirun": MpiDistribution(process_count_per_instance=2),
    "deepspeed": DeepSpeedDistribution(process_count_per_instance=2, launcher="deepspeed"),
}

_MARKS: dict[str, Any] = {
    "mpirun": [pytest.mark.framework("mpi")],
    "deepspeed": [pytest.mark.framework("deepspeed"), pytest.mark.engine("compiler")],
}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=_MARKS.get(kind, [])) for kind in DISTRIBUTIONS])
def test_ranks_have_the_secrets_and_no_file_or_command_line_has(kind: str, home: Path) -> None:
    preload = ["json"] if kind == "preloaded" else None
    run = MLClient().create_or_update(job(distribution=DISTRIBUTIONS[kind], preload=preload)).wait()
    assert run.exit_code == 0, run.report
    MLClient().jobs.list()
    assert holders(home) == set()
    assert not (run.folder.path / "secrets.json").exists()


def test_while_the_run_needs_them_they_are_in_one_file_of_its_user(home: Path) -> None:
    run = MLClient().create_or_update(job("import time; time.sleep(100)"))
    name = f"runs/{run.name}/secrets.json"
    assert holders(home) == {name}
    assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
    # The compute's settings may hold passwords and headers with tokens.
    assert stat.S_IMODE((run.folder.path / "compute.json").stat().st_mode) == 0o600
    run.cancel().wait()
    assert holders(home) == set()


def test_they_are_forgotten_also_when_the_supervisor_is_killed(home: Path) -> None:
    run = MLClient().create_or_update(job("import time; time.sleep(100)"))
    pid = wait_for(lambda: run.folder.living_owner() if run.status == "Running" else None)
    os.kill(pid, signal.SIGKILL)
    assert run.wait().status == "Lost"
    assert holders(home) == set()


def test_a_signed_url_is_fetched_and_kept_nowhere(home: Path, tmp_path: Path) -> None:
    import http.server
    import threading

    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if "good" in self.path else 403)
            self.end_headers()
            self.wfile.write(b"data")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    try:
        for name, status in (("good", "Completed"), ("bad", "Failed")):
            url = f"http://127.0.0.1:{server.server_port}/{name}.csv?sv=1&sig={SIGNED}"
            data = {"type": "uri_file", "path": url}
            run = MLClient().create_or_update(command(command="cat ${{inputs.d}}", inputs={"d": data})).wait()
            assert run.status == status, run.report
    finally:
        server.shutdown()
        server.server_close()
    assert asked == [f"/good.csv?sv=1&sig={SIGNED}", f"/bad.csv?sv=1&sig={SIGNED}"]
    assert "sig=***" in run.report["message"]
    assert holders(home) == set()


def test_what_is_shown_has_stars(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("job.yml").write_text(
        f"command: echo {GIVEN}\nenvironment_variables: {{MY_PASSWORD: {GIVEN}}}\nsecrets: [FROM_SHELL]\n"
        f"tags: {{note: {GIVEN}}}\n"
    )
    for words in (
        "validate -f job.yml", "explain -f job.yml", "explain -f job.yml -o json", "compile -f job.yml",
        "create -f job.yml --name n --wait -o json", "show n", "show n -o json", "list -o json",
    ):  # fmt: skip
        subprocess.run([sys.executable, "-m", "jobsdk", "job", *words.split()], check=True)
        out, err = capfd.readouterr()
        assert not any(value in out + err for value in VALUES), words
        if "explain -f job.yml" in words:
            assert "MY_PASSWORD" in out
            assert "FROM_SHELL" in out
            assert "***" in out
    assert holders(home) == {"runs/n/logs/node-0/rank-0.log"}  # what the user's own command has written


def test_a_kept_job_asks_for_its_secrets_when_it_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from jobsdk import load_job

    run = MLClient().create_or_update(job()).wait()
    again = load_job(run.folder.path / "job.yml")
    assert again.secrets == ["FROM_SHELL", "MY_PASSWORD"]
    runs = len(list(RunFolder.all()))
    with pytest.raises(JobsdkError, match="MY_PASSWORD, secret in the job, is not set here"):
        MLClient().create_or_update(again)
    assert len(list(RunFolder.all())) == runs
    monkeypatch.setenv("MY_PASSWORD", GIVEN)
    assert MLClient().create_or_update(again).wait().exit_code == 0


def test_the_password_of_a_package_index_is_not_kept(tmp_path: Path) -> None:
    Path("requirements.txt").write_text("--extra-index-url https://me:swordfish@pypi.example/simple\nx\n")
    the_job = command(command="true", environment={"requirements": "requirements.txt"})
    compiled = MLClient().jobs.compile(the_job, build_env=True)
    assert "swordfish" in str(compiled.spec["build_env"])
    assert "me:***@pypi.example" in str(compiled.native)
    assert "swordfish" not in repr(compiled)


def test_nobody_else_reads_the_configuration_of_deepspeed() -> None:
    config = {"train_batch_size": 8, "comet": {"api_key": GIVEN}}
    the_job = command(command="cat $JOBSDK_DEEPSPEED_CONFIG", distribution=DeepSpeedDistribution(config=config))
    run = MLClient().create_or_update(the_job).wait()
    assert run.exit_code == 0, run.report
    assert GIVEN in (run.folder.logs / "node-0/rank-0.log").read_text()
    assert stat.S_IMODE((run.folder.path / "deepspeed.json").stat().st_mode) == 0o600
    assert GIVEN not in (run.folder.path / "plan.json").read_text()


def test_what_a_rank_prints_of_them_before_it_fails_is_not_in_its_report(home: Path) -> None:
    script = "import os\nprint('with', os.environ['FROM_SHELL'])\nraise ValueError('no ' + os.environ['MY_PASSWORD'])\n"
    run = MLClient().jobs.create_or_update(job(script)).wait()
    assert run.report["message"] == "rank 0 on node 0 exited with code 1: ValueError: no ***"
    assert "with ***" in run.report["cause"]["last_lines"]
    assert not {path for path in holders(run.folder.path) if path.endswith((".json", ".jsonl"))}

"""`jobsdk azure-emulator`: starting, pointing at it, running a command with it, and what is left afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jobsdk.cli.emulator import emulator
from jobsdk.emulator.process import read, started
from jobsdk.errors import JobsdkError
from jobsdk.installation import install_command
from tests.bootstrap.runs import wait_for
from tests.emulator.emulated import azurite, emulated, processes_with

#: Of tests that start an emulator of their own.
emulates = pytest.mark.engine("azurite")
JOBSDK = [sys.executable, "-m", "jobsdk", "azure-emulator"]


def ask(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*JOBSDK, *arguments], capture_output=True, text=True, timeout=180, env={**os.environ, **more}
    )


@emulates
def test_env_is_what_a_shell_can_take(tmp_path: Path) -> None:
    folder = tmp_path / "a 'folder' with $HOME \"and\" `more`"
    with emulated(folder=folder) as running:
        printed = ask("env", "--folder", str(folder))
        assert (printed.returncode, printed.stderr) == (0, "")
        shell = subprocess.run(
            ["sh", "-c", 'eval "$1"; exec env -0', "sh", printed.stdout], capture_output=True, text=True, check=True
        )
        found = dict(pair.partition("=")[::2] for pair in shell.stdout.split("\0") if pair)
        assert {name: found.get(name) for name in running.environ} == running.environ
        assert str(folder) in found["REQUESTS_CA_BUNDLE"]
    gone = ask("env", "--folder", str(folder))
    assert (gone.returncode, gone.stderr.strip()) == (
        2, "error: no emulator runs. Fix: jobsdk azure-emulator start",
    )  # fmt: skip


@emulates
def test_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    with emulated(folder=tmp_path / "own"):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "own").iterdir()}
    assert modes["emulator.json"] == modes["running.json"] == modes["key.pem"] == 0o600
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700


@emulates
def test_a_folder_that_others_could_read_is_closed_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    folder.chmod(0o755)
    with emulated(folder=folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)  # as an older version left it
    with emulated(folder=folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    other = tmp_path / "other"
    other.mkdir()
    other.chmod(0o755)
    (other / "notes.txt").touch()
    words = "holds other files, and other users can read it. Fix: give another --folder, or chmod go="
    with pytest.raises(JobsdkError, match=words), emulated(folder=other):
        pass
    assert stat.S_IMODE(other.stat().st_mode) == 0o755


@emulates
def test_start_in_the_foreground_until_it_is_interrupted(home: Path) -> None:
    process = subprocess.Popen(
        [*JOBSDK, "start", "--azurite", azurite()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    first, second = process.stdout.readline(), process.stdout.readline()
    assert first.startswith("A local Azure ML serves through the proxy http://127.0.0.1:")
    assert 'eval "$(jobsdk azure-emulator env)"' in second
    assert "export AZURE_CLIENT_SECRET=" in ask("env").stdout  # the one that was started last
    folder = Path((home / "azure-emulator").read_text())
    process.send_signal(signal.SIGINT)
    assert (process.stdout.read(), process.wait(60)) == ("", 0)
    assert not folder.exists()
    assert ask("env").returncode == 2


@emulates
def test_run_gives_a_command_an_emulator_and_exits_with_its_code(tmp_path: Path) -> None:
    script = "import os, sys; print(os.environ['HTTPS_PROXY'], os.environ['AZURE_CLIENT_ID'] != ''); sys.exit(7)"
    done = ask("run", "--azurite", azurite(), "--", sys.executable, "-c", script)
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("http://127.0.0.1:")
    own = ("--subscription-id", "s", "--resource-group", "g", "--workspace-name", "a name")
    more = (*own, "--fault", '{"status": 500}', "--jobs", "2")
    named = ask("run", "--azurite", azurite(), *more, "--", "printenv", "AZUREML_WORKSPACE_NAME")
    assert (named.returncode, named.stdout) == (0, "a name\n"), named.stderr
    killed = ask("run", "--azurite", azurite(), "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 137
    missing = ask("run", "--azurite", azurite(), "--", str(tmp_path / "nothing"))
    assert (missing.returncode, missing.stderr) == (
        2, f"error: {tmp_path}/nothing cannot be started: No such file or directory\n",
    )  # fmt: skip


@emulates
def test_whoever_runs_it_can_be_killed_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "emulator"
    process = subprocess.Popen(
        [*JOBSDK, "run", "--folder", str(folder), "--azurite", azurite(), "--", "sh", "-c", "read never"],
        stdin=subprocess.PIPE,
    )
    assert process.stdin is not None
    wait_for(lambda: read(folder), 120)
    process.kill()
    process.wait()
    process.stdin.close()
    wait_for(lambda: not processes_with(str(folder)), 60)


@emulates
def test_an_emulator_that_is_killed_takes_azurite_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "emulator"
    with started(folder, ["--azurite", azurite()]) as running:
        assert any("azurite" in line for line in processes_with(str(folder)).values())
        os.kill(running.pid, signal.SIGKILL)
        wait_for(lambda: not processes_with(str(folder)), 60)
    assert read(folder) is None


@emulates
def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    none = ask("start", "--azurite", str(tmp_path / "azurite-blob"))
    assert none.returncode == 2
    assert none.stderr == (
        f"error: there is no {tmp_path}/azurite-blob here, which keeps the emulator's blobs. "
        "Fix: npm install -g azurite@3.35.0, or --azurite PATH\n"
    )
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho out of order\nexit 1\n")
    broken.chmod(0o755)
    azurite()  # with it there is also node
    with pytest.raises(JobsdkError, match=r"did not start: out of order"), started(None, ["--azurite", str(broken)]):
        pass


def test_env_is_that_of_the_last_that_still_runs(home: Path, tmp_path: Path) -> None:
    facts = {"port": 1, "control_key": "", "pid": os.getpid()}
    with contextlib.ExitStack() as stack:
        for name in ("one", "two", "killed"):
            (tmp_path / name).mkdir()
            path = tmp_path / name / "running.json"
            path.write_text(json.dumps({**facts, "environment": {"WHICH": name}}))
            if name != "killed":
                fcntl.flock(stack.enter_context(path.open()), fcntl.LOCK_EX)
        home.mkdir(exist_ok=True)
        (home / "azure-emulator").write_text(
            "\n".join(str(tmp_path / name) for name in ("one", "two", "killed", "gone"))
        )
        assert ask("env").stdout == "export WHICH=two\n"
        (tmp_path / "two/running.json").unlink()
        assert ask("env").stdout == "export WHICH=one\n"


@emulates
def test_a_folder_has_one_emulator_and_one_workspace(tmp_path: Path) -> None:
    own = ("--subscription-id", "s", "--resource-group", "g", "--workspace-name", "w")
    with emulated(*own, folder=tmp_path / "own") as running:
        assert running.environ["AZUREML_WORKSPACE_NAME"] == "w"
        second = ask("start", "--folder", str(tmp_path / "own"), "--azurite", azurite())
        assert (second.returncode, "runs in" in second.stderr) == (2, True)
    other = ask("start", "--folder", str(tmp_path / "own"), "--azurite", azurite(), *own[:-1], "other")
    assert other.returncode == 2
    assert "has the workspace /subscriptions/s/" in other.stderr
    partly = ask("start", "--workspace-name", "w", "--azurite", azurite())
    assert "together" in partly.stderr
    taken = ask("start", "--fault", "{", "--azurite", azurite())
    assert "is no JSON" in taken.stderr


def test_a_process_that_has_its_pid_is_no_emulator(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    (tmp_path / "running.json").write_text("{}")
    assert read(tmp_path) is None
    mine = {"pid": os.getpid(), "start": 1, "port": 1, "control_key": "", "environment": {}}
    (tmp_path / "running.json").write_text(json.dumps(mine))
    assert read(tmp_path) is None


@pytest.mark.parametrize("module", ["azure.storage.blob", "certifi", "starlette", "trustme", "uvicorn"])
def test_a_missing_part_of_the_extra_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for arguments in (["start"], ["run", "true"], ["env"]):
        with pytest.raises(JobsdkError) as error:
            emulator.main(arguments, standalone_mode=False)
        assert str(error.value) == (
            f"azure-emulator needs {module}, which is not installed. Fix: {install_command('emulator')}"
        )

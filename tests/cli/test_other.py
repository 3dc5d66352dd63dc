from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobsdk import __main__
from jobsdk.cli import main
from jobsdk.cli.output import show_table
from jobsdk.cli.records import COLUMNS, DISPENSABLE

from .conftest import ARGV, Jobsdk


def test_help_and_version(jobsdk: Jobsdk) -> None:
    assert "schema" in jobsdk("--help").out
    assert "download" in jobsdk("job", "-h").out
    assert jobsdk("--version").out.startswith("jobsdk ")
    assert "--processes" in jobsdk("run", "--help").out


@pytest.mark.parametrize(
    "words", [["--help"], ["job", "--help"], ["job", "create", "--help"], ["run", "--help"], ["compute", "list"]]
)
def test_nothing_heavy_is_imported_for_little(words: list[str]) -> None:
    program = (
        "import sys\nfrom jobsdk.cli import main\n"
        f"main({words!r})\n"
        "print(sorted({'rich', 'sqlite3', 'yaml', 'asyncio', 'logging', 'importlib.metadata'} & set(sys.modules)))"
    )
    out = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert out.splitlines()[-1] == "[]"


def test_run_imports_neither_rich_nor_sqlite_before_the_job_is_started() -> None:
    program = (
        "import sys\nfrom jobsdk.compute import supervisor\nstart = supervisor.start\n"
        "def started(*given):\n"
        "    print(sorted({'rich', 'sqlite3', 'yaml', 'logging', 'subprocess'} & set(sys.modules)), flush=True)\n"
        "    return start(*given)\n"
        "supervisor.start = started\nfrom jobsdk.cli import main\nsys.exit(main(['run', 'true']))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"


def test_compute_list_and_show(jobsdk: Jobsdk, work: Path) -> None:
    (work / "computes.yml").write_text("default: twin\ncomputes: {twin: {type: local}}\n")
    rows = [line.split() for line in jobsdk("compute", "list").out.splitlines()]
    assert rows == [
        ["NAME", "TYPE", "DEFAULT", "FILE"],
        ["local", "local"],
        ["twin", "local", "yes", str(work / "computes.yml")],
    ]
    assert json.loads(jobsdk("compute", "show", "twin", "-o", "json").out)["default"] is True
    assert jobsdk("run", "true").code == 0
    assert json.loads(jobsdk("job", "list", "-o", "json").out)[0]["compute"] == "twin"


def test_schema(jobsdk: Jobsdk) -> None:
    schema = json.loads(jobsdk("schema").out)
    assert "command" in json.dumps(schema["properties"])


@pytest.mark.parametrize(("shell", "part"), [("bash", "complete"), ("zsh", "#compdef jobsdk"), ("fish", "complete")])
def test_completion_scripts(jobsdk: Jobsdk, shell: str, part: str) -> None:
    done = jobsdk("completion", shell)
    assert done.code == 0
    assert part in done.out


def test_words_and_run_names_are_completed(jobsdk: Jobsdk, home: Path, work: Path) -> None:
    (home / "runs" / "calm_otter").mkdir(parents=True)

    def completed(*words: str) -> list[str]:
        environment = {
            **os.environ,
            "_JOBSDK_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("jobsdk", *words)),
            "COMP_CWORD": str(len(words)),
        }
        program = "import sys; from jobsdk.cli import main; sys.exit(main())"
        out = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
        )
        return [line.partition(",")[2] for line in out.stdout.splitlines()]

    assert completed("job", "str") == ["stream"]
    assert completed("job", "stream", "ca") == ["calm_otter"]
    assert completed("job", "list", "--status", "c") == ["CancelRequested", "Completed", "Canceled"]
    assert completed("compute", "add", "x", "--type", "s") == ["slurm", "spark", "ssh"]
    assert completed("compute", "add", "x", "--type", "slurm", "--set", "part") == ["partition="]
    (work / "computes.yml").write_text("computes: {cluster: {type: slurm}}\n")
    assert completed("run", "--compute", "clu") == ["cluster"]
    assert completed("compute", "check", "") == ["local", "cluster"]
    assert completed("compute", "machines", "standard_nd96amsr") == ["Standard_ND96amsr_A100_v4"]
    assert completed("job", "create", "--set", "resources.inst") == [
        "resources.instance_count=", "resources.instance_type=",
    ]  # fmt: skip
    assert "distribution.process_count_per_instance=" in completed("run", "--set", "distribution.")
    assert completed("job", "update", "--set", "ta") == ["tags="]
    (work / "computes.yml").write_text("computes: [")
    assert not any(completed("run", "--compute", "clu"))


def test_a_reader_that_leaves_is_no_error() -> None:
    process = subprocess.Popen([*ARGV, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(200) in (0, 141)


def test_ctrl_c_before_the_command_line_has_been_read_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("jobsdk.cli.main", interrupted)
    assert __main__.main() == 130


@pytest.mark.parametrize("words", [[], ["job"], ["compute"]])
def test_a_group_alone_shows_its_help(jobsdk: Jobsdk, words: list[str]) -> None:
    done = jobsdk(*words)
    assert (done.code, done.err) == (2, "")
    assert done.out.startswith("Usage: jobsdk")


@pytest.mark.parametrize(("width", "columns"), [(200, COLUMNS), (60, ("NAME", "STATUS", "CODE", "TOOK"))])
def test_a_narrow_terminal_gets_fewer_columns_but_whole_ones(
    width: int, columns: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    name = "plucky_tortoise_0123456789"
    cells = (
        name,
        "",
        "CancelRequested",
        "",
        "an-experiment",
        "local",
        "2",
        "4",
        "me",
        "2026-01-01",
        "1 s",
        "3 s ago",
        "",
    )
    show_table(COLUMNS, [cells], DISPENSABLE)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    head, _, row = (line for line in plain.splitlines() if line.strip())
    assert tuple(re.split("  +", head.strip())) == columns
    assert name in row
    assert "CancelRequested" in row


def test_a_type_that_does_not_exist_is_marked(jobsdk: Jobsdk, work: Path) -> None:
    (work / "computes.yml").write_text("computes: {bad: {type: slrum}}\n")
    assert "slrum (no such type)" in jobsdk("compute", "list").out


def test_a_full_disk_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("jobsdk.client.operations.JobOperations.get", full)
    assert main(["job", "show", "x"]) == 2
    said = capsys.readouterr().err
    assert said.endswith(
        "runs: No space left on device. Fix: delete runs (jobsdk prune), or set JOBSDK_HOME elsewhere\n"
    )


def test_a_default_that_does_not_exist_is_listed_as_such(jobsdk: Jobsdk, work: Path) -> None:
    (work / "computes.yml").write_text("default: nope\n")
    rows = [line.split(None, 2) for line in jobsdk("compute", "list").out.splitlines()]
    assert rows[2] == ["nope", "not", f"configured  yes      {work / 'computes.yml'}"]
    done = jobsdk("run", "true")
    assert (done.code, "the default in" in done.err, "?." in done.err) == (2, True, False)

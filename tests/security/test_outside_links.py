"""A symbolic link in the code folder takes no file from elsewhere along in silence."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobsdk import MLClient, ValidationError, command, function
from jobsdk.job.command import CommandJob


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Five links that lead out, and some that do not."""
    folder, other = tmp_path / "code", tmp_path / "other"
    (folder / "pkg").mkdir(parents=True)
    other.mkdir()
    (folder / "train.py").write_text("")
    for number in range(4):
        (other / f"{number}.txt").write_text("of others")
        (folder / f"pkg/{number}.txt").symlink_to(other / f"{number}.txt")
    (other / "again").symlink_to(tmp_path)  # within what a link leads to, nothing more is said
    (folder / "all").symlink_to("../other")
    (folder / "inside.py").symlink_to("train.py")
    (folder / "gone").symlink_to("nowhere")
    (folder / "ignored").symlink_to(other)
    (folder / ".amlignore").write_text("ignored\n")
    return folder


def submit(job: object, **options: object) -> list[str]:
    told: list[str] = []
    MLClient().jobs.create_or_update(job, warn=told.append, **options).wait()  # type: ignore[arg-type]
    return told


def returns() -> int:
    return 1


JOBS: list[Callable[[Path], object]] = [
    lambda code: command(command="true", code=code),
    lambda code: function(returns, code=code),
]


@pytest.mark.parametrize("make", JOBS, ids=["command", "function"])
def test_they_are_named_once(make: Callable[[Path], object], code: Path) -> None:
    told = submit(make(code))
    (text,) = [one for one in told if "link" in one]
    assert re.search(
        r": all -> \S+/other, pkg/0\.txt -> \S+/other/0\.txt, pkg/1\.txt -> \S+ and 2 more; they are", text
    )
    assert text.startswith("code: 5 links lead out of the code folder: ")
    assert text.endswith("Fix: leave them out with .amlignore, or refuse them with refuse_outside_links")


@pytest.mark.parametrize("make", JOBS, ids=["command", "function"])
def test_they_are_refused_where_that_is_asked_for(make: Callable[[Path], object], code: Path, home: Path) -> None:
    with pytest.raises(ValidationError, match="code: 5 links lead out of the code folder"):
        submit(make(code), refuse_outside_links=True)
    (home / "config/jobsdk").mkdir(parents=True)
    text = "computes: {local: {type: local, refuse_outside_links: true}}"
    (home / "config/jobsdk/computes.yml").write_text(text)
    with pytest.raises(ValidationError, match=r"pkg/1\.txt .* and 2 more\. Fix: copy"):
        submit(make(code))
    assert not (home / "runs").exists()


def test_the_command_line_refuses_them(code: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yml").write_text("command: cat all/0.txt\ncode: code\n")
    argv = [sys.executable, "-m", "jobsdk", "job", "create", "--stream", "-f", str(tmp_path / "job.yml")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "of others" in done.stdout
    assert done.stderr.count("5 links lead out of the code folder") == 1
    done = subprocess.run([*argv, "--refuse-outside-links"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "job.yml:2:7: error: code: 5 links lead out of the code folder" in done.stderr


def test_one_and_none(code: Path) -> None:
    for link in (*code.glob("pkg/[0-2].txt"), code / "all"):
        link.unlink()
    left_out, text = submit(command(command="true", code=code))
    assert left_out == "code: left out: ignored/ (.amlignore:1)"
    assert text.startswith("code: 1 link leads out of the code folder: pkg/3.txt -> ")
    (code / "pkg/3.txt").unlink()
    assert submit(command(command="true", code=code), refuse_outside_links=True) == [left_out]


def test_in_place_nothing_is_sent(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job: CommandJob = command(command="true", code=code)
    assert submit(job, in_place=True, refuse_outside_links=True) == []

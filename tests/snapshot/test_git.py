"""Which commit code is of, asked of real repositories."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from jobsdk.snapshot.git import Commit, commit_of

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    (folder / "src/train.py").write_text("print(1)\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def test_a_clean_commit_is_found_from_a_folder_within_and_from_a_file(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    expected = Commit(head, "main", False)
    assert commit_of(repository / "src") == commit_of(repository / "src/train.py") == expected
    assert str(expected) == f"{head[:12]}, on main"


def test_changes_of_tracked_files_are_said_and_others_are_not(repository: Path) -> None:
    (repository / "notes.txt").write_text("x")
    commit = commit_of(repository)
    assert commit is not None
    assert not commit.is_dirty
    (repository / "src/train.py").write_text("print(2)\n")
    commit = commit_of(repository)
    assert commit is not None
    assert commit.is_dirty
    assert str(commit).endswith(", on main, modified")


def test_a_detached_head_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    commit = commit_of(repository)
    assert commit is not None
    assert commit.branch is None


def test_without_a_commit_or_a_repository_or_time_nothing_is_said(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commit_of(tmp_path) is None
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert commit_of(empty) is None
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    assert commit_of(repository, 0.1) is None

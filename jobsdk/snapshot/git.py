"""Which commit the code of a job is, asked of git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

#: Seconds that git may take; what takes longer is left out.
PATIENCE_S = 10.0


class Commit(NamedTuple):
    """The commit that is checked out; `is_dirty`: files that git tracks differ from it. No branch: a detached HEAD."""

    commit: str
    branch: str | None
    is_dirty: bool

    def __str__(self) -> str:
        words = [self.commit[:12], *([f"on {self.branch}"] if self.branch else []), *(["modified"] * self.is_dirty)]
        return ", ".join(words)


def commit_of(folder: Path, seconds: float = 2.0) -> Commit | None:
    """The commit of the code in a folder (or of a file's folder); None without a repository or commit, without git, or
    if git takes longer than `seconds`."""
    folder = folder if folder.is_dir() else folder.parent
    if not is_versioned(folder):
        return None
    text = run_git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no", seconds=seconds)
    lines = (text or "").splitlines()
    heads = dict(line[len("# branch.") :].split(" ", 1) for line in lines if line.startswith("# branch."))
    if heads.get("oid", "(initial)") == "(initial)":
        return None
    branch = None if heads.get("head") == "(detached)" else heads.get("head")
    return Commit(heads["oid"], branch, any(not line.startswith("#") for line in lines))


def is_versioned(folder: Path) -> bool:
    """Whether a .git is in the folder or above it."""
    above = folder.resolve()
    return any((one / ".git").exists() for one in (above, *above.parents))


def run_git(folder: Path, *args: str, seconds: float = PATIENCE_S) -> str | None:
    """What git prints, or None if it fails or is not installed. It writes nothing, and asks nobody."""
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ("git", *args),
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ARGV = [sys.executable, "-m", "jobsdk"]


class Result:
    """What a finished command gave."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n{self.out}---\n{self.err}"


Jobsdk = Callable[..., Result]


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a working directory of its own, with a job that exits with its input `code`."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])))
    (folder / "job.yml").write_text(
        "command: echo rank $RANK; exit ${{inputs.code}}\n"
        "inputs: {code: 0}\n"
        "distribution: {type: pytorch, process_count_per_instance: 2}\n"
    )
    return folder


@pytest.fixture
def jobsdk() -> Jobsdk:
    """Run the command line in a process of its own."""

    def run(*words: str, **options: Any) -> Result:
        done = subprocess.run([*ARGV, *words], capture_output=True, timeout=280, check=False, **options)
        result = Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
        assert "/jobsdk/cli/" not in result.err, result  # a traceback of ours
        return result

    return run

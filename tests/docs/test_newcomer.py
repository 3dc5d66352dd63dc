"""A newcomer's path but for the packages, which `scripts/newcomer.py` without `--here` fetches as well."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.snippets import ROOT


def test_an_own_job_takes_five_lines_at_most() -> None:
    argv = [sys.executable, str(ROOT / "scripts/newcomer.py"), "--here"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "an own job on 2 nodes x 2 processes" in done.stdout

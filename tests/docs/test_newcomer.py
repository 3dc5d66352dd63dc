"""The README's commands in order. `scripts/newcomer.py` without `--here` also clones, and downloads the packages."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.docs.snippets import ROOT


@pytest.mark.slow
def test_every_command_of_the_readme_works() -> None:
    argv = [sys.executable, str(ROOT / "scripts/newcomer.py"), "--here"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.findall(r"^ +[\d.]+ s  (\S.*)", done.stdout, re.MULTILINE)
    assert len(shown) >= 15, shown
    assert "jobsdk ui" in shown


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 100

"""The page about the emulator: its Python does what it says, its commands are commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import lines, snippets
from tests.emulator.emulated import azurite, emulated

PAGE = "docs/azure-emulator.md"


@pytest.mark.engine("azurite")
def test_the_python_of_the_page(tmp_path: Path) -> None:
    submit, faults = (one.text for one in snippets("python", PAGE))
    with emulated() as running:
        environ = {**os.environ, **running.environ}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", submit], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert "Execution Summary" in done.stdout
    own = subprocess.run(
        [sys.executable, "-c", faults],
        env={**os.environ, "JOBSDK_AZURITE": azurite()},
        capture_output=True,
        text=True,
    )
    assert (own.returncode, own.stdout) == (0, "[]\n"), own.stderr


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "data/mnist").mkdir(parents=True)
    told = [line.text for line in lines(PAGE) if line.text.startswith("jobsdk ")]
    assert [shlex.split(command)[2] for command in told] == ["run", "start", "start", "start"]
    for command in told:
        words = shlex.split(command)
        done = subprocess.run(
            [sys.executable, "-m", *words[:3], "--azurite", "/nowhere/azurite-blob", *words[3:]],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        # Everything about it is right but for Azurite.
        assert done.stderr.startswith("error: there is no /nowhere/azurite-blob here"), command

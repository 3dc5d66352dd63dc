"""Event files of TensorBoard are found by their names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobsdk.runs.folder import RunFolder
from jobsdk.runs.tensorboard import command, folders

FILE = "events.out.tfevents.1234.host"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run that began at 1000 s, in place in `here`."""
    folder = RunFolder(tmp_path / "run")
    for name in ("outputs/default", "code", "logs"):
        (folder.path / name).mkdir(parents=True)
    (tmp_path / "here").mkdir()
    folder.write_json("run.json", {"created": 1000.0})
    folder.write_json("native.json", {"in_place": True, "working_dir": f"{tmp_path}/here"})
    return folder


def put(folder: Path, time: float = 2000.0, name: str = FILE) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    os.utime(folder / name, (time, time))
    return str(folder)


def test_where_they_are_looked_for(run: RunFolder, tmp_path: Path) -> None:
    assert folders(run) == []
    found = [put(run.path / "outputs/default/tb/train"), put(run.path / "code/lightning_logs/version_0")]
    found.append(put(tmp_path / "here/runs/Nov22", name=f"{FILE}.v2"))
    put(tmp_path / "here/runs/older", time=900.0)
    put(tmp_path / "here/.venv/x")
    put(tmp_path / "here/runs/other", name="events.txt")
    (run.path / "code/outputs").symlink_to(run.path / "outputs/default")
    assert folders(run) == sorted(found)


def test_the_command(tmp_path: Path) -> None:
    assert command([]) == ""
    assert command(["/a/b"]) == "tensorboard --logdir /a/b"
    assert command(["/a/b c/d", "/a/b c/e"]) == "tensorboard --logdir '/a/b c'"

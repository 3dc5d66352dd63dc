"""The package as it is built and installed, and what an installation says of itself."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from jobsdk import installation

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("jobsdk", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")


def build(source: Path, target: Path, mask: int) -> dict[str, str]:
    """The digests of the wheel and of the sdist that are built from a folder."""
    target.mkdir()
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    before = os.umask(mask)
    try:
        subprocess.run(words, cwd=source, check=True, capture_output=True)
    finally:
        os.umask(before)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in target.iterdir()}


def contents(wheel: Path) -> dict[str, int]:
    """The checksum of each file but RECORD, whose order is that of the building."""
    with zipfile.ZipFile(wheel) as archive:
        return {one.filename: one.CRC for one in archive.infolist() if not one.filename.endswith("RECORD")}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    leave = shutil.ignore_patterns("__pycache__")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, folder)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    return folder


@pytest.mark.slow
def test_builds_are_reproducible_and_installed_alone_say_their_commit(source: Path, tmp_path: Path) -> None:
    first = build(source, tmp_path / "first", 0o022)
    (source / "jobsdk/home.py").touch()  # another time of change, another umask
    assert build(source, tmp_path / "second", 0o077) == first
    wheel, sdist = sorted(first, key=lambda name: not name.endswith(".whl"))
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(tmp_path / "first" / sdist, unpacked, filter="data")
    (inner,) = unpacked.iterdir()
    build(inner, tmp_path / "third", 0o022)
    assert contents(tmp_path / "third" / wheel) == contents(tmp_path / "first" / wheel)
    assert {"jobsdk/py.typed", "jobsdk/commit.txt"} <= contents(tmp_path / "first" / wheel).keys()
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*pip, str(tmp_path / "first" / wheel)], check=True)
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=source, text=True)[:12]
    environ = {**os.environ, "PYTHONPATH": str(site)}

    def jobsdk(*words: str) -> str:
        return subprocess.check_output([sys.executable, "-m", "jobsdk", *words], cwd=tmp_path, env=environ, text=True)

    assert jobsdk("--version").startswith(f"jobsdk {metadata.version('jobsdk')} (commit {head})\n")
    assert jobsdk("run", "--", "echo", "here") == "[rank 0] here\n"


@pytest.mark.slow
def test_a_users_file_passes_strict_typing(tmp_path: Path) -> None:
    """What a user gets from `jobsdk` has types, and mistakes in their use are found."""
    (tmp_path / "user.py").write_text(
        "from jobsdk import Input, MLClient, PyTorchDistribution, command\n"
        "job = command(\n"
        "    command='python train.py --data ${{inputs.data}}',\n"
        "    code='./src',\n"
        "    inputs={'data': Input(path='data')},\n"
        "    distribution=PyTorchDistribution(process_count_per_instance=2),\n"
        "    instance_count=2,\n"
        ")\n"
        "run = MLClient().jobs.create_or_update(job)\n"
        "run.wait()\n"
        "code: int | None = run.exit_code\n"
        "name: str = run.name\n"
    )
    (tmp_path / "wrong.py").write_text("from jobsdk import command\ncommand(command=1)\ncommand(comand='x')\n")
    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache/user")]
    done = subprocess.run([*words, "user.py", "wrong.py"], cwd=tmp_path, capture_output=True, text=True)
    found = [line.split(": ")[0] for line in done.stdout.splitlines() if ": error: " in line]
    assert found == ["wrong.py:2", "wrong.py:3"], done.stdout + done.stderr


class Distribution:
    """An installation as pip notes it."""

    def __init__(self, origin: dict[str, Any] | None) -> None:
        self.origin = origin
        self.requires = metadata.requires("jobsdk")

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.origin and json.dumps(self.origin)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'jobsdk[ui]'"),
        ({"url": "file://HERE", "dir_info": {}}, "pip install 'HERE[ui]'"),
        ({"url": "file://HERE", "dir_info": {"editable": True}}, "pip install -e 'HERE[ui]'"),
        ({"url": "file:///gone/jobsdk-1.whl", "archive_info": {}}, "pip install 'starlette>=0.40' 'uvicorn>=0.30'"),
        (
            {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'jobsdk[ui] @ git+https://host/x.git@abc'",
        ),
    ],
)
def test_an_extra_is_added_from_where_jobsdk_came(
    origin: dict[str, Any] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Distribution(origin and {**origin, "url": origin["url"].replace("HERE", str(tmp_path))})
    monkeypatch.setattr(metadata, "distribution", lambda name: found)
    assert installation.install_command("ui") == command.replace("HERE", str(tmp_path))


def test_extras_are_those_of_users_with_what_each_needs() -> None:
    assert installation.extras()["ui"] is True
    assert not {"dev", "docs", "bench"} & installation.extras().keys()
    emulator = installation.requirements("emulator")
    assert any(one.startswith("azure-ai-ml") for one in emulator)
    assert any(one.startswith("uvicorn") for one in emulator)


def test_without_metadata_there_are_no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", missing)
    monkeypatch.setattr(metadata, "distribution", missing)
    assert installation.extras() == {}
    assert installation.install_command("ui") == "pip install 'jobsdk[ui]'"

"""The .pyz: the same bytes always, small, and able to run a job on every Python from 3.8."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from jobsdk.bootstrap import archive
from tests.bootstrap.runs import LocalRun, plan


@functools.lru_cache  # three files ask while tests are collected
def interpreters() -> list[str]:
    """One interpreter for each minor version from 3.8 that is installed, by running what is found."""
    places = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin"))
    places += [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]  # where pyenv's slow shims may be
    found: dict[tuple[int, int], str] = {sys.version_info[:2]: sys.executable}
    for candidate in (path for place in places for path in sorted(place.glob("python3.*"))):
        named = re.fullmatch(r"python3\.(\d+)", candidate.name)
        if not named or int(named[1]) < 8 or (3, int(named[1])) in found:
            continue
        code = "import sys; print(*sys.version_info[:2])"
        asked = subprocess.run([str(candidate), "-c", code], capture_output=True, text=True, check=False)
        if asked.stdout.split() == candidate.name[len("python") :].split("."):
            found[3, int(named[1])] = str(candidate)
    return [found[version] for version in sorted(found)]


def test_the_same_bytes_from_another_folder_at_another_time(tmp_path: Path) -> None:
    package = Path(archive.__file__).parent
    copy = tmp_path / "elsewhere" / "bootstrap"
    shutil.copytree(package, copy)
    shutil.copytree(package.parent / "train", copy.parent / "train")
    for path in copy.glob("*.py"):
        os.utime(path, (1, 1))
    code = "import sys; from bootstrap.archive import build; sys.stdout.buffer.write(build())"
    other = subprocess.run([sys.executable, "-c", code], cwd=copy.parent, capture_output=True, check=True).stdout
    assert other == archive.build()


def test_a_few_tens_of_kilobytes_of_standard_library_code() -> None:
    content = archive.build()
    assert len(content) < 304_000
    modules = set(zipfile.ZipFile(BytesIO(content)).namelist())
    assert "__main__.py" in modules
    assert "jobsdk_bootstrap/distributions/contract.py" in modules
    assert "jobsdk_bootstrap/archive.py" not in modules
    assert "jobsdk_bootstrap/hangs/helpers/context.py" in modules


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: Path(path).name + "-" + Path(path).parts[-3])
def test_runs_a_job_on(python: str, tmp_path: Path) -> None:
    pyz = tmp_path / "job.pyz"
    pyz.write_bytes(archive.build())
    argv = [python, "-S", "-E", str(pyz), "local", str(tmp_path / "r")]
    run = LocalRun(tmp_path / "r", plan("echo $RANK; [ $RANK = 3 ] && exit 6; exec sleep 600"), argv=argv)
    assert run.wait() == 6
    assert run.log(3) == "3\n"


def test_wrong_usage_is_one_line_and_not_a_traceback(tmp_path: Path) -> None:
    pyz = tmp_path / "job.pyz"
    pyz.write_bytes(archive.build())
    wrong = subprocess.run([sys.executable, str(pyz), "nod"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 64
    assert wrong.stderr.startswith("usage: ")
    lost = subprocess.run(
        [sys.executable, str(pyz), "node", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert lost.returncode == 78
    assert "JOBSDK_NODE_RANK" in lost.stderr

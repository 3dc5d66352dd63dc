"""The .pyz: the same bytes always, small, and able to run a job on every Python from 3.8."""

from __future__ import annotations

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


def _interpreters() -> list[str]:
    """One interpreter for each minor version from 3.8 that is installed, by running what is found."""
    places = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    places += Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin")
    candidates = {
        str(path) for place in places for path in place.glob("python3.*") if re.fullmatch(r"python3\.\d+", path.name)
    }
    found: dict[tuple[int, int], str] = {sys.version_info[:2]: sys.executable}
    for candidate in sorted(candidates):
        code = "import sys; print(*sys.version_info[:2])"
        answer = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False).stdout.split()
        if len(answer) == 2 and (version := (int(answer[0]), int(answer[1]))) >= (3, 8):
            found.setdefault(version, candidate)
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
    assert len(content) < 235_000
    modules = set(zipfile.ZipFile(BytesIO(content)).namelist())
    assert "__main__.py" in modules
    assert "jobsdk_bootstrap/contract.py" in modules
    assert "jobsdk_bootstrap/archive.py" not in modules
    assert "jobsdk_bootstrap/helpers/context.py" in modules


@pytest.mark.parametrize("python", _interpreters(), ids=lambda path: Path(path).name + "-" + Path(path).parts[-3])
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

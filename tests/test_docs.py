"""Every snippet of the README, and every `jobsdk` command of it and of docs/, run as a reader would."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = """import os, sys
print("epochs", sys.argv[2], "rank", os.environ["RANK"], flush=True)
os.makedirs("outputs", exist_ok=True)
"""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [line.partition("  #")[0].strip() for line in lines if line.startswith("jobsdk ")]


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder as the README supposes it: the code in src/ (and here, for `jobsdk run`), the job in job.yml."""
    (tmp_path / "src").mkdir()
    for path in (tmp_path / "src/train.py", tmp_path / "train.py"):
        path.write_text(SCRIPT)
    yaml, _ = blocks("README.md", "yaml")
    (tmp_path / "job.yml").write_text(yaml)
    return tmp_path


def test_the_python_job_of_the_readme(project: Path) -> None:
    (code,) = blocks("README.md", "python")
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"epochs 3 rank (\d)", done.stdout)) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("command", [one for one in commands("README.md") if "gpu-cluster" not in one])  # has none here
def test_the_commands_of_the_readme(command: str, project: Path) -> None:
    done = shell(command, project)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["jobs", "running", "computes", "network", "doctor"])
def test_the_commands_of_the_docs(page: str, project: Path) -> None:
    shell("jobsdk job create -f job.yml --name NAME --wait", project).check_returncode()
    for command in commands(f"docs/{page}.md"):
        done = shell(command, project)
        # Some go on with a run of their own; none may be refused as wrong usage.
        assert done.returncode == 0, f"{shlex.quote(command)}: {done.stderr}"
    shell("for run in $(jobsdk job list -o json | grep -o '\"name\": \"[^\"]*\"' | cut -d'\"' -f4); do "
          "jobsdk job wait $run; done", project)  # fmt: skip


def test_the_python_of_the_docs(project: Path) -> None:
    (code,) = blocks("docs/jobs.md", "python")
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (project / "copy.yml").exists()


def test_what_the_page_of_failures_shows(project: Path) -> None:
    (fields,) = blocks("docs/failures.md", "yaml")
    (project / "again.yml").write_text("command: exit 3\nname: again\n" + fields)
    done = shell("jobsdk job validate -f again.yml", project)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "again.yml: valid\n"
    done = shell("jobsdk job create -f again.yml --wait", project)  # 3 is not in its retry_on
    assert done.returncode == 3
    assert "nothing in retry_on fits it" in done.stderr
    (code,) = blocks("docs/failures.md", "python")
    code = "from jobsdk import MLClient\nrun = MLClient().jobs.get('again')\n" + code
    code = code.replace("failed.report[", "print(failed.report[", 1).replace('["class"]', '["class"])', 1)
    kind = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=False)
    assert kind.stdout == "exit\n", kind.stderr
    stacks = shell("jobsdk job stacks again", project)
    assert stacks.returncode == 2
    assert "has ended" in stacks.stderr


def test_the_archive_of_the_docs_is_built_as_it_says(project: Path) -> None:
    build = next(line for block in blocks("docs/bootstrap.md", "sh") for line in block.splitlines() if "build" in line)
    done = shell(build.replace("python", shlex.quote(sys.executable), 1), project)
    assert done.returncode == 0, done.stderr
    usage = shell(f"{shlex.quote(sys.executable)} job.pyz", project)
    assert usage.returncode == 64

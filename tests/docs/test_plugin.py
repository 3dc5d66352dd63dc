"""The compute of docs/plugin.md, installed as its users would, and jobs on it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.bootstrap.runs import events_in, wait_for
from tests.docs.snippets import ROOT, snippets


class Lab(NamedTuple):
    """A folder of tickets, a project with a job for it, and where the package is installed."""

    spool: Path
    project: Path
    packages: Path

    def jobsdk(self, *words: str, code: int = 0) -> str:
        environ = {**os.environ, "PYTHONPATH": str(self.packages)}
        done = subprocess.run(
            ["jobsdk", *words], cwd=self.project, capture_output=True, text=True, check=False, env=environ
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    def events(self, name: str) -> list[str]:
        return [event["event"] for event in events_in(Path(os.environ["JOBSDK_HOME"]) / "runs" / name)]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    source = shutil.copytree(ROOT / "src_examples/compute_plugin", folder / "source")  # pip builds in it
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*argv, "--target", str(folder / "site"), str(source)], check=True)
    return folder / "site"


@pytest.fixture
def lab(packages: Path, tmp_path: Path) -> Lab:
    spool, project = tmp_path / "spool", tmp_path / "project"
    spool.mkdir()
    (project / "src").mkdir(parents=True)
    (project / "src/train.py").write_text(
        "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"
        "open('outputs/' + os.environ['RANK'], 'w').close()\n"
    )
    (project / "job.yml").write_text(
        "command: python train.py\ncode: src\ncompute: lab\nresources: {instance_count: 2}\n"
        "distribution: {type: pytorch, process_count_per_instance: 2}\n"
    )
    (project / "computes.yml").write_text(f"computes:\n  lab: {{type: spool, folder: {spool}}}\n")
    return Lab(spool, project, packages)


@pytest.fixture
def workers(lab: Lab) -> Iterator[list[subprocess.Popen[bytes]]]:
    argv = [sys.executable, "-m", "jobsdk_spool.worker", str(lab.spool), "127.0.0.1"]
    started = [subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(lab.packages)}) for _ in range(2)]
    yield started
    for one in started:
        one.send_signal(signal.SIGTERM)
        one.wait(200)


@pytest.mark.slow  # pip builds the package
def test_a_job_of_two_nodes_runs_on_two_workers(lab: Lab, workers: list[subprocess.Popen[bytes]]) -> None:
    wait_for(lambda: len(list(lab.spool.glob("*.worker"))) == 2)
    assert lab.jobsdk("compute", "check", "lab").count("ok ") == 2
    out = lab.jobsdk("job", "create", "-f", "job.yml", "--name", "one", "--stream")
    assert sorted(out.splitlines()) == [f"[rank {rank}] rank {rank} of 4" for rank in range(4)]
    kept = Path(os.environ["JOBSDK_HOME"]) / "runs/one/outputs/default"
    assert sorted(os.listdir(kept)) == ["0", "1", "2", "3"]
    wait_for(lambda: not list(lab.spool.glob("*.json")))
    lab.jobsdk("job", "create", "-f", "job.yml", "--name", "two", "--set", "command=exit 5", "--wait", code=5)


@pytest.mark.slow  # pip builds the package
def test_a_job_that_no_worker_has_taken_can_be_cancelled(lab: Lab) -> None:
    lab.jobsdk("job", "create", "-f", "job.yml", "--name", "waits")
    assert len(list(lab.spool.glob("waits.*.json"))) == 2
    lab.jobsdk("job", "cancel", "waits")
    lab.jobsdk("job", "wait", "waits", code=130)
    assert not list(lab.spool.glob("*"))


@pytest.mark.slow  # pip builds the package
def test_a_running_job_is_cancelled_by_node_0(lab: Lab, workers: list[subprocess.Popen[bytes]]) -> None:
    lab.jobsdk("job", "create", "-f", "job.yml", "--name", "long", "--set", "command=sleep 600")
    wait_for(lambda: lab.events("long").count("rank_started") == 4)
    lab.jobsdk("job", "cancel", "long")
    lab.jobsdk("job", "wait", "long", code=130)


@pytest.mark.slow  # pip builds the package
def test_a_killed_worker_is_noticed(lab: Lab) -> None:
    argv = [sys.executable, "-m", "jobsdk_spool.worker", str(lab.spool), "127.0.0.1"]
    environ = {**os.environ, "PYTHONPATH": str(lab.packages)}
    worker = subprocess.Popen(argv, env=environ, start_new_session=True)
    lab.jobsdk("job", "create", "-f", "job.yml", "--name", "lost", "--set", "command=sleep 600")
    wait_for(lambda: "bootstrap_up" in lab.events("lost"))  # node 0, which waits for node 1
    os.killpg(worker.pid, signal.SIGKILL)  # with the bootstrap, as when a machine fails
    worker.wait()
    lab.jobsdk("job", "wait", "lost", code=125)
    assert not list(lab.spool.glob("*.json"))


def test_the_page_shows_the_packages_own_entry_point() -> None:
    (shown,) = snippets("toml", "docs/plugin.md")
    assert shown.text in (ROOT / "src_examples/compute_plugin/pyproject.toml").read_text()


@pytest.mark.slow  # pip builds the package
def test_what_cannot_be_is_told(lab: Lab) -> None:
    (lab.project / "computes.yml").write_text("computes: {lab: {type: spool, foldr: /x}}")
    lab.jobsdk("job", "create", "-f", "job.yml", code=2)
    (lab.project / "computes.yml").write_text("computes: {lab: {type: spool, folder: /nowhere}}")
    lab.jobsdk("job", "create", "-f", "job.yml", code=2)

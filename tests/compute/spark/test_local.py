"""Jobs in a session whose tasks run in its own process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk import JobFailed, MLClient, command
from jobsdk.client.run import Run
from jobsdk.errors import ComputeError
from tests.bootstrap.runs import wait_for
from tests.compute.spark.cluster import LOOPBACK, opened

pytestmark = [pytest.mark.engine("java"), pytest.mark.framework("spark")]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    script = tmp_path_factory.mktemp("gpus") / "gpus.sh"
    script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["GPU-a", "GPU-b"]}\'\n')
    script.chmod(0o755)
    own = {"spark.driver.resource.gpu.amount": 2, "spark.driver.resource.gpu.discoveryScript": str(script)}
    with opened("local[2]", {**LOOPBACK, **own}, sys.executable) as made:
        yield made


@pytest.fixture(autouse=True)
def _configured(work: Path) -> None:
    (work / "computes.yml").write_text(json.dumps({"computes": {"here": {"type": "spark"}}}))


def submit(text: str, nodes: int, **fields: Any) -> Run:
    return MLClient().jobs.create_or_update(command(command=text, compute="here", instance_count=nodes, **fields))


def test_without_a_session_and_a_cluster_there_is_no_run() -> None:
    with pytest.raises(ComputeError, match="this process has no Spark session open"):
        submit("true", 1)
    assert MLClient().jobs.list() == []


def test_a_password_in_conf_reaches_the_session_and_is_shown_nowhere(work: Path) -> None:
    conf = {"spark.executorEnv.DB_PASSWORD": "correct-horse", "spark.ui.enabled": False, **LOOPBACK}
    own = {"type": "spark", "master": "local[2]", "conf": conf}
    (work / "computes.yml").write_text(json.dumps({"computes": {"here": own}}))
    (work / "look.py").write_text(
        "import os, pathlib\n"
        "password = os.environ['DB_PASSWORD'].encode()\n"
        "lines = [path.read_bytes() for path in pathlib.Path('/proc').glob('[0-9]*/cmdline')]\n"
        "print(len(password), any(b'java' in line and b'local[2]' in line for line in lines),\n"
        "      sum(password in line for line in lines))\n"
    )
    run = submit(f"exec {sys.executable} look.py", 1, code=".")
    run.result(200)
    assert (run.folder.path / "logs/node-0/rank-0.log").read_text() == "13 True 0\n"
    assert "correct-horse" not in (run.folder.path / "native.json").read_text()
    shown = MLClient().jobs.compile(command(command="true", compute="here")).spec["session"]["conf"]
    assert (shown["spark.executorEnv.DB_PASSWORD"], shown["spark.ui.enabled"]) == ("***", "false")


@pytest.mark.usefixtures("session")
def test_the_drivers_gpus_are_shared_out() -> None:
    run = submit('echo "$CUDA_VISIBLE_DEVICES" > outputs/$RANK', 2, gpus_per_process=1)
    run.result(200)
    masks = {path.name: path.read_text() for path in (run.folder.path / "outputs/default").iterdir()}
    assert masks == {"0": "GPU-a\n", "1": "GPU-b\n"}
    run = submit("true", 2, gpus_per_process=2)
    with pytest.raises(JobFailed, match=r"node 1 .* takes 2 GPUs, and Spark gives its task 0"):
        run.result(200)


@pytest.mark.usefixtures("session")
def test_what_never_fits_is_told_at_once() -> None:
    run = submit("true", 3)
    with pytest.raises(JobFailed, match="Spark can run 2 tasks at once, and the job has 3 nodes"):
        run.result(200)


def test_a_session_that_is_stopped_takes_its_runs_with_it(session: Any) -> None:
    run = submit("exec sleep 600", 2)
    wait_for(lambda: run.status == "Running")
    session.stop()
    run.wait(200)
    assert run.status == "Lost"
    assert "the Spark session was stopped" in str(run.folder.recorded_state().message)

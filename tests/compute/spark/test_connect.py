"""Jobs through a real Spark Connect server: from a process of their own, and from one that has a session open."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsdk import MLClient, PyTorchDistribution, command
from jobsdk import compute as computes
from jobsdk.bootstrap.system import network
from tests.bootstrap.runs import wait_for
from tests.compute.collectives import check, job
from tests.compute.spark.cluster import LOOPBACK, spark_home, stop

pytestmark = [pytest.mark.engine("java"), pytest.mark.framework("spark")]

_IN_A_SESSION = """
import sys
from pyspark.sql import SparkSession
from jobsdk import JobFailed, MLClient, command
session = SparkSession.builder.remote(sys.argv[1]).create()
run = MLClient().jobs.create_or_update(command(command="exit 7", compute="open", instance_count=2))
try:
    run.result(200)
except JobFailed as error:
    assert run.folder.owner()[0] == __import__("os").getpid()
    print(run.exit_code, error)
session.stop()
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with four task slots."""
    home, folder = spark_home(), tmp_path_factory.mktemp("connect")
    (port,) = network.free_ports(1)
    conf = {**LOOPBACK, "spark.connect.grpc.binding.port": port, "spark.connect.grpc.binding.address": "127.0.0.1"}
    given = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    argv = [
        f"{home}/bin/spark-submit", "--master", "local[4]", *given, "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ]  # fmt: skip
    own = {"SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **own}
        )

    def listens() -> bool:
        assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(listens)
        yield f"sc://127.0.0.1:{port}"
    finally:
        stop(server)


@pytest.fixture(autouse=True)
def _configured(work: Path, url: str) -> None:
    both = {"server": {"type": "spark", "remote": url}, "open": {"type": "spark"}}
    (work / "computes.yml").write_text(json.dumps({"computes": both}))


def test_a_collective_runs() -> None:
    check(job("sockets", 2, "server"))


def test_it_is_cancelled() -> None:
    distribution = PyTorchDistribution(process_count_per_instance=2)
    job = command(command="exec sleep 600", compute="server", instance_count=2, distribution=distribution)
    run = MLClient().jobs.create_or_update(job)
    wait_for(lambda: run.status == "Running")
    run.cancel().wait(200)
    assert (run.status, run.folder.recorded_state().exit_code) == ("Canceled", 130)


def test_a_session_that_is_open_is_used(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", _IN_A_SESSION, url], capture_output=True, text=True, timeout=250)
    assert done.stdout.startswith("7 "), done.stdout + done.stderr


def test_the_check_says_what_there_is() -> None:
    argv = [sys.executable, "-m", "jobsdk", "compute", "check", "server"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "session: can be made: Spark Connect " in done.stdout


def test_a_server_that_is_not_there_is_told() -> None:
    (found,) = computes.type_of("spark")("nobody", {"remote": "sc://127.0.0.1:9"}).check()
    assert (found.what, found.is_well) == ("session", False)
    assert found.found == "sc://127.0.0.1:9 cannot be reached: Connection refused"

"""Sessions of real Spark, one after the other in one JVM, and runs of both classes that several tests look at."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: What the driver's GPUs are called.
GPUS = ("3", "5")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """What all of the module runs in: loopback, a folder of its own, and a jobsdk home for what fixtures run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))  # PySpark's own class leaves files there
        patch.setattr(tempfile, "tempdir", None)  # it is looked up anew
        for name in ("CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"):
            patch.delenv(name, raising=False)
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        yield patch


def _session(**conf: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    fixed = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.artifact.isolation.enabled": "false",
    }
    for name, value in {**fixed, **conf}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@pytest.fixture(scope="module")
def java(quiet: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends the JVM when all is done."""
    yield
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()  # by which it knows that it is not needed any more
    with contextlib.suppress(subprocess.TimeoutExpired):
        gateway.proc.wait(20)
    if gateway.proc.poll() is None:
        gateway.proc.kill()
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="module")
def spark(java: None) -> Any:
    """The session of most tests. It has no GPUs."""
    return _session()


@pytest.fixture(scope="module")
def stopped(spark: Any) -> None:
    """From here on there is no session."""
    spark.stop()


@pytest.fixture(scope="module")
def spark_with_gpus(stopped: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A session whose driver has two GPUs."""
    script = tmp_path_factory.mktemp("gpus") / "discover.sh"
    script.write_text(f'#!/bin/sh\necho \'{{"name": "gpu", "addresses": ["{GPUS[0]}", "{GPUS[1]}"]}}\'\n')
    script.chmod(0o755)
    amount, discovery = "spark.driver.resource.gpu.amount", "spark.driver.resource.gpu.discoveryScript"
    return _session(**{amount: str(len(GPUS)), discovery: str(script)})


class Outcome:
    """What one call of `run` gave: its value or what it raised, and what was on stdout, each line with a mark."""

    def __init__(self, call: Callable[[], Any], folder: Path, marks: Callable[[str], str] = str) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        out = _Out(marks)
        before = os.getcwd()
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(out):
                self.value = call()
        except (Exception, KeyboardInterrupt) as error:
            self.error = error
        finally:
            os.chdir(before)
        self.lines = "".join(out.pieces).splitlines()
        self.marks = out.marks


class _Out:
    """stdout as a notebook has it: text only. Tells each piece as it comes."""

    encoding = "utf-8"

    def __init__(self, tell: Callable[[str], str]) -> None:
        self.pieces: list[str] = []
        self.marks: list[str] = []
        self._tell = tell

    def write(self, text: str) -> int:
        self.pieces.append(text)
        self.marks.append(self._tell(text))
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

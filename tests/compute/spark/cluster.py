"""A standalone cluster of Spark on loopback: a master, and workers with GPUs that a script makes up."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from jobsdk.compute.spark import settings as spark_settings
from tests.bootstrap.runs import wait_for
from tests.needs import needs

#: As devices are called that have no numbers. Each executor gets two of a worker's four.
GPUS = ("GPU-11aa", "GPU-22bb", "MIG-33cc", "GPU-44dd")
_REGISTERED = "Successfully registered with master"
#: What a JVM takes to be up matters here, and not how fast it is after minutes: half the time of a processor.
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
#: Of every session: small, quiet, and to be reached from this machine alone.
LOOPBACK: dict[str, object] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": _JVM,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _JVM,
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
}


def spark_home() -> str:
    """The folder of pyspark, whose jars run on Java."""
    needs("java")
    import pyspark

    return os.path.dirname(str(pyspark.__file__))


def bare_python(folder: Path) -> Path:
    """A Python that has all that this one has, but for jobsdk."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin/python"


class Cluster:
    """Every JVM in a session of its own, ended by `close` with all that it has started."""

    def __init__(self, folder: Path, workers: int = 2, cores: int = 4) -> None:
        self.home = spark_home()
        self.folder = folder
        self.python = bare_python(folder / "python")
        self.temporary = folder / "tmp"  # where the workers and their executors keep temporary files
        self.temporary.mkdir()
        self._started: list[subprocess.Popen[bytes]] = []
        master = self._start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.master = self._said(master, r"Starting Spark master at (spark://\S+)")
        script = folder / "gpus.sh"
        names = ", ".join(f'"{name}"' for name in GPUS)
        script.write_text(f'#!/bin/sh\necho \'{{"name": "gpu", "addresses": [{names}]}}\'\n')
        script.chmod(0o755)
        options = f"-Dspark.worker.resource.gpu.amount={len(GPUS)} -Dspark.worker.resource.gpu.discoveryScript={script}"
        for _ in range(workers):
            argv = ("--host", "127.0.0.1", "--webui-port", "0", "-c", str(cores), "-m", "1g", self.master)
            self._start("Worker", *argv, SPARK_WORKER_OPTS=options)
        for log in folder.glob("Worker-*.log"):
            self._said(log, _REGISTERED)

    def conf(self, cores: int, **more: object) -> dict[str, object]:
        """Settings for a session with so many cores in all, and two GPUs in each executor."""
        return {
            **LOOPBACK,
            "spark.cores.max": cores,
            "spark.pyspark.python": str(self.python),
            "spark.executor.resource.gpu.amount": 2,
            **more,
        }

    def _start(self, kind: str, *argv: str, **variables: str) -> Path:
        log = self.folder / f"{kind}-{len(self._started)}.log"
        work = self.folder / f"{kind}-{len(self._started)}"
        own = {
            "SPARK_HOME": self.home, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_PUBLIC_DNS": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _JVM,
            "SPARK_WORKER_DIR": str(work), "SPARK_LOCAL_DIRS": str(work),
            "TMPDIR": str(self.temporary),
        }  # fmt: skip
        with open(log, "wb") as out:
            self._started.append(
                subprocess.Popen(
                    [f"{self.home}/bin/spark-class", f"org.apache.spark.deploy.{kind.lower()}.{kind}", *argv],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                    env={**os.environ, **own, **variables},
                )
            )  # fmt: skip
        return log

    def _said(self, log: Path, form: str) -> str:
        def found() -> re.Match[str] | None:
            assert all(one.poll() is None for one in self._started), log.read_text()[-3000:]
            return re.search(form, log.read_text())

        match = wait_for(found, 120)
        return match[match.re.groups]

    def executors(self, application: str) -> list[int]:
        """The processes that have tasks of a session; those of one that has ended may still be about to end."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().decode("utf-8", "replace").split("\0")
                if any("CoarseGrainedExecutorBackend" in word for word in words) and application in words:
                    found.append(int(path.parent.name))
        return found

    def close(self) -> None:
        for one in reversed(self._started):
            stop(one)


@contextlib.contextmanager
def opened(master: str, conf: Mapping[str, object], python: str) -> Iterator[Any]:
    """A session of this process in a JVM of its own: the settings of one that there was before would count on."""
    from pyspark.sql import SparkSession

    _end_jvm()
    builder = SparkSession.builder.master(master)
    for name, value in conf.items():
        builder = builder.config(name, spark_settings.text(value))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", python)
        made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    try:
        yield made
    finally:
        made.stop()
        _end_jvm()


def _end_jvm() -> None:
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    assert SparkContext._active_spark_context is None
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a JVM and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()

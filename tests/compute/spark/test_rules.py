"""What is said of settings, of jobs, and of Spark's errors, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from jobsdk import Input, MLClient, MpiDistribution, PyTorchDistribution, command
from jobsdk import compute as computes
from jobsdk.compute.spark import errors as spark_errors
from jobsdk.compute.spark import settings as spark_settings
from jobsdk.compute.spark.stage import ClassicStage
from jobsdk.errors import ComputeError, ValidationError

ENTRY: dict[str, Any] = {"type": "spark", "master": "spark://head:7077"}


@pytest.fixture(autouse=True)
def _configured(work: Path) -> None:
    others = {
        "lake": ENTRY,
        "two": {**ENTRY, "gpus_per_node": 2},
        "dynamic": {**ENTRY, "conf": {"spark.dynamicAllocation.enabled": True}},
        "here": {"type": "spark", "master": "local[2]", "conf": {"spark.task.resource.gpu.amount": 1}},
        "yarn": {"type": "spark", "master": "yarn", "python": "/opt/python", "cpus_per_node": 4},
        "open": {"type": "spark"},
    }
    (work / "computes.yml").write_text(json.dumps({"computes": others}))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"master": "head:7077"}, "master must be a master of Spark such as spark://HOST:7077"),
        ({"remote": "head:15002"}, "remote must be the address of a Spark Connect server"),
        ({"master": "yarn", "remote": "sc://head"}, "master and remote are given: one of both must go"),
        ({"conf": {"executor.memory": "8g"}}, "conf must be a mapping of Spark's settings"),
        ({"conf": {"spark.master": "yarn"}}, "conf has spark.master: set master of the compute"),
        ({"port": 0}, "port must be a number from 1 to 65535"),
        ({"gpus_per_node": True}, "gpus_per_node must be a number of at least 1"),
        ({"mastr": "yarn"}, "did you mean 'master'"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ComputeError, match="compute lake: ") as caught:
        computes.type_of("spark")("lake", settings)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("compute", "fields", "words"),
    [
        ("dynamic", {}, "cannot start all nodes of a job at once (a barrier stage) with dynamic allocation"),
        ("here", {}, "tasks of a local master never start with spark.task.resource.gpu.amount"),
        ("two", {"gpus_per_process": 2}, "each node needs 4 GPUs, and the compute gives it 2"),
        ("lake", {"inputs": {"data": Input(path="azureml:data:1")}}, "can be read only in its cloud"),
        ("lake", {"code": "https://host/code"}, "is not on this machine"),
    ],
)
def test_what_cannot_be_is_refused(compute: str, fields: dict[str, Any], words: str) -> None:
    job = command(command="true", distribution=PyTorchDistribution(process_count_per_instance=2), **fields)
    with pytest.raises(ValidationError) as caught:
        MLClient().jobs.compile(job, compute=compute)
    assert words in str(caught.value)


def test_nothing_is_built_and_nothing_runs_in_place() -> None:
    job = command(command="true", environment={"image": "i"}, compute="lake")
    with pytest.raises(ValidationError, match="cannot be built"):
        MLClient().jobs.compile(job, build_env=True)
    with pytest.raises(ValidationError, match="in this machine's folder"):
        MLClient().jobs.compile(job, in_place=True)
    assert "its executors' Python runs the job" in str(MLClient().jobs.compile(job).warnings[0])


def test_the_native_form_says_what_session_and_stage_there_will_be() -> None:
    job = command(command="true", instance_count=3, compute="yarn", distribution=MpiDistribution())
    compiled = MLClient().jobs.compile(job, name="run")
    assert compiled.spec["session"] == {
        "master": "yarn",
        "conf": {
            "spark.app.name": "jobsdk run",
            "spark.dynamicAllocation.enabled": "false",
            "spark.executor.cores": "4",
            "spark.executor.instances": "3",
            "spark.pyspark.python": "/opt/python",
            "spark.stage.maxConsecutiveAttempts": "1",
            "spark.task.cpus": "4",
            "spark.task.maxFailures": "1",
        },
    }
    text = compiled.compute.native(compiled.spec)
    assert "tasks: 3" in text
    assert "barrier: true" in text
    of_open = MLClient().jobs.compile(job, compute="open").spec
    assert of_open["session"] == "the one that is open in the submitting process"


@pytest.mark.parametrize(
    ("text", "words", "at"),
    [
        (
            "Could not recover from a failed barrier ResultStage. Most recent failure reason: Stage failed because "
            "barrier task ResultTask(5, 0) finished unsuccessfully.\nExecutorLostFailure (executor 0 exited caused by "
            "one of the running tasks) Reason: Command exited with code 137",
            "node 0 (host-a): its executor was lost: Command exited with code 137",
            0,
        ),
        ("Job 3 cancelled because SparkContext was shut down", "the Spark session was stopped", None),
        (
            'java.io.IOException: Cannot run program "python3.99": error=2, No such file or directory',
            "the executors have no python3.99 to run Python tasks with",
            None,
        ),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10", "minor version", None),
        ("[SPARK-24819]: Barrier execution mode does not allow run a barrier stage", "fewer free task slots", None),
        ("[SPARK-24942]: Barrier execution mode does not support dynamic resource", "dynamic allocation", None),
        (
            '    raise ConnectionError("jobsdk: the driver cannot be reached from %s")\n'
            "ConnectionError: jobsdk: the driver cannot be reached from w1: 10.0.0.1 port 99: timed out\n  at x",
            "the driver cannot be reached from w1: 10.0.0.1 port 99: timed out. Fix: set host",
            None,
        ),
        (
            "[INVALID] The number of cores per executor (=1) has to be >= the number of cpus per task = 2.",
            "a node takes 2 cores, and an executor of the session has 1. Fix: a smaller cpus_per_node",
            None,
        ),
        ("something new\n\tat org.apache", "Spark could not run it: RuntimeError: something new", None),
    ],
)
def test_errors_of_spark_are_told_in_plain_words(text: str, words: str, at: int | None) -> None:
    end = spark_errors.ended(RuntimeError(text), {0: "host-a", 1: "host-b"})
    assert words in end.message
    assert end.node == at
    assert len(end.message) <= 400
    assert end.status == ("Lost" if end.failure_class == "node_lost" else "Failed")


def test_a_session_that_another_thread_stops_is_named() -> None:
    """PySpark forgets its JVM in `stop()`; what uses the context then raises AttributeError."""

    class Stopped:
        _jsc: Any = None

        def setJobGroup(self, *_: Any, **__: Any) -> None:
            self._jsc.setJobGroup()

    stage = ClassicStage.__new__(ClassicStage)
    stage._context, stage._group, stage._run = Stopped(), "g", "r"
    with pytest.raises(ComputeError) as raised:
        stage.run(cast("Any", None), 2)
    end = spark_errors.ended(raised.value, {0: "host-a", 1: "host-b"})
    assert (end.status, end.message) == ("Lost", spark_errors.STOPPED)


@pytest.mark.parametrize(
    ("master", "conf", "cores"),
    [
        ("local-cluster[2,3,1024]", {"spark.executor.cores": "8"}, 3),
        ("spark://head:7077", {}, None),
        ("spark://head:7077", {"spark.executor.cores": "4"}, 4),
        ("yarn", {}, 1),
        ("k8s://https://head", {"spark.executor.cores": 2}, 2),
    ],
)
def test_how_many_cores_an_executor_has(master: str, conf: dict[str, Any], cores: int | None) -> None:
    assert spark_settings.cores_of_executor(master, conf) == cores


def test_of_several_nodes_on_a_lost_executor_the_one_that_was_missed_is_named() -> None:
    lost = "ExecutorLostFailure (executor 1 exited) Reason: Command exited with code 137"
    text = f"Stage failed because barrier task ResultTask(0, 2) finished unsuccessfully. {lost}"
    both = {2: "host-b", 3: "host-b"}
    assert spark_errors.ended(RuntimeError(text), both).node == 2
    assert spark_errors.ended(RuntimeError(text), both, 3).node == 3
    assert spark_errors.ended(RuntimeError(text), both, 0).node == 2  # that one has said how it ended

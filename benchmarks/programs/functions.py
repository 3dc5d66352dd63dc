"""From a call to the first line of the function in two processes, by those that can start a function here.

`python functions.py WHERE ROUNDS`, with WHERE one of `here`, `spark` (a local cluster with two executors) and `ray`.
The session is open before; contenders take turns, a first round is not counted unless it is the only one. Prints the
medians as JSON: {figure: {contender: seconds}}. Who is not installed does not take part.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OURS, OF_SPARK, OF_RAY = "jobsdk", "PySpark's TorchDistributor", "Ray Train's TorchTrainer"
BARE, IN_GROUP = "a bare function", "a function in a process group"
Contender = Callable[[Callable[..., Any]], Any]


def _writes_the_clock(folder: str) -> Callable[..., None]:
    """A function within a function travels by value with all of them."""

    def first_line(config: Any = None) -> None:
        import os
        import time

        now = time.time()
        with open(os.path.join(folder, f"clock-{os.getpid()}"), "w") as file:
            file.write(repr(now))

    return first_line


def _first_line(call: Contender) -> float:
    """Seconds from the call to the first line in the process that comes to it first."""
    with tempfile.TemporaryDirectory() as folder:
        function = _writes_the_clock(folder)
        began = time.time()
        call(function)
        clocks = [float(file.read_text()) for file in Path(folder).glob("clock-*")]
    if len(clocks) != 2:
        raise RuntimeError(f"{len(clocks)} of 2 processes wrote their first line")
    return min(clocks) - began


def _trainer(cls: Any, config: Any, **options: Any) -> Contender:
    return lambda function: cls(function, scaling_config=config(num_workers=2), **options).fit()


def _distributor(cls: Any, **options: Any) -> Contender:
    return lambda function: cls(num_processes=2, use_gpu=False, **options).run(function)


@contextlib.contextmanager
def _spark(master: str) -> Iterator[Any]:
    """PySpark's class, with a session of `master`."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.master(master)
    for name, value in {**loopback, "spark.ui.enabled": "false", "spark.executor.memory": "512m"}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.range(2, numPartitions=2).rdd.barrier().mapPartitions(list).collect()  # its workers have started
    try:
        yield TorchDistributor
    finally:
        session.stop()


@contextlib.contextmanager
def _ray() -> Iterator[Contender]:
    """Ray's class, with a session."""
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets are in it: short
    os.environ.update(RAY_TMPDIR=folder, RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
    import ray
    import ray.train
    from ray.train.torch import TorchTrainer

    ray.init(
        address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
        _node_ip_address="127.0.1.1",
    )  # fmt: skip
    try:
        yield _trainer(TorchTrainer, ray.train.ScalingConfig, run_config=ray.train.RunConfig(storage_path=folder))
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def contenders(where: str) -> Iterator[dict[str, dict[str, Contender]]]:
    """By figure and name, ours first."""
    import jobsdk

    with contextlib.ExitStack() as stack:
        if where == "spark":
            theirs = stack.enter_context(_spark("local-cluster[2,1,1024]"))
            ours = _distributor(jobsdk.TorchDistributor, local_mode=False)
            yield {BARE: {OURS: ours, OF_SPARK: _distributor(theirs, local_mode=False)}}
        elif where == "ray":
            ours = _trainer(jobsdk.TorchTrainer, jobsdk.ScalingConfig)
            yield {IN_GROUP: {OURS: ours, OF_RAY: stack.enter_context(_ray())}}
        else:
            bare = {OURS: _distributor(jobsdk.TorchDistributor)}
            in_group = {OURS: _trainer(jobsdk.TorchTrainer, jobsdk.ScalingConfig, compute="local")}
            if os.environ.get("JOBSDK_BENCH_WITHOUT_PEERS") == "1":
                yield {BARE: bare, IN_GROUP: in_group}
                return
            if find_spec("pyspark") and shutil.which("java"):
                bare[OF_SPARK] = _distributor(stack.enter_context(_spark("local[2]")))
            if find_spec("ray"):
                in_group[OF_RAY] = bare[OF_RAY] = stack.enter_context(_ray())
            yield {BARE: bare, IN_GROUP: in_group}


def main(where: str, rounds: int) -> None:
    found: dict[str, dict[str, list[float]]] = {}
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contenders(where) as figures:
        for number in range(rounds + (rounds > 1)):
            for figure, calls in figures.items():
                for name, call in calls.items():
                    seconds = _first_line(call)
                    if number > 0 or rounds == 1:
                        found.setdefault(figure, {}).setdefault(name, []).append(seconds)
    medians = {
        figure: {name: statistics.median(values) for name, values in by_name.items()}
        for figure, by_name in found.items()
    }
    print(json.dumps(medians))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

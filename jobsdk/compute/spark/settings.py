"""The settings of a Spark compute: their names, their forms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jobsdk.compute.settings import TEXT, Setting, mistakes_in, must_be

_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|(spark|k8s)://.+|yarn", re.DOTALL)
_TASK_RESOURCE = re.compile(r"spark\.task\.resource\.[^.]+\.amount")
_LOCAL = re.compile(r"local(\[.+\])?")
_CONF = must_be(
    "a mapping of Spark's settings, such as {spark.executor.memory: 8g}",
    lambda value: isinstance(value, Mapping) and all(map(_is_conf, value.items())),
)
_AMOUNT = must_be("a number of at least 1", lambda value: type(value) is int and value >= 1)
_PORT = must_be("a number from 1 to 65535", lambda value: type(value) is int and 0 < value < 65536)
_MASTERS = must_be(
    "a master of Spark such as spark://HOST:7077, yarn or local[4]",
    lambda value: isinstance(value, str) and _MASTER.fullmatch(value) is not None,
)
_REMOTE = must_be(
    "the address of a Spark Connect server such as sc://HOST:15002",
    lambda value: isinstance(value, str) and value.startswith("sc://") and len(value) > 5,
)
SETTINGS: Mapping[str, Setting] = {
    "master": Setting(
        "the cluster: spark://HOST:7077, yarn, k8s://..., local[4]; not given: the session of this process", _MASTERS
    ),
    "remote": Setting("a Spark Connect server, sc://HOST:15002, in the place of master", _REMOTE),
    "conf": Setting(
        "Spark's own settings of the sessions that are made here: a mapping, {spark.executor.memory: 8g}", _CONF
    ),
    "app_name": Setting("the application's name in sessions that are made here; not given: that of the run", TEXT),
    "python": Setting(
        "the Python of the executors, of the minor version that this machine's has; not given: as Spark has it", TEXT
    ),
    "gpu_resource": Setting("what the GPUs of tasks are called in Spark's settings; not given: gpu", TEXT),
    "gpus_per_node": Setting("GPUs of a node, which is one task; not given: processes x gpus_per_process", _AMOUNT),
    "cpus_per_node": Setting("cores of a node, which is one task; not given: spark.task.cpus", _AMOUNT),
    "host": Setting("the address of this machine as executors reach it; not given: spark.driver.host", TEXT),
    "port": Setting("the port here at which executors bring logs; not given: any that is free", _PORT),
}


def mistakes(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with the values: (setting, words)."""
    yield from mistakes_in(SETTINGS, settings, of_job=False)
    if "master" in settings and "remote" in settings:
        yield "master", "and remote are given: one of both must go"
    conf = settings.get("conf")
    for name, instead in (("spark.master", "master"), ("spark.remote", "remote"), ("spark.app.name", "app_name")):
        if isinstance(conf, Mapping) and name in conf:
            yield "conf", f"has {name}: set {instead} of the compute"


def is_local(master: str | None) -> bool:
    """Whether a master's executors are the driver itself."""
    return master is not None and _LOCAL.fullmatch(master) is not None


def cores_of_executor(master: str, conf: Mapping[str, Any]) -> int | None:
    """How many cores an executor of a session has; None where it has as many as its machine."""
    if found := re.fullmatch(r"local-cluster\[[^,]+,\s*(\d+)\s*,.*\]", master):
        return int(found[1])
    given = conf.get("spark.executor.cores", 1 if master.startswith(("yarn", "k8s")) else None)
    return None if given is None else int(given)


def never_starts(master: str | None, conf: Mapping[str, Any]) -> str:
    """Why Spark would never start a barrier stage in a session with this conf; empty where it can. With `Fix: ...`."""
    if is_local(master):
        asked = [name for name in conf if _TASK_RESOURCE.fullmatch(name)]
        return (
            f"tasks of a local master never start with {asked[0]}. Fix: leave it out; GPUs of the driver, "
            "spark.driver.resource.gpu.amount, are shared out among the nodes"
            if asked
            else ""
        )
    if text(conf.get("spark.dynamicAllocation.enabled", "false")) == "true":
        return (
            "Spark cannot start all nodes of a job at once (a barrier stage) with dynamic allocation. "
            "Fix: set spark.dynamicAllocation.enabled to false for the session"
        )
    return ""


def text(value: Any) -> str:
    """A value of `conf` as Spark takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def conf(settings: Mapping[str, Any], nodes: int, gpus: int, cpus: int | None, name: str) -> dict[str, str]:
    """The settings of a session that is made for one run of so many nodes, each with so many GPUs and cores.

    Those of the compute win, but for the application's name.
    """
    chosen = {
        "spark.dynamicAllocation.enabled": "false",  # it cannot be had together with barrier stages
        "spark.stage.maxConsecutiveAttempts": "1",  # ranks are started once
        "spark.task.maxFailures": "1",
    }
    resource = settings.get("gpu_resource", "gpu")
    if gpus and not is_local(settings.get("master")):
        chosen[f"spark.task.resource.{resource}.amount"] = str(gpus)
        chosen[f"spark.executor.resource.{resource}.amount"] = str(gpus)
    if cpus:
        chosen["spark.task.cpus"] = chosen["spark.executor.cores"] = str(cpus)
    if settings.get("master", "").startswith(("yarn", "k8s")):
        chosen["spark.executor.instances"] = str(nodes)
    if settings.get("python"):
        chosen["spark.pyspark.python"] = settings["python"]
    return {**chosen, **given_conf(settings), "spark.app.name": settings.get("app_name") or f"jobsdk {name}"}


def given_conf(settings: Mapping[str, Any]) -> dict[str, str]:
    """What the compute's own `conf` says, passwords and all."""
    return {str(key): text(value) for key, value in settings.get("conf", {}).items()}


def _is_conf(item: tuple[Any, Any]) -> bool:
    key, value = item
    return isinstance(key, str) and key.startswith("spark.") and isinstance(value, str | int | float)

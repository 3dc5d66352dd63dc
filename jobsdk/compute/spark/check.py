"""Whether jobs can run on a Spark compute now, found out with a session and one small task of it."""

from __future__ import annotations

import contextlib
import platform
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from jobsdk.compute.base import Check
from jobsdk.compute.spark import errors as spark_errors
from jobsdk.compute.spark import session as spark_session
from jobsdk.compute.spark import settings as spark_settings
from jobsdk.compute.spark.port import Port
from jobsdk.compute.spark.stage import ClassicStage, Needs, Stage
from jobsdk.compute.spark.task import Question
from jobsdk.errors import ComputeError

_FIX = "see docs/spark.md"


def check(settings: Mapping[str, Any]) -> list[Check]:
    """On the session that is open here, else on one that is made for it."""
    found: list[Check] = []
    try:
        found += _session(settings)
    except ComputeError as error:
        found.append(Check.failed("session", error, _FIX))
    except Exception as error:  # of Spark, whatever it is
        found.append(Check.failed("a task", spark_errors.words(error)[0], _FIX))
    return found


def _session(settings: Mapping[str, Any]) -> Iterator[Check]:
    context, session = spark_session.open_context(settings), spark_session.open_remote(settings)
    if context is not None:
        yield from _classic(context, settings, "open in this process")
    elif session is not None:
        yield from _remote(session, settings, "open in this process")
    elif "remote" in settings:
        with spark_session.made_remote(settings) as made:
            yield from _remote(made, settings, "can be made")
    elif "master" in settings:
        gpus, cpus = int(settings.get("gpus_per_node", 0)), settings.get("cpus_per_node")
        conf = spark_settings.conf(settings, 1, gpus, cpus, "check")
        with spark_session.made_context(settings, conf) as made:
            yield from _classic(made, settings, "can be made")
    else:
        message = "this process has none open, and the compute names no cluster"
        yield Check("session", False, message, "set master (or remote) of the compute")


def _classic(context: Any, settings: Mapping[str, Any], how: str) -> Iterator[Check]:
    resource = settings.get("gpu_resource", "gpu")
    yield Check("session", True, f"{how}: Spark {context.version} at {context.master}")
    stage = ClassicStage(context, Needs(0, 0, resource), "check")
    said = _asked(stage, settings)
    room = stage.room()
    if room is not None:  # an executor has come by now: a task has run on it
        yield Check("task slots", room > 0, f"{room} now, each for one node of a job", "" if room else _FIX)
    yield from _of_task(said, resource)


def _remote(session: Any, settings: Mapping[str, Any], how: str) -> Iterator[Check]:
    from jobsdk.compute.spark.connect import ConnectStage

    resource = settings.get("gpu_resource", "gpu")
    yield Check("session", True, f"{how}: Spark Connect {session.version} at {spark_session.url_of(session)}")
    yield from _of_task(_asked(ConnectStage(session, Needs(0, 0, resource), "check"), settings), resource)


def _asked(stage: Stage, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a task says of where it runs, and whether it reaches a port of this process."""
    host = settings.get("host")
    port = Port("" if host else stage.bind_address(), settings.get("port", 0), secrets.token_bytes(32), 1)
    with contextlib.closing(port):
        addresses = [host] if host else stage.addresses()
        return stage.ask(Question(addresses, port.port, settings.get("gpu_resource", "gpu")))


def _of_task(said: Mapping[str, Any], resource: str) -> Iterator[Check]:
    here = platform.python_version()
    yield Check("Python of the executors", True, f"{said['python']} ({said['executable']}), here {here}")
    gpus = "none" if said["gpus"] is None else ", ".join(said["gpus"])
    yield Check("GPUs of a task", True, f"{gpus} (resource {resource})")
    trouble = said["trouble"]
    fix = "set host, or port, of the compute to what executors can reach of this machine" if trouble else ""
    yield Check("way back to this machine", not trouble, trouble or f"from {said['host']}", fix)

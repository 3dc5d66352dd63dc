"""A node of a job of Azure ML: what the job's command hands on, and the bootstrap's life there.

Azure ML takes one command and variables, so the plan comes in a variable, and the paths of inputs and outputs, which
the service puts into the command alone, in further ones.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
import sys
import zlib
from typing import TYPE_CHECKING, Mapping, MutableMapping, Optional, cast

from ..detect import azureml
from ..detect.place import NotDetected
from ..spec import variables

if TYPE_CHECKING:
    from ..spec.plan import Plan

#: The job's plan in the environment: base64 of zlib of its JSON.
PLAN = "JOBSDK_PLAN"
#: Where Azure ML has put an input or output on this node: these with the input's name behind them.
INPUT, OUTPUT = "JOBSDK_PATH_INPUT_", "JOBSDK_PATH_OUTPUT_"

_WRONG_PLACE = 78  # as sysexits.h has it: wrong configuration


def packed(plan: Plan) -> str:
    """A plan as the value of the variable PLAN."""
    return base64.b64encode(zlib.compress(json.dumps(plan, separators=(",", ":")).encode(), 9)).decode()


def unpacked(text: str) -> Plan:
    """The reverse. Raises ValueError."""
    try:
        plan = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
    except (binascii.Error, zlib.error, ValueError):
        raise ValueError("%s is not what jobsdk has sent with the job" % PLAN) from None
    if not isinstance(plan, dict):
        raise ValueError("%s is not what jobsdk has sent with the job" % PLAN)
    return cast("Plan", plan)


def take_plan(environment: MutableMapping[str, str]) -> Plan:
    """The plan, with the inputs and outputs where Azure ML has put them; its variables are taken away, so that no rank
    sees them. Raises ValueError."""
    if PLAN not in environment:
        raise ValueError("no %s: only a job that jobsdk has submitted has one" % PLAN)
    plan = unpacked(environment.pop(PLAN))
    paths = {name: environment.pop(name) for name in list(environment) if name.startswith((INPUT, OUTPUT))}
    for name, given in plan["inputs"].items():
        if "literal" not in given:
            plan["inputs"][name] = {"literal": _path("input", INPUT, name, paths)}
    for name, given in plan["outputs"].items():
        given["at"] = _path("output", OUTPUT, name, paths)
    return plan


def _path(what: str, prefix: str, name: str, paths: Mapping[str, str]) -> str:
    path = paths.get(prefix + name, "")
    if not path or path.startswith("${{"):
        raise ValueError("Azure ML has not said where the %s %s is (%s%s)" % (what, name, prefix, name))
    return path


def run() -> int:
    """Run this node of the job, in a folder of its own that is gone afterwards: its logs, events and report come out at
    stdout (see `relay`). Returns the job's exit code, or 78 where the job cannot be understood."""
    import tempfile

    from ..spec import events
    from . import cluster_node

    os.environ[variables.RELAY] = "1"
    folder = tempfile.mkdtemp(prefix="jobsdk-", dir=_temporary(os.environ))
    try:
        try:
            plan, given = take_plan(os.environ), azureml.nodes(os.environ)
            if given != plan["nodes"]:
                raise ValueError("Azure ML has given the job %d node(s), not %d" % (given, plan["nodes"]))
        except (ValueError, NotDetected) as error:
            sys.stderr.write("bootstrap: %s\n" % error)
            return _WRONG_PLACE
        _keep_outputs(folder)
        events.write_json(folder + "/plan.json", plan)  # nobody else can look into the folder
        return cluster_node.run(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _keep_outputs(folder: str) -> None:
    """What is left in the run's outputs goes where Azure ML keeps ./outputs."""
    try:
        os.makedirs("outputs", exist_ok=True)
        os.makedirs(folder + "/outputs")
        os.symlink(os.path.abspath("outputs"), folder + "/outputs/default")
    except OSError as error:
        sys.stderr.write("bootstrap: ./outputs cannot be made: %s\n" % error.strerror)


def _temporary(environment: Mapping[str, str]) -> Optional[str]:
    """The job's own folder for what is temporary; None for the system's."""
    given = environment.get("AZ_BATCHAI_JOB_TEMP", "")
    return given if os.path.isdir(given) and os.access(given, os.W_OK) else None

"""Machines that were lost: their pods are declared failed, so that the Job replaces them.

A machine without power never says that its pods have ended, and a Job with a pod failure policy replaces a pod only
when it has. The control plane's own garbage collector declares the same of machines with the taint
`node.kubernetes.io/out-of-service`.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobsdk.bootstrap.control.server import SILENT
from jobsdk.compute.kubernetes.api import Api, Object

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.event import Event
    from jobsdk.runs.folder import RunFolder

STATE = "kubernetes-state.json"
RIGHT = "patch pods/status"


def lives(events: Iterable[Event]) -> dict[int, int]:
    """The nodes that fell silent and that the job waits for, each with the number of its pod that did: 0 is its first.

    Empty unless node 0 starts the job again.
    """
    joined: Counter[int] = Counter()
    lost: set[int] = set()
    is_waiting = False
    for event in events:
        kind, node = event["event"], event.get("node")
        if kind == "node_joined" and node is not None:
            joined[node] += 1
            lost.discard(node)
        elif kind == "failure" and event.get("class") == "node_lost" and node is not None:
            lost.add(node)
        elif kind == "restart":
            is_waiting = True
        elif kind in ("started", "ended"):
            is_waiting = False
            lost.clear()
    return {node: joined[node] - 1 for node in sorted(lost)} if is_waiting else {}


def machines(run: RunFolder) -> list[str]:
    """The machines on which nodes fell silent, each once."""
    state, joined = run.read_json(STATE), Counter[int]()
    pods = {(one["node"], one["life"]): name for name, one in state.get("pods", {}).items()}
    hosts: dict[str, str] = {}
    silent: list[str | None] = []
    for event in run.events():
        kind, node = event["event"], event.get("node")
        if node is None:
            continue
        if kind == "allocated" and "pod" in event:
            hosts[event["pod"]] = event["host"]
        elif kind == "node_joined":
            joined[node] += 1
        elif kind == "failure" and event.get("class") == "node_lost" and SILENT in event["message"]:
            silent.append(pods.get((node, joined[node] - 1)))
    return list(dict.fromkeys([*(hosts[pod] for pod in silent if pod in hosts), *state.get("lost_machines", ())]))


def for_rerun(run: RunFolder, avoided: Sequence[str]) -> tuple[Mapping[str, Any], str]:
    """Another run of its job keeps off machines that this one lost, besides those that it avoids already."""
    new = [machine for machine in machines(run) if machine not in avoided]
    overrides = {"resources.properties.kubernetes.avoid_machines": [*avoided, *new]}
    return (overrides, f"avoids {', '.join(new)}, which {run.name} lost") if new else ({}, "")


def declare(api: Api, pod: str, status: Object, message: str) -> None:
    """Declare a pod failed. Raises Refused without the right to do that."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "NodeLost", "message": message}
    others = [one for one in status.get("conditions") or () if one["type"] != condition["type"]]
    conditions = [*others, {**condition, "lastTransitionTime": now}]
    api.merge_status(
        "Pod", pod, {"phase": "Failed", "reason": "NodeLost", "message": message, "conditions": conditions}
    )

"""On which machines pods go together, and apart, without slowing down the scheduler of a large cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jobsdk.compute.kubernetes.api import Object
from jobsdk.findings import Finding

#: Kubernetes advises against affinity between pods in clusters of more than several hundred machines: for each pod the
#: scheduler looks at all others.
MOST_WITH_AFFINITY = 500  # nodes of a job


def rules(settings: Mapping[str, Any], label: Mapping[str, str], nodes: int) -> Object:
    """The fields of a pod that place the nodes of a job; `label` selects its pods."""

    def near(key: str) -> list[Object]:
        return [{"labelSelector": {"matchLabels": dict(label)}, "topologyKey": key}]

    topology = settings.get("topology")
    is_large = nodes > MOST_WITH_AFFINITY
    affinity: Object = {}
    if topology and not is_large and not settings.get("queue") and not settings.get("jobset"):
        affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": near(topology)}
    if settings.get("exclusive") and not is_large:
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": near("kubernetes.io/hostname")}
    spread = [
        {**one, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        for one in near("kubernetes.io/hostname")
        if settings.get("exclusive") and is_large
    ]
    return {
        **({"affinity": affinity} if affinity else {}),
        **({"topologySpreadConstraints": spread} if spread else {}),
    }


def findings(name: str, settings: Mapping[str, Any], nodes: int) -> Iterator[Finding]:
    """What a large job does not get of that."""
    if nodes <= MOST_WITH_AFFINITY:
        return
    where = ("resources", "instance_count")
    if settings.get("topology") and not settings.get("queue") and not settings.get("jobset"):
        message = f"topology is not used for more than {MOST_WITH_AFFINITY} nodes: it would slow down the scheduler"
        fix = f"set node_selector of the compute {name} to one value of {settings['topology']}, or use queue or jobset"
        yield Finding("warning", where, message, fix)
    if settings.get("exclusive"):
        message = (
            f"exclusive spreads more than {MOST_WITH_AFFINITY} nodes evenly: two share a machine if there are fewer "
            "machines than nodes"
        )
        yield Finding("warning", where, message, "request all GPUs, or most of the memory, of a machine for each node")

"""On which machines pods go together, and apart, without slowing down the scheduler of a large cluster.

`rules` and `avoid` are the only places that build affinity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jobsdk.compute.kubernetes.api import Object
from jobsdk.findings import Finding

#: Kubernetes advises against affinity between pods in clusters of more than several hundred machines: for each pod the
#: scheduler looks at all others.
MOST_WITH_AFFINITY = 500  # nodes of a job
_HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def rules(settings: Mapping[str, Any], label: Mapping[str, str], nodes: int) -> Object:
    """The fields of a pod that place the nodes of a job; `label` selects its pods."""

    def near(key: str) -> Object:
        return {"labelSelector": {"matchLabels": dict(label)}, "topologyKey": key}

    is_large, is_exclusive = nodes > MOST_WITH_AFFINITY, settings.get("exclusive")
    affinity: Object = {}
    if not is_large and not settings.get("queue"):  # Kueue has annotations for that, and a JobSet for topology
        if settings.get("topology") and not settings.get("jobset"):
            affinity["podAffinity"] = {_REQUIRED: [near(settings["topology"])]}
        elif settings.get("preferred_topology"):
            term = {"weight": 100, "podAffinityTerm": near(settings["preferred_topology"])}
            affinity["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [term]}
    if is_exclusive and not is_large:
        affinity["podAntiAffinity"] = {_REQUIRED: [near(_HOSTNAME)]}
    if settings.get("node_affinity"):
        terms = [{"matchExpressions": [dict(one) for one in settings["node_affinity"]]}]
        affinity["nodeAffinity"] = {_REQUIRED: {"nodeSelectorTerms": terms}}
    affinity = avoid(affinity, settings.get("avoid_machines", ()))
    spread = [
        {
            **near(one["topology"]),
            "maxSkew": one.get("max_skew", 1),
            "whenUnsatisfiable": "DoNotSchedule" if one.get("required", True) else "ScheduleAnyway",
        }
        for one in [*settings.get("spread", ()), *([{"topology": _HOSTNAME}] if is_exclusive and is_large else [])]
    ]
    return {
        **({"affinity": affinity} if affinity else {}),
        **({"topologySpreadConstraints": spread} if spread else {}),
    }


def avoid(affinity: Object, machines: Iterable[str]) -> Object:
    """An affinity that also keeps pods off machines (by the label kubernetes.io/hostname)."""
    names = sorted(set(machines))
    if not names:
        return affinity
    expression = {"key": _HOSTNAME, "operator": "NotIn", "values": names}
    of_nodes = affinity.get("nodeAffinity", {})
    terms = of_nodes.get(_REQUIRED, {}).get("nodeSelectorTerms") or [{}]
    # A machine needs to match only one of the terms, so each gets the expression.
    terms = [{**term, "matchExpressions": [*term.get("matchExpressions", ()), expression]} for term in terms]
    return {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: {"nodeSelectorTerms": terms}}}


def findings(name: str, settings: Mapping[str, Any], nodes: int) -> Iterator[Finding]:
    """What a large job does not get of that."""
    if nodes <= MOST_WITH_AFFINITY:
        return
    where = ("resources", "instance_count")
    by_affinity = [] if settings.get("jobset") else ["topology"]
    for setting in [*by_affinity, "preferred_topology"]:
        if settings.get(setting) and not settings.get("queue"):
            message = (
                f"{setting} is not used for more than {MOST_WITH_AFFINITY} nodes: it would slow down the scheduler"
            )
            fix = f"set node_selector of the compute {name} to one value of {settings[setting]}, or use queue or jobset"
            yield Finding("warning", where, message, fix)
    if settings.get("exclusive"):
        message = (
            f"exclusive spreads more than {MOST_WITH_AFFINITY} nodes evenly: two share a machine if there are fewer "
            "machines than nodes"
        )
        yield Finding("warning", where, message, "request all GPUs, or most of the memory, of a machine for each node")

"""Kubernetes' own scheduler, with the feature gate GenericWorkload: a PodGroup, in 1.35 a Workload, which pods name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobsdk.compute.kubernetes.api import Object
from jobsdk.compute.kubernetes.gang.group import Group

_GROUP = "nodes"
#: The version of scheduling.k8s.io -> the Kubernetes that has it. The first is taken unless `gang_api` is set.
APIS = {"v1beta1": "1.37", "v1alpha2": "1.36", "v1alpha1": "1.35"}


def group(name: str, nodes: int, settings: Mapping[str, Any]) -> Group:
    api = settings.get("gang_api", next(iter(APIS)))
    policy = {"gang": {"minCount": nodes}}
    if api == "v1alpha1":
        spec: Object = {"podGroups": [{"name": _GROUP, "policy": policy}]}
        reference = {"workloadRef": {"name": name, "podGroup": _GROUP}}
        return Group("", f"scheduling.k8s.io/{api}", "Workload", spec, pod_fields=reference)
    spec = {"schedulingPolicy": policy}
    if settings.get("priority_class"):
        spec["priorityClassName"] = settings["priority_class"]
    reference = {"schedulingGroup": {"podGroupName": name}}
    return Group("", f"scheduling.k8s.io/{api}", "PodGroup", spec, pod_fields=reference)

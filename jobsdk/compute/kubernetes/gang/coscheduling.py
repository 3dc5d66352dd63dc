"""The coscheduling plugin of kubernetes-sigs/scheduler-plugins: a PodGroup, which pods name in a label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobsdk.compute.kubernetes.gang.group import Group

#: As the project's Helm chart names it.
SCHEDULER = "scheduler-plugins-scheduler"


def group(name: str, nodes: int, settings: Mapping[str, Any]) -> Group:
    labels = {"scheduling.x-k8s.io/pod-group": name}
    return Group(SCHEDULER, "scheduling.x-k8s.io/v1alpha1", "PodGroup", {"minMember": nodes}, pod_labels=labels)

"""Volcano (scheduling.volcano.sh): a PodGroup, which pods name in an annotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobsdk.compute.kubernetes.api import Object
from jobsdk.compute.kubernetes.gang.group import Group


def group(name: str, nodes: int, settings: Mapping[str, Any]) -> Group:
    spec: Object = {"minMember": nodes}
    for field, setting in (("queue", "gang_queue"), ("priorityClassName", "priority_class")):
        if settings.get(setting):
            spec[field] = settings[setting]
    # The scheduler reads the first; Volcano's controller makes no group of its own for pods with either.
    names = dict.fromkeys(("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"), name)
    return Group("volcano", "scheduling.volcano.sh/v1beta1", "PodGroup", spec, pod_annotations=names)

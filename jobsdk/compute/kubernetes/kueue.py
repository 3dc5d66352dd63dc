"""What Kueue reads on a Job or a JobSet and its pods (kueue.sigs.k8s.io/docs/reference/labels-and-annotations)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

QUEUE = "kueue.x-k8s.io/queue-name"
#: With it, Kueue starts a Job with fewer pods than it asks for.
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
#: setting -> label of the Job
_LABELS = {"queue": QUEUE, "workload_priority": "kueue.x-k8s.io/priority-class"}
#: setting -> annotation of the pods
_ANNOTATIONS = {
    "topology": "kueue.x-k8s.io/podset-required-topology",
    "preferred_topology": "kueue.x-k8s.io/podset-preferred-topology",
    "slice_topology": "kueue.x-k8s.io/podset-slice-required-topology",
    "slice_size": "kueue.x-k8s.io/podset-slice-size",
}


def labels(settings: Mapping[str, Any]) -> dict[str, str]:
    """The labels of the Job or JobSet."""
    return _found(_LABELS, settings)


def pod_annotations(settings: Mapping[str, Any]) -> dict[str, str]:
    """The annotations of the pods. Kueue places by topology itself."""
    return _found(_ANNOTATIONS, settings)


def _found(names: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, str]:
    if not settings.get("queue"):
        return {}
    return {name: str(settings[setting]) for setting, name in names.items() if settings.get(setting)}

"""What Kueue reads on a Job or a JobSet and its pods (kueue.sigs.k8s.io/docs/reference/labels-and-annotations)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobsdk.compute.kubernetes.api import Api, Object, Refused

#: Of the Workload that Kueue creates for a Job or a JobSet: the conditions that say why it waits.
_WAITS = (("Evicted", "True"), ("QuotaReserved", "False"), ("Admitted", "False"))
_JOB_UID = "kueue.x-k8s.io/job-uid"
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


def why(api: Api, job: Object) -> str:
    """Why a suspended Job waits in its queue, as far as Kueue says it and this user may read it."""
    text = f"waits in the Kueue queue {job['metadata']['labels'][QUEUE]}"
    try:
        found = api.list("Workload", labelSelector=f"{_JOB_UID}={job['metadata']['uid']}")
    except Refused:  # not everybody may read it, and Kueue before 0.15 has another version
        return text
    said: dict[str, None] = {}
    for one in found:
        conditions = {condition["type"]: condition for condition in one.get("status", {}).get("conditions") or ()}
        for kind, status in _WAITS:
            condition = conditions.get(kind, {})
            if condition.get("status") == status and condition.get("message"):
                said[" ".join(condition["message"].split())] = None
    return ": ".join((text, "; ".join(said))) if said else text


def _found(names: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, str]:
    if not settings.get("queue"):
        return {}
    return {name: str(settings[setting]) for setting, name in names.items() if settings.get(setting)}

"""KAI: its pod grouper makes the PodGroup of a Job, with as many members as an annotation of the Job asks for.

For a JobSet that annotation counts groups, not pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobsdk.compute.kubernetes.gang.group import Group

#: The name of the annotation, and the name that later versions document.
_MIN_MEMBER = ("kai.scheduler/batch-min-member", "kai.scheduler/min-member")


def group(name: str, nodes: int, settings: Mapping[str, Any]) -> Group:
    queue = {"kai.scheduler/queue": settings["gang_queue"]} if settings.get("gang_queue") else {}
    return Group("kai-scheduler", labels=queue, job_annotations=dict.fromkeys(_MIN_MEMBER, str(nodes)))

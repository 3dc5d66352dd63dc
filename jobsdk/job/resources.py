"""What a job asks for: nodes and their kind, limits, and its place in the queue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jobsdk.findings import Path, Report
from jobsdk.job.durations import Duration
from jobsdk.job.kinds import MOST_NODES, Integer, ListOf, PlainMapping, Rewrite, Schema, Text
from jobsdk.job.model import Model, field

#: A smaller part of a GPU is nothing that a process could work with.
_LEAST_SHARE = 0.01
_SHARE = r"0?[.](?:0[1-9]|[1-9])[0-9]*"

_HINTS = {
    **dict.fromkeys(("nodes", "node_count", "num_nodes", "nnodes", "instances", "replicas"), "instance_count"),
    **dict.fromkeys(("vm_size", "sku", "node_type"), "instance_type"),
    "shared_memory": "shm_size",
}


class GpuCount(Integer):
    """GPUs of a process: a whole number, or a fraction below 1 of one that several share."""

    says = "a whole number, or a fraction between 0 and 1"

    def __init__(self) -> None:
        super().__init__(1, fix="write whole GPUs, as 2, or a share of one, as 0.5")

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if isinstance(value, str) and re.fullmatch(_SHARE, value):
            value = float(value)
        if isinstance(value, float) and _LEAST_SHARE <= value < 1:
            return value
        return super().structure(value, path, report)

    def schema(self) -> Schema:
        number, text = super().schema()["anyOf"]
        share = {"type": "number", "minimum": _LEAST_SHARE, "exclusiveMaximum": 1}
        return {"anyOf": [number, share, text, {"type": "string", "pattern": f"^{_SHARE}$"}]}


class JobResourceConfiguration(Model, hints=_HINTS):
    """The nodes of a job. Fields are Azure ML's, except `gpus_per_process`, which is jobsdk's own.

    One that is written, if only as `{}` or `instance_count: 1`, stays written: Azure ML is sent what was given.
    """

    instance_count: int = field(Integer(1, MOST_NODES), default=1, doc="Nodes of the job.")
    instance_type: str | None = field(
        Text(empty=False), default=None, doc="The kind of machine, in the compute's own words."
    )
    properties: dict[str, Any] | None = field(
        PlainMapping(), default=None, doc="Further settings, in the compute's own words."
    )
    locations: list[str] | None = field(ListOf(Text(empty=False)), default=None, doc="Regions that the job may run in.")
    shm_size: str | None = field(
        Text(r"[1-9][0-9]*[bkmgBKMG]", says="a size such as 2g", fix="write a number and b, k, m or g, as docker does"),
        default=None,
        doc="Shared memory of a container, as docker spells it: a number and b, k, m or g.",
    )
    max_instance_count: int | None = field(
        Integer(1, MOST_NODES), default=None, doc="The most nodes that an elastic job may have."
    )
    docker_args: str | list[str] | None = field(
        ListOf(Text(), single=True), default=None, doc="Further arguments for `docker run`, as one text or a list."
    )
    gpus_per_process: float | None = field(
        GpuCount(),
        default=None,
        doc="GPUs that each process sees alone (CUDA_VISIBLE_DEVICES); 0.5: two processes share one. Not given: all "
        "see all.",
    )

    #: Whether the job has resources, and whether these say how many nodes.
    is_given = True
    is_count_given = False

    @classmethod
    def default(cls) -> JobResourceConfiguration:
        """The resources of a job that has none."""
        resources = cls()
        object.__setattr__(resources, "is_given", False)
        return resources

    def _fill(self, values: Mapping[Any, Any], path: Path, report: Report) -> None:
        super()._fill(values, path, report)
        object.__setattr__(self, "is_given", True)
        object.__setattr__(self, "is_count_given", values.get("instance_count") is not None)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self._fields and value is not None:
            object.__setattr__(self, "is_given", True)
        if name == "instance_count":
            object.__setattr__(self, "is_count_given", value is not None)

    def to_dict(self, rewrite: Rewrite | None = None) -> dict[str, Any]:
        """The resources as plain data, without what was not given."""
        data = super().to_dict(rewrite)
        return {"instance_count": self.instance_count, **data} if self.is_count_given else data

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        return equal and self.is_given == other.is_given if isinstance(other, JobResourceConfiguration) else equal

    __hash__ = None


class CommandJobLimits(Model):
    """Limits of a job. `timeout` is Azure ML's, the others are jobsdk's own."""

    timeout: float | None = field(
        Duration(0.1),
        default=None,
        doc="The longest that the job may run: seconds, or text such as 1h30m. Azure ML gets whole seconds.",
    )
    hang_timeout: float | None = field(
        Duration(0.1),
        default=None,
        doc="The job counts as hanging when for so long (seconds, or text such as 5m) no rank has written output or "
        "used the processor. Not given: it is not watched for that.",
    )
    grace_period: float | None = field(
        Duration(),
        default=None,
        doc="Seconds between SIGTERM and SIGKILL when the job is stopped, or text such as 30s. Not given: 10.",
    )
    rendezvous_timeout: float | None = field(
        Duration(1.0),
        default=None,
        doc="Seconds that nodes wait for one another, or text such as 10m. Not given: 600, as torchrun's.",
    )


class QueueSettings(Model):
    """The job's place in the queue, as Azure ML has it."""

    job_tier: str | None = field(
        Text(choices=("spot", "basic", "standard", "premium", "null")),
        default=None,
        doc="spot, basic, standard or premium.",
    )
    priority: str | None = field(Text(choices=("low", "medium", "high")), default=None, doc="low, medium or high.")


#: Azure ML's name of the same class, without what only containers have.
ResourceConfiguration = JobResourceConfiguration

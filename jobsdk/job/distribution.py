"""Distributions: how the processes of a job are started and find each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobsdk.findings import Path, Report, nearest
from jobsdk.job.kinds import MOST_NODES, MOST_PROCESSES, Anything, Flag, Integer, PathOrMapping, Rewrite, Text, TypeName
from jobsdk.job.model import Model, Tagged, field

_PROCESSES = dict.fromkeys(
    """process_count_per_node processes processes_per_node processes_per_instance process_count nproc_per_node nproc
    num_processes ntasks_per_node gpus_per_node world_size""".split(),
    "process_count_per_instance",
)
_TASKS = {"num_ps": "parameter_server_count", "ps_count": "parameter_server_count", "num_workers": "worker_count"}
_DEEPSPEED = {**_PROCESSES, **dict.fromkeys(("deepspeed_config", "ds_config", "config_file", "config_path"), "config")}
_RAY = {"dashboard": "include_dashboard", "head_args": "head_node_additional_args"}


class Distribution(Model):
    """The base of distributions."""

    type: str = field(Text(), default=None)
    #: Processes on each node; None stands for 1. Types without the field leave it None.
    process_count_per_instance: int | None = None

    @classmethod
    def structure(cls, values: Mapping[Any, Any], path: Path, report: Report) -> Any:
        """As of `Model`, but keys of a mapping that resemble nothing known are kept, with a warning.

        Azure ML's own examples carry such keys (`added_property: 7`). A typed constructor refuses them.
        """
        known: dict[Any, Any] = {}
        extra: dict[str, Any] = {}
        for key, value in values.items():
            is_extra = isinstance(key, str) and key not in cls._fields and not cls._is_meant(key)
            (extra if is_extra else known)[key] = value
        distribution = super().structure(known, path, report)
        if extra:
            object.__setattr__(distribution, "_extra", extra)
            distribution._judge_extra(path, report)
        return distribution

    def check(self, path: Path, report: Report) -> None:
        """Judges the fields again, and the extra keys."""
        super().check(path, report)
        self._judge_extra(path, report)

    def _judge_extra(self, path: Path, report: Report) -> None:
        for key, value in vars(self).get("_extra", {}).items():
            report.tolerate(
                (*path, key), f"{self.type} has no such setting: it is kept and has no effect", "remove it", key=True
            )
            Anything().structure(value, (*path, key), report)

    @classmethod
    def _is_meant(cls, key: str) -> bool:
        """Whether a key was probably meant to be a field of this type, or is one of another type."""
        near = cls._hints.get(key) or nearest(key, cls._fields)
        return near is not None or any(key in other._fields for other in DISTRIBUTIONS)

    @classmethod
    def _suggest(cls, name: Any) -> str:
        for other in DISTRIBUTIONS:
            if other is not cls and name in other._fields:
                return f"it is a setting of {other._fields['type'].default}; the keys here are {', '.join(cls._fields)}"
        return super()._suggest(name)

    def to_dict(self, rewrite: Rewrite | None = None) -> dict[str, Any]:
        """The distribution as plain data, with its extra keys."""
        return {**super().to_dict(rewrite), **Anything().dump(vars(self).get("_extra", {}))}


def _processes() -> Any:
    return field(
        Integer(1, MOST_PROCESSES), default=None, doc="Processes on each node, usually one for each GPU. Not given: 1."
    )


class PyTorchDistribution(Distribution, hints=_PROCESSES):
    """Processes that meet through torch.distributed: each gets MASTER_ADDR, MASTER_PORT, RANK, LOCAL_RANK, WORLD_SIZE.

    Fields and meaning are Azure ML's.
    """

    type: str = field(
        TypeName("pytorch", "torch", "py_torch", "torch.distributed", "torch_distributed", "torchrun"),
        default="pytorch",
        doc="pytorch",
    )
    process_count_per_instance: int | None = _processes()


class TensorFlowDistribution(Distribution, hints=_TASKS):
    """Workers and parameter servers that find each other through TF_CONFIG, as Azure ML starts them."""

    type: str = field(TypeName("tensorflow", "tf", "tensor_flow", "tf_config"), default="tensorflow", doc="tensorflow")
    parameter_server_count: int = field(Integer(0, MOST_NODES), default=0, doc="Parameter servers in the whole job.")
    worker_count: int | None = field(
        Integer(1, MOST_NODES),
        default=None,
        doc="Workers in the whole job, at most one for each node. Not given: one for each node.",
    )
    chief: bool = field(
        Flag(), default=False, doc="Adds a task of the role `chief` on node 0 (jobsdk's own; Azure ML has none)."
    )


class MpiDistribution(Distribution, hints=_PROCESSES):
    """Processes of an MPI program. Fields are Azure ML's; `launcher` is jobsdk's own."""

    type: str = field(TypeName("mpi", "openmpi", "open_mpi", "horovod", "mpirun"), default="mpi", doc="mpi")
    process_count_per_instance: int | None = _processes()
    launcher: str = field(
        Text(choices=("mpirun", "openmpi", "hydra", "direct")),
        default="mpirun",
        doc="mpirun: the first mpirun on PATH starts the processes, which can use MPI. openmpi, hydra (MPICH, Intel "
        "MPI): the first one of that family. direct: they are started without MPI and only find OMPI_* variables.",
    )


class DeepSpeedDistribution(Distribution, hints=_DEEPSPEED):
    """Processes of a DeepSpeed program: what PyTorchDistribution gives, and a hostfile. jobsdk's own type."""

    type: str = field(TypeName("deepspeed", "deep_speed"), default="deepspeed", doc="deepspeed")
    process_count_per_instance: int | None = _processes()
    config: str | dict[str, Any] | None = field(
        PathOrMapping(empty=False, in_code=True),
        default=None,
        doc="DeepSpeed's configuration: the path of a JSON file inside the code folder, or its content. "
        "The processes find its path in JOBSDK_DEEPSPEED_CONFIG.",
    )
    launcher: str = field(
        Text(choices=("direct", "deepspeed")),
        default="direct",
        doc="direct: jobsdk starts the processes. deepspeed: its own launcher does, one on each node.",
    )
    autotuning: str | None = field(
        Text(choices=("tune", "run"), fix="write tune (search only) or run (search, then train)"),
        default=None,
        doc="Has DeepSpeed's autotuner search for settings: tune, or run to train with the best ones afterwards.",
    )


class RayDistribution(Distribution, hints=_RAY):
    """A Ray cluster over the nodes of the job; the command runs on its head. Fields and meaning are Azure ML's."""

    type: str = field(TypeName("ray"), default="ray", doc="ray")
    port: int | None = field(
        Integer(1, 65535),
        default=None,
        doc="Port of the head process. Not given: a free one (where Azure ML starts Ray: 6379).",
    )
    address: str | None = field(
        Text(empty=False), default=None, doc="Address of a running cluster to join, instead of a new one."
    )
    include_dashboard: bool | None = field(
        Flag(), default=None, doc="Whether the head starts the dashboard. Not given: no."
    )
    dashboard_port: int | None = field(
        Integer(1, 65535),
        default=None,
        doc="Port of the dashboard. Not given: a free one (where Azure ML starts Ray: 8265).",
    )
    head_node_additional_args: str | None = field(
        Text(), default=None, doc="Further arguments for `ray start` on the head."
    )
    worker_node_additional_args: str | None = field(
        Text(), default=None, doc="Further arguments for `ray start` on the others."
    )


DISTRIBUTIONS: tuple[type[Distribution], ...] = (
    PyTorchDistribution,
    TensorFlowDistribution,
    MpiDistribution,
    DeepSpeedDistribution,
    RayDistribution,
)

DISTRIBUTION = Tagged("a mapping with a type, or a distribution object", *DISTRIBUTIONS)

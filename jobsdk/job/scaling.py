"""Ray Train's words for the size of a job: `ScalingConfig` (workers and what each needs) and `TorchConfig`.

Names, defaults and rules are those of Ray 2.60. What becomes of them on a compute is in `jobsdk.job.workers`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from jobsdk.errors import ValidationError
from jobsdk.findings import Path, Report, show
from jobsdk.job.durations import Duration
from jobsdk.job.kinds import INVALID, MOST_RANKS, Flag, Integer, Kind, ListOf, MappingOf, Schema, Text, whole
from jobsdk.job.model import Model, field

#: Names of resources that Ray itself knows. Every other name is that of a resource of a site's own.
KNOWN = ("CPU", "GPU", "memory")
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

_NO_TRAINER = (
    "trainer_resources is deprecated, as in Ray Train, and has no effect: what starts the workers takes no resources "
    "of its own"
)
_HINTS = {
    **dict.fromkeys(("workers", "num_processes", "world_size", "nproc", "replicas"), "num_workers"),
    **dict.fromkeys(("gpu", "use_gpus", "use_cuda", "with_gpu"), "use_gpu"),
    **dict.fromkeys(("resources", "worker_resources"), "resources_per_worker"),
    **dict.fromkeys(("accelerator", "gpu_type", "accelerator_types"), "accelerator_type"),
    **dict.fromkeys(("strategy", "placement"), "placement_strategy"),
}
#: What Ray's ScalingConfig has besides, and why there is nothing like it here.
_OF_RAY_ALONE = {
    "use_tpu": "TPUs are not supported: remove it",
    "topology": "it is for TPUs, which are not supported: remove it",
    "elastic_resize_monitor_interval_s": "a job has a fixed number of workers: remove it",
}


class _Workers(Integer):
    """How many workers: Ray's pair for an elastic group and its 0 for local mode are refused with what to do."""

    def __init__(self) -> None:
        super().__init__(1, MOST_RANKS)

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if isinstance(value, list | tuple):
            fix = f"write one number, as {value[-1]}" if value and whole(value[-1]) else "write one number"
            report.error(path, f"a job has a fixed number of workers, got {show(value)}", fix)
            return INVALID
        if whole(value) == 0:
            report.error(path, "0, Ray's local mode, starts no worker", "write 1, and compute: local")
            return INVALID
        return super().structure(value, path, report)


class Amount(Kind):
    """How much of a resource: a finite number of at least 0, fractions too."""

    says = "a number of at least 0"

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        number = _number(value)
        if number is not None and number >= 0:
            return number
        is_memory = bool(path) and path[-1] == "memory"
        return self.refuse(value, path, report, "write bytes, as 8e9" if is_memory else "write a number")

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _SPELT}]}


_SPELT = r"^\s*\+?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]{1,2})?\s*$"


def _number(value: Any) -> int | float | None:
    """The number that the value is or spells; whole ones are ints. bool is none here."""
    if isinstance(value, str):
        if not re.match(_SPELT, value):
            return None
        value = float(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() else value
    return whole(value)


class Amounts(MappingOf):
    """Resources by name, as Ray counts them: CPU, GPU, memory in bytes, and a site's own."""

    says = "a mapping of resources, as {CPU: 4, GPU: 1}"

    def __init__(self) -> None:
        super().__init__(Amount(), key_pattern=r"\S(.*\S)?", key_says="a word")

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if not isinstance(value, Mapping):
            return self.refuse(value, path, report, "write 'NAME: AMOUNT' lines under it")
        amounts = super().structure(value, path, report)
        for name, amount in amounts.items():
            meant = _meant(name)
            if meant is not None:
                fix = f"did you mean '{meant}'? Names are case-sensitive, as in Ray"
                report.error((*path, name), "is no resource that Ray knows", fix, key=True)
            elif name == "TPU" and amount is not INVALID and amount:
                report.error((*path, name), "TPUs are not supported", "remove it")
            elif name == "GPU" and isinstance(amount, float) and amount > 1:
                fix = "write a whole number, or a fraction below 1 of a GPU that several workers share"
                report.error((*path, name), f"must be a whole number above 1, got {amount:g}", fix)
        return amounts


def _meant(name: str) -> str | None:
    """Ray's own resource of which the name is another spelling."""
    plain = name.lower().removesuffix("s")
    return next((known for known in KNOWN if plain == known.lower() and name != known), None)


class _Labels(ListOf):
    """Labels of nodes for all workers, or a list with those for each."""

    says = "a mapping of labels, or a list with one for each worker"

    def __init__(self) -> None:
        super().__init__(MappingOf(Text()))

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if isinstance(value, Mapping):
            return self.kind.structure(value, path, report)
        return super().structure(value, path, report)

    def schema(self) -> Schema:
        return {"anyOf": [self.kind.schema(), super().schema()]}

    def dump(self, value: Any, rewrite: Any = None) -> Any:
        return super().dump(value, rewrite) if isinstance(value, list) else self.kind.dump(value, rewrite)


class ScalingConfig(Model, hints=_HINTS):
    """How many workers a job has and what each of them needs. Fields and meaning are Ray Train's.

    Only by name: the first position of Ray's own class is `trainer_resources`, which is deprecated.
    """

    num_workers: int = field(_Workers(), default=1, doc="Workers of the job in all, one process each.")
    use_gpu: bool = field(
        Flag(), default=False, doc="Whether each worker has a GPU, if resources_per_worker says none."
    )
    resources_per_worker: dict[str, int | float] | None = field(
        Amounts(),
        default=None,
        doc="What each worker needs: CPU, GPU (several, or a fraction such as 0.5 that others share), memory in bytes, "
        "and resources of the site. Not given: a CPU, or with use_gpu a GPU.",
    )
    placement_strategy: str = field(
        Text(choices=STRATEGIES),
        default="PACK",
        doc="PACK: as few nodes as hold the workers; SPREAD: a node for each; STRICT_PACK: one node, or the job is "
        "refused; STRICT_SPREAD: a node for each, or the job is refused.",
    )
    accelerator_type: str | None = field(
        Text(empty=False), default=None, doc="The kind of GPU that the nodes must have, such as A100."
    )
    trainer_resources: dict[str, int | float] | None = field(
        Amounts(), default=None, doc="Deprecated, as in Ray Train; it has no effect."
    )
    label_selector: dict[str, str] | list[dict[str, str]] | None = field(
        _Labels(), default=None, doc="Labels that the nodes must have: a mapping, or a list with one for each worker."
    )

    def __init__(self, *values: Any, **named: Any) -> None:
        if values:
            report = Report()
            fix = f"name it: ScalingConfig(num_workers={show(values[0])}); Ray's first position is trainer_resources"
            report.error((), "ScalingConfig() takes only named values", fix)
            ValidationError.raise_for(report)
        super().__init__(**named)
        if self.trainer_resources is not None:
            import warnings

            warnings.warn(_NO_TRAINER, DeprecationWarning, stacklevel=2)

    def _fill(self, values: Mapping[Any, Any], path: Path, report: Report) -> None:
        super()._fill(values, path, report)
        self._judge(path, report)

    @classmethod
    def _unknown(cls, name: Any, value: Any, path: Path, report: Report) -> None:
        if name in _OF_RAY_ALONE:
            report.error((*path, str(name)), "there is no such key here", _OF_RAY_ALONE[str(name)], key=True)
        else:
            super()._unknown(name, value, path, report)

    def check(self, path: Path, report: Report) -> None:
        """Judges the fields again, and what they say together."""
        super().check(path, report)
        self._judge(path, report)

    def _judge(self, path: Path, report: Report) -> None:
        """What the fields say together; what is wrong in one of them has been reported."""
        given: Any = (self.resources_per_worker or {}).get("GPU")
        where = (*path, "resources_per_worker", "GPU")
        if given and given is not INVALID and not self.use_gpu:
            fix = "set use_gpu to true, or remove GPU"
            report.error(where, "asks for GPUs, and use_gpu is false", fix, key=True)
        elif given == 0 and self.use_gpu:
            report.error(where, "is 0, and use_gpu is true", "set use_gpu to false, or ask for more than 0", key=True)
        if self.trainer_resources is not None:
            report.warn((*path, "trainer_resources"), _NO_TRAINER, "remove it", key=True)
        labels: Any = self.label_selector
        workers = self.num_workers
        if isinstance(labels, list) and len(labels) != workers and INVALID not in labels:
            entries = "entry" if len(labels) == 1 else "entries"
            message = f"has {len(labels)} {entries} for {workers} worker{'s' * (workers != 1)}"
            report.error((*path, "label_selector"), message, "write one mapping for all, or one for each worker")

    @property
    def _worker(self) -> dict[str, int | float]:
        """What each worker needs, by Ray's rules."""
        if self.resources_per_worker is None:
            return {"GPU": 1} if self.use_gpu else {"CPU": 1}
        amounts = {name: amount for name, amount in self.resources_per_worker.items() if amount}
        return {**amounts, **({} if "GPU" in amounts or not self.use_gpu else {"GPU": 1})}

    @property
    def num_cpus_per_worker(self) -> int | float:
        """CPUs of each worker: by Ray's rules 0 for a worker with a GPU and nothing else said."""
        return self._worker.get("CPU", 0)

    @property
    def num_gpus_per_worker(self) -> int | float:
        """GPUs of each worker, or the fraction of one that it takes."""
        return self._worker.get("GPU", 0)

    @property
    def additional_resources_per_worker(self) -> dict[str, int | float]:
        """What each worker needs besides CPUs and GPUs. `accelerator_type` is a resource too, as in Ray."""
        more = {name: amount for name, amount in self._worker.items() if name not in ("CPU", "GPU")}
        if self.accelerator_type:
            more.setdefault(f"accelerator_type:{self.accelerator_type}", 0.001)
        return more

    @property
    def total_resources(self) -> dict[str, int | float]:
        """What all workers need together."""
        each = {**self._worker, **self.additional_resources_per_worker}
        return {name: amount * self.num_workers for name, amount in each.items()}


class TorchConfig(Model):
    """How the processes of a job meet in torch.distributed. Fields, their order and meaning are Ray Train's.

    `jobsdk.train.init_process_group()` uses it: every process finds it in its environment.
    """

    backend: str | None = field(
        Text(
            r"[a-z_0-9]+(:[a-z_0-9]+(,[a-z_0-9]+:[a-z_0-9]+)*)?",
            says="a backend, such as nccl, gloo or cpu:gloo,cuda:nccl",
        ),
        default=None,
        doc="nccl, gloo, or another backend of torch.distributed. Not given: nccl where there are GPUs, else gloo.",
    )
    init_method: str = field(Text(choices=("env", "tcp")), default="env", doc="env, or tcp.")
    timeout_s: float = field(
        Duration(1.0), default=1800, doc="Seconds that a collective may take, or text such as 30m."
    )

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(**_by_position(type(self), values, named))

    def variables(self) -> dict[str, str]:
        """The environment variables of every process that say this."""
        given = {"JOBSDK_TORCH_INIT_METHOD": self.init_method, "JOBSDK_TORCH_TIMEOUT_S": f"{self.timeout_s:g}"}
        return {**({"JOBSDK_TORCH_BACKEND": self.backend} if self.backend else {}), **given}


def _by_position(model: type[Model], values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the names of the fields. Raises TypeError as a function with these parameters does."""
    names = list(model._fields)
    if len(values) > len(names):
        raise TypeError(f"{model.__name__}() takes at most {len(names)} values, got {len(values)}")
    first = dict(zip(names, values, strict=False))
    for name in first:
        if name in named:
            raise TypeError(f"{model.__name__}() got two values for {name}")
    return {**first, **named}

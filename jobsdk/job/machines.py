"""What is known of kinds of machines: their GPUs and their InfiniBand.

`machines.csv` has Azure's sizes; `machines:` in computes.yml has a site's own. Names are compared without regard to
case and to `Standard_` in front.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_PREFIX = "standard_"


class Machine(NamedTuple):
    """One kind of machine. Memory is in GiB, `gpu_memory` that of each GPU.

    `infiniband` is the rate of all its links together in Gbit/s, 0 without any. Without `sriov` a virtual machine
    does not see the device itself: MPIs made for that platform can use it, NCCL and UCX cannot.
    """

    name: str
    gpus: int = 0
    gpu: str = ""
    gpu_memory: float = 0
    cpus: int = 0
    memory: float = 0
    infiniband: float = 0
    sriov: bool = True
    source: str = ""
    date: str = ""

    @property
    def has_infiniband(self) -> bool:
        """Whether NCCL, UCX and any MPI can use InfiniBand there."""
        return self.infiniband > 0 and self.sriov

    def is_with(self, accelerator: str) -> bool | None:
        """Whether its GPUs are of a kind as Ray names it: A100, or A100-80G with their memory; None: not known."""
        if not self.gpus:
            return False
        if not self.gpu:
            return None
        words = re.sub(r"(?i)^nvidia[ _-]+(tesla[ _-]+)?|^amd[ _-]+(instinct[ _-]+)?", "", accelerator)
        kind, _, memory = re.sub(r"(?i)[-_ ]?(\d+)\s*gi?b?$", r"|\1", words).partition("|")
        own = _letters(self.gpu)
        is_same = _letters(kind) in (own, own.removesuffix("nvl"))
        return is_same and (not memory or not self.gpu_memory or float(memory) == self.gpu_memory)

    def describe(self) -> str:
        """`8 x A100 80 GiB, 96 cores, InfiniBand 1600 Gbit/s`."""
        words = [f"{self.gpus} x {self.gpu or 'GPU'}{f' {self.gpu_memory:g} GiB' if self.gpu_memory else ''}"]
        if not self.gpus:
            words = ["no GPU"]
        words += [f"{self.cpus} cores"] if self.cpus else []
        if self.infiniband:
            words.append(f"InfiniBand {self.infiniband:g} Gbit/s{'' if self.sriov else ' without SR-IOV'}")
        else:
            words.append("no InfiniBand")
        return ", ".join(words)


#: The fields that `machines:` in computes.yml may give, with their meaning.
FIELDS = {
    "gpus": "GPUs of the machine",
    "gpu": "their kind, as A100",
    "gpu_memory": "memory of each GPU, GiB",
    "cpus": "cores",
    "memory": "memory, GiB",
    "infiniband": "rate of all InfiniBand links together, Gbit/s; 0: none",
    "sriov": "false: a virtual machine that does not see the InfiniBand device itself",
    "source": "where this is from",
    "date": "when that was",
}


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


class Catalogue:
    """Kinds of machines by name; a site's own win."""

    def __init__(self, machines: Iterable[Machine]) -> None:
        self._machines = {_plain(machine.name): machine for machine in machines}

    def __iter__(self) -> Iterator[Machine]:
        return iter(self._machines.values())

    def find(self, name: str | None) -> Machine | None:
        """The machine of a name, or None if it is not known."""
        return self._machines.get(_plain(name)) if name else None

    def nearest(self, name: str) -> str | None:
        """The name that was probably meant."""
        from jobsdk.findings import nearest

        found = nearest(_plain(name), self._machines)
        return self._machines[found].name if found else None

    def sibling(self, machine: Machine) -> Machine | None:
        """A machine with GPUs of the same kind and InfiniBand: of the same make and size if there is one."""
        kind = machine.gpu.partition(" ")[0]

        def distance(other: Machine) -> tuple[bool, int, bool]:
            return (
                (other.gpu, other.gpu_memory) != (machine.gpu, machine.gpu_memory),
                abs(other.gpus - machine.gpus),
                other.gpus < machine.gpus,
            )

        fitting = [other for other in self if other.has_infiniband and kind and other.gpu.partition(" ")[0] == kind]
        return min(fitting, key=distance, default=None)

    def joined(self, own: Mapping[str, Mapping[str, Any]]) -> Catalogue:
        """This catalogue with a site's own machines, as `mistakes` has found them to be right."""
        return Catalogue([*self, *(Machine(name, **fields) for name, fields in own.items())])


def _plain(name: str) -> str:
    return name.lower().removeprefix(_PREFIX)


@functools.lru_cache(maxsize=1)
def known() -> Catalogue:
    """The machines of `machines.csv`."""
    lines = (Path(__file__).parent / "machines.csv").read_text(encoding="utf-8").splitlines()
    rows = [line.split(",") for line in lines if line and not line.startswith("#")]
    return Catalogue(_of_row(dict(zip(rows[0], row, strict=True))) for row in rows[1:])


def _of_row(row: dict[str, str]) -> Machine:
    numbers = {name: int(row[name]) for name in ("gpus", "gpu_memory", "cpus", "memory", "infiniband")}
    texts = {name: row[name] for name in ("name", "gpu", "source", "date")}
    return Machine(**texts, **numbers, sriov=row["sriov"] == "yes")  # type: ignore[arg-type]


def mistakes(own: object) -> Iterator[str]:
    """Everything that is wrong in a `machines` mapping of computes.yml."""
    from jobsdk.findings import meant, show

    if not isinstance(own, dict):
        yield "machines must be a mapping of names"
        return
    for name, fields in own.items():
        if not isinstance(fields, dict):
            yield f"machines.{name} must be a mapping, as in {name}: {{gpus: 8, gpu: A100, infiniband: 1600}}"
            continue
        for field, value in fields.items():
            if field not in FIELDS:
                help = meant(field, FIELDS, f"it has {', '.join(FIELDS)}")
                yield f"machines.{name} has no field {show(field)}: {help}"
            elif not _fits(field, value):
                kind = {"gpu": "a text", "source": "a text", "date": "a date"}.get(field, "a number, at least 0")
                yield f"machines.{name}.{field} must be {'true or false' if field == 'sriov' else kind}"


def _fits(field: str, value: object) -> bool:
    if field == "sriov":
        return isinstance(value, bool)
    if field == "date":
        return value is not None and not isinstance(value, list | dict)  # YAML makes a date of it
    if field in ("gpu", "source"):
        return isinstance(value, str)
    whole = int if field in ("gpus", "cpus") else (int, float)
    return isinstance(value, whole) and not isinstance(value, bool) and value >= 0

"""How a job's processes find each other: one module, with one class, for each type of distribution."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .base import Distribution

if TYPE_CHECKING:
    from ..spec.plan import Plan

_CLASSES = {
    "none": "NoDistribution", "pytorch": "PyTorch", "tensorflow": "TensorFlow", "mpi": "Mpi", "deepspeed": "DeepSpeed",
    "ray": "Ray",
}  # fmt: skip


def of(plan: Plan) -> Distribution:
    """The distribution of a plan. Raises KeyError for an unknown type."""
    kind = plan["distribution"]["type"]
    name = _CLASSES[kind]  # a node imports only the module that its job needs
    made: Distribution = getattr(import_module("." + kind, __name__), name)(plan)
    return made

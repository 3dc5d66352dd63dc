"""Rank, device, process group, reports and checkpoints for training scripts, under every launcher and on any compute.

    from jobsdk.train import get_context, get_device, init_process_group, report

It needs only Python 3.8. The functions for devices and process groups import torch when you call them. Jobs bring it to
nodes without jobsdk. Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from .checkpoints import Checkpoint, get_checkpoint
    from .context import Context, get_context
    from .devices import get_device, get_devices
    from .errors import TrainError
    from .process_group import barrier, destroy_process_group, init_process_group
    from .reporting import get_metrics, report
    from .saving import Checkpoints

_MODULES = {
    "checkpoints": ["Checkpoint", "get_checkpoint"],
    "context": ["Context", "get_context"],
    "devices": ["get_device", "get_devices"],
    "errors": ["TrainError"],
    "process_group": ["barrier", "destroy_process_group", "init_process_group"],
    "reporting": ["get_metrics", "report"],
    "saving": ["Checkpoints"],
}
#: Names of `ray.train` that only submitting needs; they are there where jobsdk is installed.
_OF_JOBSDK = ("CheckpointConfig", "FailureConfig", "Result", "RunConfig", "ScalingConfig", "TrainingFailedError")
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Context",
    "TrainError",
    "barrier",
    "destroy_process_group",
    "get_checkpoint",
    "get_context",
    "get_device",
    "get_devices",
    "get_metrics",
    "init_process_group",
    "report",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "torch":  # a submodule that is used as one: jobsdk.train.torch.get_device()
        return import_module(".torch", __name__)
    if name in _OF_JOBSDK:
        return getattr(import_module("jobsdk"), name)
    module = _HOME.get(name)
    if module is None:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    value = globals()[name] = getattr(import_module("." + module, __name__), name)
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__, *_OF_JOBSDK})

"""The names of `ray.train.torch`, so that a script is ported by changing `ray.train` to `jobsdk.train`.

`TorchTrainer` and `TorchConfig` need an installed jobsdk; the others are there wherever `jobsdk.train` is.
"""

from __future__ import annotations

from typing import Any, List

from .devices import get_device, get_devices

__all__ = ["get_device", "get_devices"]

_OF_JOBSDK = ("TorchConfig", "TorchTrainer")
_ABSENT = {
    "prepare_model": "write torch.nn.parallel.DistributedDataParallel(model)",
    "prepare_data_loader": "give the DataLoader a torch.utils.data.DistributedSampler",
}


def __getattr__(name: str) -> Any:
    if name in _OF_JOBSDK:
        from importlib import import_module

        return getattr(import_module("jobsdk"), name)
    fix = ". Fix: %s" % _ABSENT[name] if name in _ABSENT else ""
    raise AttributeError("module %r has no attribute %r%s" % (__name__, name, fix))


def __dir__() -> List[str]:
    return sorted({*globals(), *_OF_JOBSDK})

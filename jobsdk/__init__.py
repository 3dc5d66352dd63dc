"""One job description that runs on a laptop, a cluster or a cloud.

    from jobsdk import MLClient, PyTorchDistribution, command

    job = command(
        command="python train.py --epochs ${{inputs.epochs}}",
        code="src",
        inputs={"epochs": 3},
        distribution=PyTorchDistribution(process_count_per_instance=2),
        instance_count=2,
    )
    run = MLClient().jobs.create_or_update(job)

`__init__.pyi` lists the names here and their modules. They are loaded when they are first used.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from jobsdk.notebook import Views

__version__ = "0.1.0"


def _modules() -> dict[str, str]:
    """The module of each public name, from the lines `from MODULE import NAME as NAME` that type checkers read."""
    with open(os.path.join(os.path.dirname(__file__), "__init__.pyi")) as stub:
        imports = [line.split() for line in stub if line.startswith("from ")]
    return {name: module for _, module, _, name, *_ in imports}


_MODULES = _modules()
__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "train":  # a submodule that is used as one: jobsdk.train.report()
        return import_module("jobsdk.train")
    if name not in _MODULES:
        raise AttributeError(f"module 'jobsdk' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_uncaught
    return value


def _show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End a script as Python does, but of an error of jobsdk show the script's own frames and none of jobsdk's."""
    from jobsdk.notebook import is_ours, uncaught

    if is_ours(error):
        sys.stderr.write(uncaught(error))
    else:
        sys.__excepthook__(kind, error, trace)


def _views() -> Views:
    from jobsdk.views import display

    return display


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

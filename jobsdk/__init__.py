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

The names here are loaded when they are first used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from jobsdk.client.operations import MLClient
    from jobsdk.compat.torch_distributor import TorchDistributor
    from jobsdk.compat.torch_trainer import FailureConfig, RunConfig, TorchTrainer, TrainingFailedError
    from jobsdk.compat.training_result import Result
    from jobsdk.compute.azureml.entities import from_azure, to_azure
    from jobsdk.errors import (
        ComputeError,
        JobFailed,
        JobsdkError,
        RunExists,
        RunNotFound,
        ValidationError,
    )
    from jobsdk.findings import Finding
    from jobsdk.functions import as_completed, function
    from jobsdk.job.command import CommandJob, command
    from jobsdk.job.distribution import (
        DeepSpeedDistribution,
        MpiDistribution,
        PyTorchDistribution,
        RayDistribution,
        TensorFlowDistribution,
    )
    from jobsdk.job.environment import BuildContext, Environment
    from jobsdk.job.identity import (
        AmlTokenConfiguration,
        ManagedIdentityConfiguration,
        UserIdentityConfiguration,
    )
    from jobsdk.job.io import Data, Input, Output
    from jobsdk.job.resources import CommandJobLimits, JobResourceConfiguration, QueueSettings, ResourceConfiguration
    from jobsdk.job.scaling import ScalingConfig, TorchConfig
    from jobsdk.job.schema import job_schema
    from jobsdk.job.services import (
        JupyterLabJobService,
        SshJobService,
        TensorBoardJobService,
        VsCodeJobService,
    )
    from jobsdk.job.yaml_file import load_component, load_job
    from jobsdk.train.devices import get_device, get_devices

__version__ = "0.1.0"

_MODULES = {
    "jobsdk.compute.azureml.entities": ["from_azure", "to_azure"],
    "jobsdk.client.operations": ["MLClient"],
    "jobsdk.errors": ["ComputeError", "JobFailed", "JobsdkError", "RunExists", "RunNotFound", "ValidationError"],
    "jobsdk.functions": ["as_completed", "function"],
    "jobsdk.job.command": ["CommandJob", "command"],
    "jobsdk.job.distribution": [
        "DeepSpeedDistribution",
        "MpiDistribution",
        "PyTorchDistribution",
        "RayDistribution",
        "TensorFlowDistribution",
    ],
    "jobsdk.job.environment": ["BuildContext", "Environment"],
    "jobsdk.findings": ["Finding"],
    "jobsdk.job.identity": ["AmlTokenConfiguration", "ManagedIdentityConfiguration", "UserIdentityConfiguration"],
    "jobsdk.job.io": ["Data", "Input", "Output"],
    "jobsdk.job.resources": ["CommandJobLimits", "JobResourceConfiguration", "QueueSettings", "ResourceConfiguration"],
    "jobsdk.job.scaling": ["ScalingConfig", "TorchConfig"],
    "jobsdk.job.schema": ["job_schema"],
    "jobsdk.job.services": ["JupyterLabJobService", "SshJobService", "TensorBoardJobService", "VsCodeJobService"],
    "jobsdk.job.yaml_file": ["load_component", "load_job"],
    "jobsdk.compat.torch_distributor": ["TorchDistributor"],
    "jobsdk.compat.torch_trainer": ["FailureConfig", "RunConfig", "TorchTrainer", "TrainingFailedError"],
    "jobsdk.train.devices": ["get_device", "get_devices"],
    "jobsdk.compat.training_result": ["Result"],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AmlTokenConfiguration",
    "BuildContext",
    "CommandJob",
    "CommandJobLimits",
    "ComputeError",
    "Data",
    "DeepSpeedDistribution",
    "Environment",
    "FailureConfig",
    "Finding",
    "Input",
    "JobFailed",
    "JobResourceConfiguration",
    "JobsdkError",
    "JupyterLabJobService",
    "MLClient",
    "ManagedIdentityConfiguration",
    "MpiDistribution",
    "Output",
    "PyTorchDistribution",
    "QueueSettings",
    "RayDistribution",
    "ResourceConfiguration",
    "Result",
    "RunConfig",
    "RunExists",
    "RunNotFound",
    "ScalingConfig",
    "SshJobService",
    "TensorBoardJobService",
    "TensorFlowDistribution",
    "TorchConfig",
    "TorchDistributor",
    "TorchTrainer",
    "TrainingFailedError",
    "UserIdentityConfiguration",
    "ValidationError",
    "VsCodeJobService",
    "__version__",
    "as_completed",
    "command",
    "from_azure",
    "function",
    "get_device",
    "get_devices",
    "job_schema",
    "load_component",
    "load_job",
    "to_azure",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "train":  # a submodule that is used as one: jobsdk.train.report()
        return import_module("jobsdk.train")
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module 'jobsdk' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(module), name)
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_uncaught
    return value


def _show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End a script as Python does, but of an error of jobsdk show the script's own frames and none of jobsdk's."""
    from jobsdk.errors import JobsdkError

    if isinstance(error, JobsdkError):
        from jobsdk.notebook import uncaught

        sys.stderr.write(uncaught(error))
    else:
        sys.__excepthook__(kind, error, trace)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

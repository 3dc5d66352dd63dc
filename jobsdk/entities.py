"""The classes that Azure ML notebooks import from `azure.ai.ml.entities`, as far as jobs need them."""

from __future__ import annotations

from jobsdk.job.command import CommandJob
from jobsdk.job.distribution import (
    DeepSpeedDistribution,
    MpiDistribution,
    PyTorchDistribution,
    RayDistribution,
    TensorFlowDistribution,
)
from jobsdk.job.environment import BuildContext, Environment
from jobsdk.job.identity import AmlTokenConfiguration, ManagedIdentityConfiguration, UserIdentityConfiguration
from jobsdk.job.io import Data, Input, Output
from jobsdk.job.resources import CommandJobLimits, JobResourceConfiguration, QueueSettings, ResourceConfiguration
from jobsdk.job.services import JupyterLabJobService, SshJobService, TensorBoardJobService, VsCodeJobService

#: Azure ML's common name of what `command()` and `load_job()` return.
Command = CommandJob

__all__ = [
    "AmlTokenConfiguration",
    "BuildContext",
    "Command",
    "CommandJob",
    "CommandJobLimits",
    "Data",
    "DeepSpeedDistribution",
    "Environment",
    "Input",
    "JobResourceConfiguration",
    "JupyterLabJobService",
    "ManagedIdentityConfiguration",
    "MpiDistribution",
    "Output",
    "PyTorchDistribution",
    "QueueSettings",
    "RayDistribution",
    "ResourceConfiguration",
    "SshJobService",
    "TensorBoardJobService",
    "TensorFlowDistribution",
    "UserIdentityConfiguration",
    "VsCodeJobService",
]

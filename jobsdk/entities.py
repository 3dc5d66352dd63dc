"""The classes that Azure ML notebooks import from `azure.ai.ml.entities`, as far as jobs need them."""

from __future__ import annotations

from jobsdk.job.command import CommandJob as CommandJob
from jobsdk.job.distribution import DeepSpeedDistribution as DeepSpeedDistribution
from jobsdk.job.distribution import MpiDistribution as MpiDistribution
from jobsdk.job.distribution import PyTorchDistribution as PyTorchDistribution
from jobsdk.job.distribution import RayDistribution as RayDistribution
from jobsdk.job.distribution import TensorFlowDistribution as TensorFlowDistribution
from jobsdk.job.environment import BuildContext as BuildContext
from jobsdk.job.environment import Environment as Environment
from jobsdk.job.identity import AmlTokenConfiguration as AmlTokenConfiguration
from jobsdk.job.identity import ManagedIdentityConfiguration as ManagedIdentityConfiguration
from jobsdk.job.identity import UserIdentityConfiguration as UserIdentityConfiguration
from jobsdk.job.io import Data as Data
from jobsdk.job.io import Input as Input
from jobsdk.job.io import Output as Output
from jobsdk.job.resources import CommandJobLimits as CommandJobLimits
from jobsdk.job.resources import JobResourceConfiguration as JobResourceConfiguration
from jobsdk.job.resources import QueueSettings as QueueSettings
from jobsdk.job.resources import ResourceConfiguration as ResourceConfiguration
from jobsdk.job.services import JupyterLabJobService as JupyterLabJobService
from jobsdk.job.services import SshJobService as SshJobService
from jobsdk.job.services import TensorBoardJobService as TensorBoardJobService
from jobsdk.job.services import VsCodeJobService as VsCodeJobService

#: Azure ML's common name of what `command()` and `load_job()` return.
Command = CommandJob

__all__ = [name for name in globals() if name[0].isupper()]

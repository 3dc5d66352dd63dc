import jobsdk.notebook
from jobsdk.client.operations import MLClient as MLClient
from jobsdk.compat.torch_distributor import TorchDistributor as TorchDistributor
from jobsdk.compat.torch_trainer import CheckpointConfig as CheckpointConfig
from jobsdk.compat.torch_trainer import FailureConfig as FailureConfig
from jobsdk.compat.torch_trainer import RunConfig as RunConfig
from jobsdk.compat.torch_trainer import TorchTrainer as TorchTrainer
from jobsdk.compat.torch_trainer import TrainingFailedError as TrainingFailedError
from jobsdk.compat.training_result import Result as Result
from jobsdk.compute.azureml.entities import from_azure as from_azure
from jobsdk.compute.azureml.entities import to_azure as to_azure
from jobsdk.errors import ComputeError as ComputeError
from jobsdk.errors import JobFailed as JobFailed
from jobsdk.errors import JobsdkError as JobsdkError
from jobsdk.errors import RunExists as RunExists
from jobsdk.errors import RunNotFound as RunNotFound
from jobsdk.errors import ValidationError as ValidationError
from jobsdk.findings import Finding as Finding
from jobsdk.functions import as_completed as as_completed
from jobsdk.functions import function as function
from jobsdk.job.command import CommandJob as CommandJob
from jobsdk.job.command import command as command
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
from jobsdk.job.scaling import ScalingConfig as ScalingConfig
from jobsdk.job.scaling import TorchConfig as TorchConfig
from jobsdk.job.schema import job_schema as job_schema
from jobsdk.job.services import JupyterLabJobService as JupyterLabJobService
from jobsdk.job.services import SshJobService as SshJobService
from jobsdk.job.services import TensorBoardJobService as TensorBoardJobService
from jobsdk.job.services import VsCodeJobService as VsCodeJobService
from jobsdk.job.yaml_file import load_component as load_component
from jobsdk.job.yaml_file import load_job as load_job
from jobsdk.train.devices import get_device as get_device
from jobsdk.train.devices import get_devices as get_devices

__version__: str

def _views() -> jobsdk.notebook.Views: ...

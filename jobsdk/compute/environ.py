"""The environment that the ranks of a local job start from: the user's own, without what other launchers left in it.

Who submits a job may be a rank, a step of Slurm, or a worker of Ray or Spark itself. What says which job, node or rank
that one is must not reach the new job; what says where an engine is (SLURM_CONF, RAY_ADDRESS, SPARK_HOME), and what
are a user's settings (NCCL_*, OMP_NUM_THREADS, OMPI_MCA_*), stays.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from jobsdk.bootstrap.spec import mlflow_store, paths

#: Who sets them -> whole names, and beginnings of names (those that end in `*`).
_FOREIGN = {
    # Also of accelerate, DeepSpeed, Lightning, Kubeflow and Ray Train, which all name them as torchrun does.
    "torchrun": "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK "
    "ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT PET_* TORCHELASTIC_*",
    "deepspeed": "CROSS_RANK CROSS_SIZE LOCAL_SIZE",
    "horovod": "HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_* HOROVOD_CROSS_* HOROVOD_HOSTNAME HOROVOD_CONTROLLER "
    "HOROVOD_GLOO_IFACE HOROVOD_GLOO_RENDEZVOUS_*",
    "torchx": "TORCHX_JOB_ID TORCHX_RANK0_HOST TORCHX_REPLICA_ID TORCHX_MAX_RETRIES TORCHX_INTERNAL_SESSION_ID",
    "tensorflow": "TF_CONFIG",
    # An inherited SLURM_CPU_BIND once made a whole fleet three times slower (goodfire-ai/spd, pull request 955).
    "slurm": "SLURM_* SLURMD_* SBATCH_* SALLOC_* SRUN_* SUBMITIT_*",
    "pbs, lsf": "PBS_JOB* PBS_NODE* PBS_TASK* PBS_ENVIRONMENT PBS_QUEUE PBS_O_* LSB_* LS_JOBPID",
    "mpi": "OMPI_* PMIX_* PMI_* PMI2_* PRTE_* ORTE_* HYDRA_* HYDI_* MPI_LOCAL* MPIR_* MV2_COMM_WORLD_* PALS_* "
    "MPIEXEC_* I_MPI_HYDRA_SERVER I_MPI_MPIRUN I_MPI_INFO_*",
    "ray": "RAY_JOB_* RAY_RAYLET_PID RAY_WORKER_ID RAY_NODE_ID RAY_ACTOR_ID RAY_TASK_ID RAY_SESSION_* RAY_CLIENT_MODE "
    "RAY_OVERRIDE_JOB_RUNTIME_ENV",
    "spark": "SPARK_APPLICATION_ID SPARK_EXECUTOR_ID SPARK_EXECUTOR_POD_* SPARK_EXECUTOR_DIRS SPARK_DRIVER_URL "
    "SPARK_DRIVER_BIND_ADDRESS SPARK_DRIVER_POD_* SPARK_RESOURCE_PROFILE_ID SPARK_YARN_STAGING_DIR SPARK_LOG_URL_* "
    "SPARK_REUSE_WORKER SPARK_ENV_LOADED PYTHON_WORKER_FACTORY_* PYSPARK_GATEWAY_* PYSPARK_DRIVER_CALLBACK_* "
    "APPLICATION_WEB_PROXY_BASE",
    # The pod stays what it is: the ranks run in it, too.
    "kubernetes": "JOB_COMPLETION_INDEX JOB_INDEX JOB_GLOBAL_INDEX JOBSET_* VC_TASK_INDEX VK_TASK_INDEX",
    # Not AZUREML_ARM_* and AZUREML_SERVICE_ENDPOINT, by which the workspace is found.
    "azure ml": "AZUREML_RUN_* AZUREML_ROOT_RUN_ID AZUREML_PARENT_RUN_ID AZUREML_EXPERIMENT_* AZUREML_JOB_* "
    "AZUREML_CR_* AZUREML_NODE_COUNT AZUREML_PROCESS_NAME AZUREML_DATA_CONTAINER_ID AZUREML_PARAMETER_* "
    "AZUREML_OUTPUT_* AZURE_ML_INPUT_* AZURE_ML_OUTPUT_* AZ_BATCH_* AZ_BATCHAI_* AZ_LS_*",
    "jobsdk": "NODE_COUNT JOBSDK_*",
}  # fmt: skip
_KEPT = frozenset(("SLURM_CONF", "JOBSDK_HOME"))
_WORDS = " ".join(_FOREIGN.values()).split()
_NAMES = frozenset(word for word in _WORDS if not word.endswith("*"))
_PREFIXES = tuple(word[:-1] for word in _WORDS if word.endswith("*"))
#: Settings of Open MPI: a user's own, except in a process that mpirun has started, where they may be mpirun's.
_OF_MPI = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")
#: What `accelerate launch` tells its script, which it always does by this one too; elsewhere they are a user's own.
_ACCELERATE, _OF_ACCELERATE = (
    "ACCELERATE_DYNAMO_BACKEND",
    ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_"),
)
#: What a notebook's kernel sets for what it shows itself. A rank writes to a file: no colors, no inline plots.
_OF_KERNELS = frozenset("JPY_PARENT_PID JPY_SESSION_NAME CLICOLOR CLICOLOR_FORCE FORCE_COLOR".split())
_INLINE = "module://matplotlib_inline"


def for_ranks(environ: Mapping[str, str], *, python: str | None = None, prefix: str | None = None) -> dict[str, str]:
    """`environ` without other launchers' variables, and with the right `python` first on PATH.

    That is the folder of `python` (this interpreter unless given), or of the environment at `prefix` that was built
    for the job.
    """
    gone = set(dropped(environ))
    variables = {name: value for name, value in environ.items() if name not in gone}
    folder = os.path.dirname(python or sys.executable)
    if prefix is not None:
        folder = os.path.join(prefix, "bin")
        variables["VIRTUAL_ENV"] = prefix
        variables.pop("PYTHONHOME", None)
    path = variables.get("PATH", os.defpath).split(os.pathsep)
    variables["PATH"] = os.pathsep.join([folder, *(entry for entry in path if entry != folder)])
    return variables


def foreign() -> tuple[list[str], list[str]]:
    """What other launchers set: names, and beginnings of names."""
    return sorted(_NAMES), sorted(_PREFIXES)


def dropped(environ: Mapping[str, str]) -> list[str]:
    """The names in `environ` that `for_ranks` leaves out, in the order of the alphabet."""
    settings = () if "OMPI_COMM_WORLD_RANK" in environ or "PMIX_RANK" in environ else _OF_MPI
    gone = {name for name in environ if _is_foreign(name) and name not in _KEPT and not name.startswith(settings)}
    if _ACCELERATE in environ:
        gone.update(name for name in environ if name.startswith(_OF_ACCELERATE))
    # A rank submits a job of its own: that one's metrics belong to its own run.
    outer, uri = environ.get("JOBSDK_RUN_DIR"), environ.get(mlflow_store.URI, "")
    if outer and uri.startswith(paths.tracking_uri(outer, 0)):
        gone.update(name for name in mlflow_store.NAMES if name in environ)
    elif "AZUREML_RUN_ID" in environ and uri.startswith("azureml"):
        gone.update({"MLFLOW_RUN_ID"} & environ.keys())
    plots_inline = environ.get("MPLBACKEND", "").startswith(_INLINE)
    if plots_inline or "JPY_PARENT_PID" in environ:
        gone.update(_OF_KERNELS & environ.keys())
    if plots_inline:
        gone.add("MPLBACKEND")
    return sorted(gone)


def _is_foreign(name: str) -> bool:
    return name in _NAMES or name.startswith(_PREFIXES)

"""The environment that the ranks of a local job start from: the user's own, without what other launchers left in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

#: Who started this process may have been a rank, a Slurm step or a job of ours; its identity is not the new job's.
#: An inherited SLURM_CPU_BIND once made a whole fleet three times slower; SLURM_CONF only says where Slurm is.
_NAMES = frozenset(
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE LOCAL_SIZE NODE_RANK NODE_COUNT GROUP_RANK GROUP_WORLD_SIZE "
    "ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE CROSS_RANK CROSS_SIZE MASTER_ADDR MASTER_PORT TF_CONFIG "
    "AZUREML_RUN_ID AZUREML_NODE_COUNT AZUREML_CR_NODE_RANK AZUREML_PROCESS_NAME JOBSDK_HOSTFILE "
    "JOBSDK_DEEPSPEED_CONFIG "
    "JOBSDK_RESTART_COUNT JOBSDK_NODE_RANK JOBSDK_CONTROL JOBSDK_TOKEN JOBSDK_IO_DIR".split()
)
_PREFIXES = (
    "SLURM_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "PMI2_", "OMPI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_LOCAL",
    "MPIR_", "PET_", "TORCHELASTIC_", "JOBSDK_RUN_", "AZ_BATCH_", "AZ_BATCHAI_", "AZURE_ML_INPUT_",
    "AZURE_ML_OUTPUT_",
)  # fmt: skip
_KEPT = frozenset(("SLURM_CONF",))


def for_ranks(environ: Mapping[str, str], *, python: str | None = None, prefix: str | None = None) -> dict[str, str]:
    """`environ` without other launchers' variables, and with the right `python` first on PATH.

    That is the folder of `python` (this interpreter unless given), or of the environment at `prefix` that was built
    for the job.
    """
    variables = {name: value for name, value in environ.items() if name in _KEPT or not _is_foreign(name)}
    folder = os.path.dirname(python or sys.executable)
    if prefix is not None:
        folder = os.path.join(prefix, "bin")
        variables["VIRTUAL_ENV"] = prefix
        variables.pop("PYTHONHOME", None)
    path = variables.get("PATH", os.defpath).split(os.pathsep)
    variables["PATH"] = os.pathsep.join([folder, *(entry for entry in path if entry != folder)])
    return variables


def _is_foreign(name: str) -> bool:
    return name in _NAMES or name.startswith(_PREFIXES)

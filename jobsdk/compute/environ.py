"""The environment that the ranks of a local job start from: the user's own, without what other launchers left in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from jobsdk.bootstrap import layout, metrics

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
#: Settings of Open MPI: a user's own, except in a process that mpirun has started, where they may be mpirun's.
_OF_MPI = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")
#: What a notebook's kernel sets for what it shows itself. A rank writes to a file: no colours, no inline plots.
_OF_KERNELS = frozenset("JPY_PARENT_PID JPY_SESSION_NAME CLICOLOR CLICOLOR_FORCE FORCE_COLOR".split())
_INLINE = "module://matplotlib_inline"


def for_ranks(environ: Mapping[str, str], *, python: str | None = None, prefix: str | None = None) -> dict[str, str]:
    """`environ` without other launchers' variables, and with the right `python` first on PATH.

    That is the folder of `python` (this interpreter unless given), or of the environment at `prefix` that was built
    for the job.
    """
    settings = () if "OMPI_COMM_WORLD_RANK" in environ or "PMIX_RANK" in environ else _OF_MPI
    variables = {
        name: value
        for name, value in environ.items()
        if name in _KEPT or name.startswith(settings) or not _is_foreign(name)
    }
    # A rank submits a job of its own: that one's metrics belong to its own run.
    outer = environ.get("JOBSDK_RUN_DIR")
    if outer and variables.get(metrics.URI, "").startswith(layout.tracking_uri(outer, 0)):
        variables = {name: value for name, value in variables.items() if name not in metrics.NAMES}
    plots_inline = variables.get("MPLBACKEND", "").startswith(_INLINE)
    if plots_inline or "JPY_PARENT_PID" in variables:
        variables = {name: value for name, value in variables.items() if name not in _OF_KERNELS}
    if plots_inline:
        del variables["MPLBACKEND"]
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

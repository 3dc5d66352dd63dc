from __future__ import annotations

import os
import sys

from jobsdk.compute.environ import for_ranks

_POISON = """RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE
GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT TF_CONFIG TORCHELASTIC_RUN_ID TORCHELASTIC_ERROR_FILE PET_NNODES PET_NODE_RANK
SLURM_JOB_ID SLURM_CPU_BIND SLURM_PROCID SLURM_NTASKS SBATCH_EXPORT SRUN_DEBUG PMI_RANK PMI_FD PMIX_RANK PMIX_NAMESPACE
OMPI_COMM_WORLD_RANK OMPI_MCA_orte_jobid PRTE_MCA_x HYDRA_LAUNCHER HYDI_CONTROL_FD MPI_LOCALRANKID CROSS_RANK LOCAL_SIZE
JOBSDK_RUN_NAME JOBSDK_RUN_DIR JOBSDK_RESTART_COUNT AZ_BATCH_HOST_LIST AZUREML_RUN_ID AZURE_ML_INPUT_data""".split()
_KEPT = {
    "HOME": "/h",
    "SLURM_CONF": "/etc/slurm.conf",
    "CUDA_VISIBLE_DEVICES": "1",
    "RANKING": "x",
    "OMP_NUM_THREADS": "3",
    "NCCL_DEBUG": "INFO",
    "JOBSDK_HOME": "/runs",
    "LOCAL_DATA": "/d",
    "PYTHONUNBUFFERED": "0",
}


def test_nothing_of_another_launcher_is_left_and_all_else_is_kept() -> None:
    found = for_ranks({**dict.fromkeys(_POISON, "7"), **_KEPT, "PATH": "/a"}, python="/py/bin/python3")
    assert found == {**_KEPT, "PATH": "/py/bin:/a"}


def test_settings_of_mpi_are_the_users_own_outside_of_mpi() -> None:
    settings = {"OMPI_MCA_btl": "self,tcp", "PRTE_MCA_plm": "ssh", "PATH": "/a"}
    assert settings.items() - {("PATH", "/a")} <= for_ranks(settings).items()
    assert for_ranks({**settings, "PMIX_RANK": "0"}).keys() == {"PATH"}


def test_what_a_notebook_set_for_itself_is_left_out() -> None:
    colours = {"FORCE_COLOR": "1", "CLICOLOR": "1", "CLICOLOR_FORCE": "1"}
    inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    plain = for_ranks({"PATH": "/a"})
    assert for_ranks({"PATH": "/a", **colours, **inline, "JPY_PARENT_PID": "7", "JPY_SESSION_NAME": "n"}) == plain
    assert for_ranks({"PATH": "/a", **colours, **inline}) == plain  # an editor's kernel
    assert for_ranks({"PATH": "/a", **colours, "MPLBACKEND": "agg"}) == {**plain, **colours, "MPLBACKEND": "agg"}


def test_the_right_python_comes_first_once() -> None:
    assert for_ranks({"PATH": "/a:/py/bin:/b"}, python="/py/bin/python")["PATH"] == "/py/bin:/a:/b"
    assert for_ranks({})["PATH"].split(":")[0] == os.path.dirname(sys.executable)


def test_an_environment_that_was_built_comes_before_it() -> None:
    found = for_ranks({"PATH": "/a", "PYTHONHOME": "/x"}, prefix="/envs/1")
    assert found == {"PATH": "/envs/1/bin:/a", "VIRTUAL_ENV": "/envs/1"}

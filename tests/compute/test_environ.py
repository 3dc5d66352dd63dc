from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from jobsdk import MLClient, Output, PyTorchDistribution, command
from jobsdk.compute.environ import dropped, for_ranks

#: What launchers and engines tell their processes of who they are.
_POISON = """RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK NODE_COUNT GROUP_RANK ROLE_RANK ROLE_NAME
ROLE_WORLD_SIZE GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT TF_CONFIG TORCHELASTIC_RUN_ID TORCHELASTIC_ERROR_FILE
PET_NNODES PET_NODE_RANK SLURM_JOB_ID SLURM_CPU_BIND SLURM_PROCID SLURM_NTASKS SBATCH_EXPORT SALLOC_PARTITION SRUN_DEBUG
SUBMITIT_EXECUTOR PBS_JOBID PBS_NODEFILE LSB_JOBID LSB_HOSTS PMI_RANK PMI_FD PMIX_RANK PMIX_NAMESPACE
OMPI_COMM_WORLD_RANK OMPI_MCA_orte_jobid PRTE_MCA_x HYDRA_LAUNCHER HYDI_CONTROL_FD MPI_LOCALRANKID MV2_COMM_WORLD_RANK
PALS_RANKID CROSS_RANK CROSS_SIZE LOCAL_SIZE HOROVOD_RANK HOROVOD_LOCAL_RANK TORCHX_JOB_ID ACCELERATE_DYNAMO_BACKEND
ACCELERATE_USE_FSDP FSDP_VERSION RAY_JOB_ID RAY_JOB_CONFIG_JSON_ENV_VAR RAY_RAYLET_PID SPARK_EXECUTOR_ID
SPARK_APPLICATION_ID PYTHON_WORKER_FACTORY_SECRET PYSPARK_GATEWAY_PORT JOB_COMPLETION_INDEX JOBSET_NAME VC_TASK_INDEX
JOBSDK_RUN_NAME JOBSDK_RUN_DIR JOBSDK_RESTART_COUNT JOBSDK_TOKEN JOBSDK_MPIRUN AZ_BATCH_HOST_LIST AZUREML_RUN_ID
AZUREML_RUN_TOKEN AZUREML_CR_NODE_RANK AZURE_ML_INPUT_data""".split()
_KEPT = {
    "HOME": "/h",
    "SLURM_CONF": "/etc/slurm.conf",
    "CUDA_VISIBLE_DEVICES": "1",
    "RANKING": "x",
    "OMP_NUM_THREADS": "3",
    "NCCL_DEBUG": "INFO",
    "NCCL_SOCKET_IFNAME": "lo",
    "HF_HOME": "/hf",
    "RAY_ADDRESS": "auto",
    "SPARK_HOME": "/spark",
    "AZUREML_ARM_SUBSCRIPTION": "s",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "HOROVOD_FUSION_THRESHOLD": "1",
    "JOBSDK_HOME": "/runs",
    "LOCAL_DATA": "/d",
    "PYTHONUNBUFFERED": "0",
}


def test_nothing_of_another_launcher_is_left_and_all_else_is_kept() -> None:
    found = for_ranks({**dict.fromkeys(_POISON, "7"), **_KEPT, "PATH": "/a"}, python="/py/bin/python3")
    assert found == {**_KEPT, "PATH": "/py/bin:/a"}


def test_what_is_dropped_can_be_told() -> None:
    assert dropped({**dict.fromkeys(_POISON, "7"), **_KEPT}) == sorted(_POISON)


def test_real_ranks_see_no_other_launcher(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _POISON:
        monkeypatch.setenv(name, "poison")
    kept = {name: value for name, value in _KEPT.items() if name not in ("HOME", "JOBSDK_HOME")}
    for name, value in kept.items():
        monkeypatch.setenv(name, value)
    job = command(command="env -0 > ${{outputs.env}}/$RANK", outputs={"env": Output()}, instance_count=2,
                  distribution=PyTorchDistribution(process_count_per_instance=2))  # fmt: skip
    assert set(_POISON) <= set(job.explain(compute="local").dropped)
    run = MLClient().create_or_update(job).wait()
    assert run.exit_code == 0, run.report
    for rank in range(4):
        lines = Path(run.outputs.env.path, str(rank)).read_text().split("\0")
        found = dict(line.split("=", 1) for line in lines if line)
        assert "poison" not in found.values()
        assert kept.items() <= found.items()


def test_settings_of_accelerate_are_the_users_own_outside_of_it() -> None:
    settings = {"ACCELERATE_MIXED_PRECISION": "bf16", "FSDP_VERSION": "2"}
    assert dropped(settings) == []
    assert dropped({**settings, "ACCELERATE_DYNAMO_BACKEND": "NO"}) == ["ACCELERATE_DYNAMO_BACKEND", *settings]


def test_the_run_of_an_azure_job_is_left_to_it() -> None:
    inside = {"MLFLOW_TRACKING_URI": "azureml://w", "MLFLOW_RUN_ID": "outer"}
    assert dropped(inside) == []
    assert dropped({**inside, "AZUREML_RUN_ID": "outer"}) == ["AZUREML_RUN_ID", "MLFLOW_RUN_ID"]


def test_settings_of_mpi_are_the_users_own_outside_of_mpi() -> None:
    settings = {"OMPI_MCA_btl": "self,tcp", "PRTE_MCA_plm": "ssh", "PATH": "/a"}
    assert settings.items() - {("PATH", "/a")} <= for_ranks(settings).items()
    assert for_ranks({**settings, "PMIX_RANK": "0"}).keys() == {"PATH"}


def test_what_a_notebook_set_for_itself_is_left_out() -> None:
    colors = {"FORCE_COLOR": "1", "CLICOLOR": "1", "CLICOLOR_FORCE": "1"}
    inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    plain = for_ranks({"PATH": "/a"})
    assert for_ranks({"PATH": "/a", **colors, **inline, "JPY_PARENT_PID": "7", "JPY_SESSION_NAME": "n"}) == plain
    assert for_ranks({"PATH": "/a", **colors, **inline}) == plain  # an editor's kernel
    assert for_ranks({"PATH": "/a", **colors, "MPLBACKEND": "agg"}) == {**plain, **colors, "MPLBACKEND": "agg"}


def test_the_right_python_comes_first_once() -> None:
    assert for_ranks({"PATH": "/a:/py/bin:/b"}, python="/py/bin/python")["PATH"] == "/py/bin:/a:/b"
    assert for_ranks({})["PATH"].split(":")[0] == os.path.dirname(sys.executable)


def test_an_environment_that_was_built_comes_before_it() -> None:
    found = for_ranks({"PATH": "/a", "PYTHONHOME": "/x"}, prefix="/envs/1")
    assert found == {"PATH": "/envs/1/bin:/a", "VIRTUAL_ENV": "/envs/1"}

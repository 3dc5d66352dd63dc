"""What torchrun itself tells a process, against what a job does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jobsdk import PyTorchDistribution, command
from jobsdk.bootstrap.system.network import free_ports

#: What torchrun's agent tells itself.
INTERNAL = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
#: These name the place and the run.
OWN = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}


#: What torchrun of torch 2.13 sets.
SET = set(
    "LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID "
    "TORCHELASTIC_USE_AGENT_STORE TORCH_NCCL_ASYNC_ERROR_HANDLING TORCHELASTIC_ERROR_FILE".split()
)


def test_a_process_finds_all_that_torchrun_is_known_to_set() -> None:
    ours = command(command="true", distribution=PyTorchDistribution()).explain()[0].environment
    assert set(ours) >= SET
    alone = {name: value for name, value in ours.items() if name in SET and value in ("0", "1", "default")}
    assert alone == {
        **dict.fromkeys(("LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK"), "0"),
        **dict.fromkeys(("LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1"),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


@pytest.mark.framework("torch")
@pytest.mark.parity
def test_a_process_finds_all_that_torchrun_sets() -> None:
    (port,) = free_ports(1)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    plain = {**os.environ, "OMP_NUM_THREADS": "1"}
    argv = [*launcher, f"--master-port={port}", "--no-python", "env", "-0"]
    done = subprocess.run(argv, env=plain, check=True, capture_output=True, text=True)
    told = dict(variable.split("=", 1) for variable in done.stdout.split("\0") if variable)
    set_by_torchrun = {name: value for name, value in told.items() if plain.get(name) != value and name not in INTERNAL}
    assert {"RANK", "GROUP_RANK", "ROLE_NAME", "TORCHELASTIC_RUN_ID"} <= set(set_by_torchrun)

    ours = command(command="true", distribution=PyTorchDistribution()).explain()[0].environment
    assert set(set_by_torchrun) <= set(ours)
    assert set(set_by_torchrun) <= SET | {"OMP_NUM_THREADS"}
    # torchrun keeps its store in the launcher, and says so; here rank 0 has it.
    differs = {name for name, value in set_by_torchrun.items() if ours[name] != value} - OWN
    assert differs <= {"TORCHELASTIC_USE_AGENT_STORE"}

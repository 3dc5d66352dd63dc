"""The process group: real ones of gloo, and what is said where there can be none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.system import network
from jobsdk.train import TrainError, barrier, destroy_process_group, init_process_group, interfaces

pytestmark = pytest.mark.framework("torch")
SCRIPT = Path(__file__).parent / "scripts/use_group.py"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher has said anything, and no group is left behind."""
    known = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "JOBSDK_TORCH", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_")
    for name in list(os.environ):
        if name.startswith(known) or name.endswith("_SOCKET_IFNAME"):
            monkeypatch.delenv(name)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # which joining sets: to be taken back
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    destroy_process_group()


def world(monkeypatch: pytest.MonkeyPatch, **variables: object) -> None:
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", **variables}.items():
        monkeypatch.setenv(name, str(value))


def test_two_ranks(tmp_path: Path) -> None:
    argv = ["torchrun", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={network.free_ports(1)[0]}"]
    done = subprocess.run([*argv, str(SCRIPT)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = sorted(done.stdout.splitlines())
    assert second == "1|gloo|2|3.0|lo|"
    assert first.startswith("0|gloo|2|3.0|lo|not all ranks came to the barrier within 0.5 s: ")
    assert "Ranks 1 failed" in first


def test_alone_a_group_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    barrier()
    init_process_group()
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "gloo")
    barrier(timeout=5)
    init_process_group("gloo")
    with pytest.raises(TrainError, match=r"of backend gloo already, not nccl\. Fix: "):
        init_process_group("nccl")
    destroy_process_group()
    monkeypatch.setenv("JOBSDK_TORCH_BACKEND", "cpu:gloo")
    init_process_group(timeout=timedelta(seconds=7))
    assert dist.get_backend() == "cpu:gloo"


@pytest.mark.parametrize("method", ["env", "tcp"])
def test_as_the_job_says(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    world(monkeypatch, WORLD_SIZE=1, MASTER_PORT=network.free_ports(1)[0], JOBSDK_TORCH_INIT_METHOD=method)
    monkeypatch.setenv("JOBSDK_TORCH_TIMEOUT_S", "77")
    init_process_group()
    group = dist.distributed_c10d._get_default_group()
    assert group._get_backend(dist.distributed_c10d.torch.device("cpu")).options._timeout == timedelta(seconds=77)


def test_who_does_not_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world(monkeypatch, MASTER_PORT=network.free_ports(1)[0], JOBSDK_TORCH_TIMEOUT_S="1.5")
    with pytest.raises(TrainError) as raised:
        init_process_group()
    said = str(raised.value)
    assert said.startswith(f"rank 0 of 2 could not join the process group at 127.0.0.1:{os.environ['MASTER_PORT']}")
    assert "within 1.5 s" in said
    assert len(said) <= 400


@pytest.mark.parametrize(
    ("variables", "backend", "said"),
    [
        ({}, "ncll", r"there is no backend 'ncll' for torch\.distributed\. Fix: did you mean 'nccl'\?"),
        ({}, "quick", r"there is no backend 'quick' .* Fix: one of .*gloo"),
        ({}, "cpu:gloo,cuda:glo", "there is no backend 'glo' "),
        ({}, "nccl", "the backend nccl cannot be used: this .* Fix: gloo"),
        ({"JOBSDK_TORCH_BACKEND": "nccl"}, None, "the backend nccl cannot be used: this .* Fix: gloo"),
        ({"JOBSDK_TORCH_TIMEOUT_S": "soon"}, None, "TIMEOUT_S must be a number of seconds above 0, not 'soon'"),
        ({"JOBSDK_TORCH_INIT_METHOD": "file"}, None, "JOBSDK_TORCH_INIT_METHOD must be env or tcp, not 'file'"),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, None,
            "rank 1 of 2 does not know where rank 0 is: MASTER_ADDR and MASTER_PORT not set by open mpi. "
            "Fix: mpirun -x MASTER_ADDR",
        ),
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "a"}, None,
            "rank 0 is: MASTER_PORT not set by slurm. Fix: before srun, export ",
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, None, "not set by environment. Fix: set them to a host"),
    ],
)  # fmt: skip
def test_what_cannot_be(
    variables: dict[str, str], backend: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed as dist

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainError, match=said) as raised:
        init_process_group(backend)
    assert len(str(raised.value)) <= 400
    assert not dist.is_initialized()


@pytest.mark.parametrize("timeout", ["soon", -5, 0, float("nan"), float("inf"), []])
def test_what_is_no_time(timeout: Any) -> None:
    import torch.distributed as dist

    with pytest.raises(TrainError, match=r"timeout must be a number of seconds above 0, not .*\. Fix: 600"):
        init_process_group(timeout=timeout)
    with pytest.raises(TrainError, match=r"backend must be a name, not 5\. Fix: 'gloo'"):
        init_process_group(5)  # type: ignore[arg-type]
    assert not dist.is_initialized()


def test_a_barrier_without_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    world(monkeypatch)
    with pytest.raises(TrainError, match="Fix: call init_process_group"):
        barrier()


def test_the_interface_is_the_bootstraps_own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("127.0.0.1", "localhost", "192.0.2.77", "no.such.host.invalid", "::1"):
        assert interfaces.towards(address) == network.interface_towards(address)
    given = {"NCCL_SOCKET_IFNAME": "ib0"}
    interfaces.settle(given, "127.0.0.1")
    assert given == {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "lo"}


def test_torch_is_not_loaded_before_it_is_needed() -> None:
    code = "import sys; from jobsdk.train import *; get_context(); report({}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

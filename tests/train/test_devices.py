"""Which devices are a process's own: every kind of mask, on a machine of eight GPUs that torch is made to see.

torch itself reads the masks, as it does with real ones; only what it would ask the driver is put in its place.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from jobsdk.train import TrainError, get_device, get_devices, place
from jobsdk.train.devices import Seen, choose, of_ray

TORCH = pytest.mark.framework("torch")

UUIDS = [f"GPU-{number}{number}{number}{number}-aaaa" for number in range(8)]
MIG = "MIG-11111111-aaaa"


def processes(local_rank: int, local_size: int, **more: str) -> dict[str, str]:
    """One process of a node, as torchrun says it."""
    return {"RANK": str(local_rank), "WORLD_SIZE": str(local_size), "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(local_size), "TORCHELASTIC_RUN_ID": "none", **more}  # fmt: skip


def of_job(local_rank: int, local_size: int, share: str, mask: str) -> dict[str, str]:
    """The same in a job of jobsdk with GPUs for each process."""
    own = {"JOBSDK_RUN_NAME": "r", "TORCHELASTIC_RUN_ID": "r", "JOBSDK_GPUS_PER_PROCESS": share}
    return processes(local_rank, local_size, CUDA_VISIBLE_DEVICES=mask, **own)


def task(local_rank: int, mask: str, **more: str) -> dict[str, str]:
    """One of two tasks of a step of Slurm."""
    return {"SLURM_PROCID": str(local_rank), "SLURM_LOCALID": str(local_rank), "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": mask, **more}  # fmt: skip


class Case(NamedTuple):
    environment: dict[str, str]
    expected: list[int] | str  # cuda:N of each, or "cpu", or what is said
    gpus: int = 8
    of_ray: list[Any] | None = None  # what Ray has given, in a worker of Ray Train


def mask(text: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": text}


CASES = {
    # Alone: all that it sees.
    "no mask": Case({}, [0, 1, 2, 3, 4, 5, 6, 7]),
    "no GPU": Case({}, "cpu", gpus=0),
    "one of several": Case(mask("3"), [0]),
    "an inherited list": Case(mask("3,5"), [0, 1]),
    "reordered": Case(mask("5,0,3"), [0, 1, 2]),
    "a UUID": Case(mask(UUIDS[4]), [0]),
    "UUIDs": Case(mask(f"{UUIDS[4]},{UUIDS[1]}"), [0, 1]),
    "the beginning of a UUID": Case(mask("GPU-44"), [0]),
    "MIG": Case(mask(MIG), [0]),
    "several of MIG, of which CUDA takes one": Case(mask(f"{MIG},MIG-22222222-bbbb"), [0]),
    "empty": Case(mask(""), "cpu"),
    "-1": Case(mask("-1"), "cpu"),
    "NoDevFiles": Case(mask("NoDevFiles"), "cpu"),
    "up to -1": Case(mask("2,-1,3"), [0]),
    "spaces": Case(mask(" 2, 3 "), [0, 1]),
    "duplicates, of which CUDA takes none": Case(mask("2,2"), "cpu"),
    "one that there is not": Case(mask("9"), "cpu"),
    "up to one that there is not": Case(mask("1,9,2"), [0]),
    "a comma too many": Case(mask("1,2,"), [0, 1]),
    # Several processes of a node that see the same: by their local ranks.
    "all of the node": Case(processes(5, 8), [5]),
    "fewer than the node has": Case(processes(1, 2), [1]),
    "the same list": Case(processes(1, 2, **mask("3,5")), [1]),
    "the same UUIDs": Case(processes(1, 2, **mask(f"{UUIDS[6]},{UUIDS[2]}")), [1]),
    "without a local rank, as in a container for each": Case({"RANK": "3", "WORLD_SIZE": "4"}, [*range(8)]),
    "without a local rank, as srun's": Case({**processes(1, 2), "LOCAL_RANK": ""}, [1]),
    # Several that each see their own.
    "its own": Case(processes(1, 2, **mask("5")), [0]),
    "its own of MIG": Case(processes(1, 2, **mask(MIG)), [0]),
    "two of its own": Case(of_job(1, 2, "2", "2,3"), [0, 1]),
    "one of its own": Case(of_job(3, 4, "1", "3"), [0]),
    "a half": Case(of_job(1, 2, "0.5", "0"), [0]),
    "a half of all that the node has": Case(of_job(3, 4, "0.5", "6,7"), [1]),
    "two each of all that the node has": Case(of_job(1, 2, "2", "4,5,6,7"), [2, 3]),
    "torchrun of one's own in a job": Case(
        {**of_job(0, 1, "4", "0,1,2,3"), "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3", "TORCHELASTIC_RUN_ID": "none"}, [3]
    ),
    "two bound to a task of slurm": Case(task(1, "0,1", SLURMD_TRES_BIND="gpu:per_task:2"), [0, 1]),
    "two for each task of slurm, unbound": Case(task(1, "0,1,2,3", SLURM_GPUS_PER_TASK="a100:2"), [2, 3]),
    # Too few.
    "more ranks than devices": Case(processes(0, 3, **mask("0,1")), "3 processes .* want a GPU each, and see 2"),
    "more ranks than the one device": Case(processes(0, 2), "2 processes .* see 1. Fix: ", gpus=1),
    "too few for their shares": Case(of_job(0, 4, "2", "0,1,2"), "want 2 GPU each, and see 3"),
    # Workers of Ray Train see those of all workers of their node.
    "of ray": Case(mask("0,1,2,3"), [2], of_ray=[2]),
    "two of ray": Case(mask("0,1,2,3"), [2, 3], of_ray=[3, 2]),
    "its own of ray": Case(mask("2,3"), [0], of_ray=[2]),
    "half of ray": Case(mask("5"), [0], of_ray=["5"]),
    "uuid of ray": Case(mask(",".join(UUIDS[:2])), [1], of_ray=[UUIDS[1]]),
    "ray without masks": Case({}, [6], of_ray=[6]),
    "none of ray": Case({}, "cpu", of_ray=[]),
    "another mask than ray's": Case(mask("1"), "Ray has given this worker the GPU 2, but", of_ray=[2]),
}  # fmt: skip


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`machine(CASE)`: torch sees what a process of that environment would see there."""
    import torch

    def see(case: Case) -> None:
        known = ("RANK", "WORLD_SIZE", "LOCAL_", "JOBSDK_RUN", "JOBSDK_GPUS", "TORCHELASTIC_", "SLURM", "OMPI_", "PMI_")
        for name in list(os.environ):
            if name.startswith(known) or name.endswith("VISIBLE_DEVICES"):
                monkeypatch.delenv(name)
        for name, value in case.environment.items():
            monkeypatch.setenv(name, value)

        def count() -> int:
            found = torch.cuda._device_count_nvml()
            return found if found >= 0 else 1  # CUDA itself sees one device of MIG, whatever is named

        monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: case.gpus)
        monkeypatch.setattr(torch.cuda, "_raw_device_uuid_nvml", lambda: UUIDS[: case.gpus])
        monkeypatch.setattr(torch.cuda, "device_count", count)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count() > 0)
        if case.of_ray is not None:
            worker = place.OfRay(place.RankInfo("ray train", 1, 2, 1, 2, 0, 1), "mine")
            monkeypatch.setattr(place, "of_ray_train", lambda: worker)
            monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_gpu_ids=lambda: case.of_ray))

    return see


@TORCH
@pytest.mark.parametrize("name", CASES)
def test_of_a_mask(name: str, machine: Any) -> None:
    case = CASES[name]
    machine(case)
    if isinstance(case.expected, str) and case.expected != "cpu":
        with pytest.raises(TrainError, match=case.expected) as raised:
            get_devices()
        assert len(str(raised.value)) <= 400
        return
    expected = [case.expected] if isinstance(case.expected, str) else [f"cuda:{index}" for index in case.expected]
    assert [str(device) for device in get_devices()] == expected
    assert str(get_device()) == expected[0]


def test_the_shares_of_a_node_cover_it_and_meet_only_where_they_are_parts_of_one() -> None:
    for share in (0.25, 0.5, 1.0, 2.0, 3.0):
        for local_size in (1, 2, 4, 6):
            needed = -int(-share * local_size // 1)
            each = [choose(Seen(needed, True), rank, local_size, share) for rank in range(local_size)]
            assert sorted({index for one in each for index in one}) == list(range(needed))
            assert {len(one) for one in each} == {max(1, int(share))}
            assert share < 1 or sum(map(len, each)) == needed


@TORCH
def test_other_accelerators(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    machine(Case(processes(1, 2), "cpu", gpus=0))
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
    assert [str(device) for device in get_devices()] == ["xpu:1"]
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert [str(device) for device in get_devices()] == ["mps"]


def test_rays_ids_where_they_stand_in_its_mask() -> None:
    assert of_ray("0, 1,2,3", [3, 0]) == [0, 3]
    assert of_ray("0,1", []) == []


@TORCH
def test_torch_as_it_is_here() -> None:
    """Without any stand-in: what torch sees of this machine."""
    code = (
        "import sys; from jobsdk.train import get_devices; assert 'torch' not in sys.modules; print(*get_devices())\n"
        "import torch; print(torch.cuda.device_count())"
    )
    for hidden in ({}, mask("")):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **hidden}, text=True, capture_output=True, check=True
        )
        devices, count = done.stdout.splitlines()
        assert devices.split() == ([f"cuda:{index}" for index in range(int(count))] or ["cpu"])

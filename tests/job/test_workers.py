"""Where workers go: nodes and processes, and what a node needs."""

from __future__ import annotations

from typing import Any

import pytest

from jobsdk import (
    DeepSpeedDistribution,
    MpiDistribution,
    PyTorchDistribution,
    RayDistribution,
    ScalingConfig,
    TensorFlowDistribution,
    TorchConfig,
    command,
)
from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.distributions import contract
from jobsdk.bootstrap.spec import facts as facts_
from jobsdk.bootstrap.spec import ranks
from jobsdk.findings import Finding
from jobsdk.job.machines import known
from jobsdk.job.workers import Layout, NodeCapacity, applied, described, lay_out
from jobsdk.planning.plan import make_plan

EIGHT = NodeCapacity("a node", gpus=8, cpus=96, memory=900 * 2**30)


def laid_out(workers: int, room: NodeCapacity | None = None, **fields: Any) -> Layout:
    own = {name: fields.pop(name) for name in list(fields) if name in ScalingConfig._fields}
    found = lay_out(command(command="env", scaling=ScalingConfig(num_workers=workers, **own), **fields), room)
    assert found is not None
    return found


def shape(found: Layout) -> tuple[int, int]:
    assert not any(one.is_error for one in found.findings), found.findings
    return found.nodes, found.processes


def mistake(found: Layout) -> Finding:
    (error,) = (one for one in found.findings if one.is_error)
    return error


@pytest.mark.parametrize(
    ("workers", "room", "fields", "expected"),
    [
        (8, None, {}, (1, 8)),
        (8, None, {"placement_strategy": "SPREAD"}, (8, 1)),
        (8, None, {"placement_strategy": "STRICT_SPREAD"}, (8, 1)),
        (8, None, {"placement_strategy": "STRICT_PACK"}, (1, 8)),
        (8, None, {"instance_count": 2}, (2, 4)),
        (8, None, {"instance_count": 1, "placement_strategy": "SPREAD"}, (1, 8)),
        (8, None, {"distribution": PyTorchDistribution(process_count_per_instance=2)}, (4, 2)),
        (8, None, {"distribution": MpiDistribution(process_count_per_instance=4), "instance_count": 2}, (2, 4)),
        (8, None, {"distribution": DeepSpeedDistribution()}, (1, 8)),
        (3, None, {"distribution": TensorFlowDistribution()}, (3, 1)),
        (3, None, {"distribution": TensorFlowDistribution(worker_count=3, parameter_server_count=1)}, (3, 1)),
        (16, EIGHT, {"use_gpu": True}, (2, 8)),
        (16, EIGHT, {"use_gpu": True, "resources_per_worker": {"GPU": 4}}, (8, 2)),
        (16, EIGHT, {"use_gpu": True, "resources_per_worker": {"GPU": 0.5}}, (1, 16)),
        (24, EIGHT, {"use_gpu": True, "resources_per_worker": {"GPU": 0.3}}, (1, 24)),  # three on each, as in Ray
        (12, EIGHT, {"use_gpu": True}, (2, 6)),
        (16, EIGHT, {"use_gpu": True, "resources_per_worker": {"CPU": 24}}, (4, 4)),
        (4, EIGHT, {"resources_per_worker": {"memory": 400 * 2**30}}, (2, 2)),
        (200, EIGHT, {}, (4, 50)),
        (8, NodeCapacity("a host", nodes=3), {"placement_strategy": "SPREAD"}, (2, 4)),
    ],
)
def test_layouts(workers: int, room: NodeCapacity | None, fields: dict[str, Any], expected: tuple[int, int]) -> None:
    assert shape(laid_out(workers, room, **fields)) == expected


@pytest.mark.parametrize(
    ("workers", "room", "fields", "where", "message", "fix"),
    [
        (8, None, {"instance_count": 3}, "resources.instance_count", "do not go evenly with 3 nodes", "2 or 4"),
        (
            8, None, {"instance_count": 2, "distribution": PyTorchDistribution(process_count_per_instance=3)},
            "scaling.num_workers", "says 8, and 2 nodes x 3 processes are 6", "set it to 6",
        ),
        (
            8, None, {"instance_count": 2, "placement_strategy": "STRICT_PACK"},
            "scaling.placement_strategy", "8 workers are on 2 nodes x 4", "write PACK",
        ),
        (
            8, None, {"instance_count": 2, "placement_strategy": "STRICT_SPREAD"},
            "scaling.placement_strategy", "4 of the 8 would be on each", "set resources.instance_count to 8",
        ),
        (
            16, EIGHT, {"use_gpu": True, "placement_strategy": "STRICT_PACK"},
            "scaling.placement_strategy", "2 nodes x 8", "",
        ),
        (
            1, EIGHT, {"use_gpu": True, "resources_per_worker": {"GPU": 16}},
            "scaling.resources_per_worker", "1 worker on a node takes 16 GPUs, and a node has 8 GPUs", "",
        ),
        (
            2, NodeCapacity("it", gpus=0), {"use_gpu": True}, "scaling.resources_per_worker",
            "1 GPU, and it has none", "",
        ),
        (
            4, EIGHT, {"resources_per_worker": {"CPU": 40}, "instance_count": 1},
            "scaling.resources_per_worker", "4 workers on a node take 160 CPUs, and a node has 96 CPUs", "",
        ),
        (
            1, EIGHT, {"resources_per_worker": {"memory": 2**40}},
            "scaling.resources_per_worker", "takes 1024 GiB of memory, and a node has 900 GiB", "",
        ),
        (
            3, None, {"distribution": TensorFlowDistribution(worker_count=2)},
            "scaling.num_workers", "worker_count 2", "",
        ),
        (
            3, None, {"distribution": TensorFlowDistribution(), "instance_count": 2},
            "scaling.num_workers", "a node runs one worker", "set instance_count to 3",
        ),
        (2, None, {"distribution": RayDistribution()}, "scaling", "starts the command once, on its head", "remove it"),
        (2, None, {"use_gpu": True, "gpus_per_process": 2}, "resources.gpus_per_process", "scaling 1", "leave it out"),
    ],
)  # fmt: skip
def test_what_cannot_be_laid_out_says_the_numbers(
    workers: int, room: NodeCapacity | None, fields: dict[str, Any], where: str, message: str, fix: str
) -> None:
    error = mistake(laid_out(workers, room, **fields))
    assert (".".join(map(str, error.path)), message in error.message, fix in error.fix) == (where, True, True), error


def test_workers_that_go_unevenly_say_how_many_would_not() -> None:
    (warning,) = laid_out(11, EIGHT, use_gpu=True).findings
    assert warning.message == "11 workers go evenly only on 11 nodes x 1, though a node holds 8"
    assert warning.fix == "10 or 12 workers need 2 nodes"


def test_many_gpus_on_a_node_of_which_nothing_is_known() -> None:
    (warning,) = laid_out(64, use_gpu=True).findings
    assert "one node is asked for, with 64 GPUs" in warning.message
    assert laid_out(8, use_gpu=True).findings == ()


def test_what_a_node_needs() -> None:
    each = {"GPU": 0.5, "CPU": 1.5, "memory": 1e9, "fpga": 0.5}
    found = laid_out(6, use_gpu=True, instance_count=2, resources_per_worker=each, accelerator_type="A100")
    assert (found.gpus, found.cpus, found.memory, found.custom) == (2, 5, 3 * 10**9, {"fpga": 2})
    assert found.gpus_per_process == 0.5
    found = laid_out(4, use_gpu=True)
    assert (found.gpus, found.cpus) == (4, 0), "by Ray's rule"


def test_a_job_is_laid_out_in_a_copy() -> None:
    variables = {"JOBSDK_TORCH_BACKEND": "mpi"}
    scaling = ScalingConfig(num_workers=8, use_gpu=True)
    job = command(
        command="env",
        scaling=scaling,
        torch_config=TorchConfig("gloo"),
        instance_count=2,
        environment_variables=variables,
    )
    before = job.to_dict()
    done = applied(job, lay_out(job))
    assert job.to_dict() == before
    assert done.to_dict() == {
        "type": "command",
        "command": "env",
        "environment_variables": {
            "JOBSDK_TORCH_BACKEND": "mpi", "JOBSDK_TORCH_INIT_METHOD": "env", "JOBSDK_TORCH_TIMEOUT_S": "1800"
        },
        "distribution": {"type": "pytorch", "process_count_per_instance": 4},
        "resources": {"instance_count": 2, "gpus_per_process": 1},
    }  # fmt: skip
    plain = command(command="env")
    assert applied(plain, lay_out(plain)) is plain


def test_rules_of_a_job_know_its_workers() -> None:
    config = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    job = command(command="env", scaling={"num_workers": 8}, distribution=DeepSpeedDistribution(config=config))
    assert any(one.is_error and "8" in one.message for one in job.findings()), "12 is not 1 x 1 x 8"
    job.scaling = ScalingConfig(num_workers=12)
    assert not any(one.is_error for one in job.findings())


@pytest.mark.parametrize(
    ("share", "masks"),
    [
        (0.5, ["a", "a", "b", "b"]),
        (0.25, ["a", "a", "a", "a"]),
        (0.3, ["a", "a", "a", "b"]),
        (1, ["a", "b", "c", "d"]),
        (2, ["a,b", "c,d"]),
    ],
)
def test_each_process_has_its_share_of_the_nodes_gpus(share: float, masks: list[str]) -> None:
    scaling = ScalingConfig(num_workers=len(masks), use_gpu=True, resources_per_worker={"GPU": share})
    plan = make_plan(command(command="env", scaling=scaling), name="r")
    facts = facts_.Facts(["h"], [[1]], "h", 8, None, ["a", "b", "c", "d"], {}, "/run", "/run")
    each = [contract.Contract(plan, facts).environment(process) for process in distributions.of(plan).processes()]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in each] == masks
    assert {one["JOBSDK_GPUS_PER_PROCESS"] for one in each} == {f"{share:g}"}
    assert ranks.gpus_of(plan, len(masks)) == len({gpu for mask in masks for gpu in mask.split(",")})


def test_a_layout_in_words() -> None:
    each = {"GPU": 0.5, "CPU": 2, "memory": 2**33, "fpga": 1}
    scaling = ScalingConfig(num_workers=16, use_gpu=True, resources_per_worker=each, accelerator_type="A100")
    job = command(command="env", scaling=scaling, instance_count=2)
    assert described(job, lay_out(job)) == (
        "16 workers, PACK: 2 nodes x 8; each 0.5 GPU, 2 CPUs, 8 GiB of memory, 1 fpga, on nodes with A100"
    )


@pytest.mark.parametrize(
    ("machine", "kind", "expected"),
    [
        ("ND96asr_v4", "A100", True),
        ("ND96asr_v4", "A100-40G", True),
        ("ND96asr_v4", "A100-80G", False),
        ("ND96asr_v4", "NVIDIA_A100", True),
        ("NC40ads_H100_v5", "H100", True),
        ("NC24s_v3", "nvidia-tesla-v100", True),
        ("ND96asr_v4", "H100", False),
        ("HB120rs_v3", "A100", False),
    ],
)
def test_machines_and_the_names_of_accelerators(machine: str, kind: str, expected: bool) -> None:
    found = known().find(machine)
    assert found is not None
    assert found.is_with(kind) is expected

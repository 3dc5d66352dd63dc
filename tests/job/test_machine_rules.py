"""What a job asks of machines that are known."""

from __future__ import annotations

from typing import Any

import pytest

from jobsdk import MLClient, MpiDistribution, PyTorchDistribution, command
from jobsdk.findings import Finding
from jobsdk.job.machines import known
from jobsdk.planning.machine_rules import findings
from jobsdk.planning.plan import make_plan


def found(machine: str, processes: int, nodes: int = 1, **more: Any) -> list[Finding]:
    distribution = more.pop("distribution", None) or PyTorchDistribution(process_count_per_instance=processes)
    job = command(command="x", instance_count=nodes, distribution=distribution, **more)
    found = known().find(machine)
    assert found is not None
    return list(findings(make_plan(job, name="r"), found, known(), ("resources", "instance_type")))


def test_a_job_that_fits() -> None:
    assert found("NC24rs_v3", 4, nodes=8) == []
    assert found("NC24s_v3", 4) == []
    assert found("HB120rs_v3", 120, nodes=4, distribution=MpiDistribution(process_count_per_instance=120)) == []


def test_more_gpus_than_the_machine_has_are_an_error() -> None:
    (error,) = found("NC24s_v3", 4, gpus_per_process=2)
    assert error.is_error
    assert error.path == ("resources", "gpus_per_process")
    assert error.message == "4 processes on a node take 8 GPUs, and Standard_NC24s_v3 has 4 GPUs"
    (error,) = found("HB120rs_v3", 1, gpus_per_process=1)
    assert error.message == "1 process on a node takes 1 GPU, and Standard_HB120rs_v3 has no GPUs"


def test_more_processes_than_gpus_are_a_warning_without_gpus_per_process() -> None:
    (warning,) = found("ND96isr_H100_v5", 16)
    assert (warning.severity, warning.path) == ("warning", ("distribution", "process_count_per_instance"))
    assert "a node has 16 processes, and Standard_ND96isr_H100_v5 has 8 GPUs" in warning.message
    assert warning.fix == "set it to 8"
    assert found("HB120rs_v3", 16) == [], "training on its cores"


@pytest.mark.parametrize(
    ("machine", "message", "fix"),
    [
        (
            "NC24s_v3",
            "Standard_NC24s_v3 has no InfiniBand: 2 nodes exchange all gradients over Ethernet",
            "Standard_NC24rs_v3 has it (4 x V100 16 GiB, 24 cores, InfiniBand 56 Gbit/s)",
        ),
        (
            "NC24r",
            "Standard_NC24r has InfiniBand without SR-IOV, which NCCL and UCX cannot use: "
            "2 nodes exchange all gradients over Ethernet",
            "take fewer nodes with more processes each",
        ),
    ],
)
def test_several_nodes_without_infiniband_are_warned_with_the_sibling_that_has_it(
    machine: str, message: str, fix: str
) -> None:
    (warning,) = found(machine, 4, nodes=2)
    assert (warning.severity, warning.message, warning.fix) == ("warning", message, fix)


def test_validation_uses_them_for_a_compute_that_is_not_known_here() -> None:
    job = command(command="x", compute="azureml:gpu-cluster", instance_type="nc24s_V3", instance_count=2)
    job.distribution = PyTorchDistribution(process_count_per_instance=4)
    warnings = [one for one in MLClient().jobs.validate(job).findings if one.path == ("resources", "instance_type")]
    assert [one.fix.partition(" ")[0] for one in warnings] == ["Standard_NC24rs_v3"]


def test_on_this_machine_an_instance_type_says_nothing() -> None:
    job = command(command="x", compute="local", instance_type="Standard_NC6s_v3", gpus_per_process=1)
    job.distribution = PyTorchDistribution(process_count_per_instance=8)
    assert [one.message for one in MLClient().jobs.validate(job).findings] == ["has no effect on the compute local"]

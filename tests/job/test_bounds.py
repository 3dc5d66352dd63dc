"""The size of a job has bounds: validation reports a number with too many digits."""

from __future__ import annotations

import pytest

from jobsdk import MpiDistribution, PyTorchDistribution, ScalingConfig, TensorFlowDistribution, TorchConfig, command
from jobsdk.errors import ValidationError
from jobsdk.job.command import CommandJob

HUGE = 10**12


def errors(make: object) -> list[str]:
    try:
        job: CommandJob = make()  # type: ignore[operator]
        return [str(finding) for finding in job.findings() if finding.is_error]
    except ValidationError as error:
        return str(error).splitlines()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: command(command="x", instance_count=HUGE), "instance_count: must be at most 100000"),
        (lambda: command(command="x", max_instance_count=HUGE), "max_instance_count: must be at most 100000"),
        (
            lambda: command(command="x", distribution=PyTorchDistribution(process_count_per_instance=HUGE)),
            "process_count_per_instance: must be at most 10000",
        ),
        (
            lambda: command(command="x", distribution=TensorFlowDistribution(worker_count=HUGE)),
            "worker_count: must be at most 100000",
        ),
        (
            lambda: command(command="x", distribution=TensorFlowDistribution(parameter_server_count=HUGE)),
            "parameter_server_count: must be at most 100000",
        ),
        (
            lambda: command(command="x", scaling=ScalingConfig(num_workers=HUGE), distribution=TorchConfig()),
            "num_workers: must be at most 1000000",
        ),
    ],
)
def test_a_count_has_a_bound(make: object, said: str) -> None:
    found = errors(make)
    assert any(said in one for one in found), found


@pytest.mark.parametrize("kind", [PyTorchDistribution, MpiDistribution])
def test_the_ranks_of_a_job_have_one_together(kind: type) -> None:
    def job(nodes: int) -> CommandJob:
        distribution = kind(process_count_per_instance=1000)
        return command(command="x", instance_count=nodes, distribution=distribution)

    assert errors(lambda: job(1000)) == []
    (found,) = errors(lambda: job(1001))
    assert found == (
        "error: distribution.process_count_per_instance: the job would have 1001000 ranks (1001 nodes x 1000), "
        "and at most 1000000 are possible. Fix: ask for fewer nodes, or for fewer processes on each"
    )

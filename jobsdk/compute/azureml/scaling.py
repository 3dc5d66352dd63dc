"""What Azure ML supports of a job's `scaling`: the compute fixes the machines, so only their size counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jobsdk.compute import job_rules
from jobsdk.compute.azureml import translation
from jobsdk.findings import Finding

if TYPE_CHECKING:
    from jobsdk.job.command import CommandJob
    from jobsdk.job.machines import Machine

_ASKED = ("resources", "gpus_per_process")


def findings(name: str, job: CommandJob, launcher: str, machine: Machine | None) -> Iterator[Finding]:
    """What has no effect on the compute `name`, and what of it nobody knows. The job has `scaling`."""
    scaling = job.scaling
    assert scaling is not None
    known = () if machine is None else ("CPU", "memory", "accelerator_type")
    yield from job_rules.ignored_scaling(name, job, known)
    gpus = scaling.num_gpus_per_worker
    if gpus and machine is None:
        message = f"what machines {name} has is not known: {gpus:g} GPU for each worker cannot be seen to"
        fix = "set instance_type in the compute, or resources.instance_type"
        yield Finding("warning", ("scaling", "use_gpu"), message, fix)
    if gpus not in (0, 1) and launcher == translation.NATIVE:
        message = f"{gpus:g} GPUs of a worker: where Azure ML starts the ranks, each sees all GPUs of its node"
        fix = f"set resources.properties.{translation.PROPERTY}.launcher: {translation.BOOTSTRAP}"
        yield Finding("warning", ("scaling", "resources_per_worker"), message, fix)


def is_said_here(finding: Finding) -> bool:
    """Whether a finding is about a field that the job's `scaling` has set, of which `findings` speaks."""
    return finding.path == _ASKED

"""Where a job goes on a compute: decided once for each submission, and handed on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.findings import Finding
    from jobsdk.job.command import CommandJob
    from jobsdk.job.machines import Catalogue, Machine
    from jobsdk.job.workers import Layout


class Placement(NamedTuple):
    """`settings` are the compute's with what the job sets in their place; `layout` is that of a job with `scaling`.

    `machine` is what is known of the machines, and `catalogue` where it was found; without a machine both are None.
    """

    settings: dict[str, Any]
    layout: Layout | None = None
    machine: Machine | None = None
    catalogue: Catalogue | None = None

    def findings(self, job: CommandJob, plan: Plan) -> list[Finding]:
        """What is wrong or doubtful about the layout, and what does not fit the machines."""
        found = [] if self.layout is None else list(self.layout.findings)
        if self.machine is not None and self.catalogue is not None:
            from jobsdk.planning.machine_rules import findings

            where = ("resources", "instance_type") if job.resources.instance_type else ("compute",)
            found += findings(plan, self.machine, self.catalogue, where, job.scaling)
        return found


def unknown(job: CommandJob) -> Placement:
    """The placement of a job whose compute is not configured here: by the machine that the job itself names."""
    from jobsdk.job import workers
    from jobsdk.job.machines import known

    machine = known().find(job.resources.instance_type) if job.resources.instance_type else None
    return Placement({}, workers.lay_out(job, workers.room_of(machine)), machine, machine and known())

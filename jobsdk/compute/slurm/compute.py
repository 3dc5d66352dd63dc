"""Slurm: one sbatch script for a run, submitted from here or from a login node."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from jobsdk.bootstrap.spec import paths as layout
from jobsdk.bootstrap.spec import plan_file
from jobsdk.bootstrap.system import private
from jobsdk.compute import job_rules
from jobsdk.compute.base import Check, Compute, Spec, Warn
from jobsdk.compute.ends import EngineEnd, finish
from jobsdk.compute.environ import for_ranks
from jobsdk.compute.hosts.host import Host
from jobsdk.compute.settings import meanings
from jobsdk.compute.shipping import parcel
from jobsdk.compute.slurm import rules as slurm_rules
from jobsdk.compute.slurm import scaling as slurm_scaling
from jobsdk.compute.slurm import script as slurm_script
from jobsdk.compute.slurm import settings as slurm_settings
from jobsdk.compute.slurm import state as slurm_state
from jobsdk.errors import ComputeError
from jobsdk.home import home, locked, runs_folder
from jobsdk.job import workers
from jobsdk.job.paths import working_directory
from jobsdk.runs.folder import RunFolder

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.compute.slurm.state import JobState
    from jobsdk.findings import Finding
    from jobsdk.job.command import CommandJob
    from jobsdk.job.machines import Machine
    from jobsdk.job.workers import Layout, NodeCapacity
    from jobsdk.planning.placement import Placement

_JOB = "slurm.json"  # in the run's folder here: the number of its job
_TAIL = 12  # lines of Slurm's own output that are shown where nothing else says why


class SlurmCompute(Compute):
    """The nodes of a job are an allocation of Slurm, with one bootstrap on each."""

    type: ClassVar[str] = "slurm"
    takes_job_settings: ClassVar[bool] = True
    settings_known: ClassVar[Mapping[str, str]] = meanings(slurm_settings.SETTINGS)

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        super().__init__(name, settings)
        self.can_run_in_place = "login" not in self.settings

    def mistakes(self, own: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        return slurm_settings.mistakes(own)

    @classmethod
    def job_mistakes(cls, own: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        return slurm_settings.mistakes(own, of_job=True)

    @cached_property
    def _host(self) -> Host:
        """Where Slurm's commands are run."""
        if "login" not in self.settings:
            return Host(self.folder_mode)
        from jobsdk.compute.hosts.remote import RemoteHost

        options = tuple(self.settings.get("ssh_options", ()))
        return RemoteHost(self.settings["login"], options, folder_mode=self.folder_mode)

    # -- before there is a run -----------------------------------------------------------------------------------

    def findings(self, job: CommandJob, plan: Plan, at: Placement, *, build_env: bool = False) -> list[Finding]:
        found = slurm_rules.findings(self.name, at.settings, job, plan, build_env)
        if job.scaling is not None and at.layout is not None:
            found += slurm_scaling.findings(self.name, self.settings, job.scaling, at.layout)
            found += job_rules.ignored_scaling(self.name, job, slurm_scaling.SUPPORTED)
        return found

    def compile(
        self, job: CommandJob, plan: Plan, at: Placement, *, in_place: bool = False, build_env: bool = False
    ) -> Spec:
        folder = self.settings.get("folder")
        run_dir = str(Path(folder, "runs", plan["run"]) if folder else runs_folder() / plan["run"])
        if "\\" in run_dir or "\n" in run_dir:
            raise ComputeError(f"Slurm can write no output below {run_dir!r}. Fix: a folder without a backslash")
        store = str(Path(folder, "code") if folder else home() / "code")
        code = job_rules.code_here(job)
        folders = slurm_script.Folders(
            run_dir=run_dir,
            shared=(folder,) if folder else (run_dir, store),
            has_code=code is not None and not in_place,
            in_place=(code or working_directory()) if in_place else None,
        )
        return {
            "compute": self.name,
            "type": self.type,
            "nodes": plan["nodes"],
            "login": self.settings.get("login"),
            "run_dir": run_dir,
            "working_dir": folders.in_place or f"{run_dir}/code",
            "code": code if folders.has_code else None,
            "code_store": store,
            "script": slurm_script.script(plan, at.settings, folders, slurm_rules.image_of(at.settings, job)),
        }

    def native(self, spec: Spec) -> str:
        text: str = spec["script"]
        return text

    def prepare(self, spec: Spec, warn: Warn) -> None:
        pass  # sbatch says what is wrong, and it is asked only once there is a run's folder

    def settings_for(self, job: CommandJob, layout: Layout | None) -> dict[str, Any]:
        """As the base says; of the two ways to ask for GPUs only the job's own."""
        own = self.job_settings(job)
        ways = {"gres", "gpus_per_node"}
        kept = {name: value for name, value in self.settings.items() if name not in ways or not ways & own.keys()}
        settings = {**kept, **own}
        if job.scaling is None or layout is None:
            return settings
        return slurm_scaling.settled(settings, own, job.scaling, layout)

    def room(self, job: CommandJob, machine: Machine | None) -> NodeCapacity | None:
        gpus = slurm_settings.gpu_count({**self.settings, **self.job_settings(job)})
        return workers.room_with(self.name, gpus, super().room(job, machine))

    # -- the run -------------------------------------------------------------------------------------------------

    def submit(self, spec: Spec, run: RunFolder, warn: Warn) -> None:
        run_dir, host = spec["run_dir"], self._host
        parts = parcel.make(run)
        files = {**parts.files, slurm_script.SCRIPT: spec["script"].encode(), slurm_script.LOG: b""}
        if spec["code"] is not None:
            from jobsdk.snapshot import copy

            source = Path(spec["code"])
            files[slurm_script.SOURCE] = host.send_code(source, copy.fingerprint(source), spec["code_store"]).encode()
        self._make_folder(run, run_dir)
        try:
            host.write(run_dir, files, private=parts.private)
            # Slurm keeps a copy of sbatch's environment; the ranks have their secrets from the run's own file.
            given = {name: value for name, value in os.environ.items() if name not in run.plan()["secrets"]}
            environ = for_ranks(given) if host.is_here else None
            asked = time.time()  # it may have started before we come to note that it waits
            answer = host.run(["sbatch", "--parsable", f"{run_dir}/{slurm_script.SCRIPT}"], environ=environ)
            if answer.code:
                words = answer.last_words.removeprefix("sbatch: error: ")
                raise ComputeError(f"sbatch on {host.name} refuses the job: {words}")
        except BaseException:
            self._remove_folder(run, run_dir)
            raise
        if not host.is_here:
            plan_file.forget_secrets(str(run.path))  # the nodes have them as long as the run goes on
        job = answer.out.strip().splitlines()[-1].partition(";")[0]
        run.write_json(_JOB, {"job": job})
        run.append_event("queued", t=asked, job=job, message=f"Slurm job {job}: it has just been submitted")

    def cancel(self, run: RunFolder, by: str) -> None:
        if self.status(run).is_terminal:
            return
        run.append_event("cancel_requested", by=by)
        self._host.write(_run_dir(run), {os.path.basename(layout.cancel_mark("")): b""})
        answer = self._host.run(["scancel", _job(run)])
        if answer.code:
            raise ComputeError(f"scancel on {self._host.name} does not end job {_job(run)}: {answer.last_words}")
        self.refresh(run)  # a job that was still waiting has ended by this

    def ask(self, run: RunFolder, request: str) -> None:
        self._host.write(_run_dir(run), {f"requests/{request}": b""})

    def refresh(self, run: RunFolder) -> None:
        if run.recorded_state().is_terminal:
            return
        asked, job = time.time(), _job(run)
        state = slurm_state.ask(self._host, job)
        if not self._host.is_here:
            self._host.pull(run, _run_dir(run))
        with locked(run.path / "refresh.lock"):  # of several that find something out, one writes it down
            recorded = run.recorded_state()
            if recorded.is_terminal:
                return
            if state is None or not (state.is_waiting or state.has_nodes):
                cancelled, begun = recorded.status == "CancelRequested", recorded.started is not None
                end = slurm_state.end(job, state, cancelled=cancelled, begun=begun)
                self._write_end(run, end, recorded.submitted or asked)
            else:
                _tell(run, job, state, asked)

    def outputs(self, run: RunFolder) -> dict[str, str]:
        return run.output_paths(None if self._host.is_here else _run_dir(run))

    def fetch(self, run: RunFolder, names: Sequence[str]) -> dict[str, str]:
        if self._host.is_here:
            return super().fetch(run, names)
        there = {"default": f"{_run_dir(run)}/outputs/default", **self.outputs(run)}
        here = {name: run.path / "outputs" / name for name in names}
        left = self._host.fetch({there[name]: here[name] for name in names})
        run.note_left_out({name: left[there[name]] for name in names})
        return {name: str(path) for name, path in here.items()}

    # -- the run's folder ----------------------------------------------------------------------------------------

    def _make_folder(self, run: RunFolder, run_dir: str) -> None:
        """Where the run's folder for the nodes is another one of this machine, the one here becomes a link to it."""
        if not self._host.is_here:
            return
        if run_dir == str(run.path):
            return
        try:
            private.make_folder(os.path.dirname(run_dir), self.folder_mode)
            if os.path.lexists(run_dir):
                raise ComputeError(f"{run_dir} exists already. Fix: give the job another name")
            shutil.move(run.path, run_dir)
            run.path.symlink_to(run_dir)
        except OSError as error:
            raise ComputeError(f"cannot make {run_dir}: {error.strerror}") from error

    def _remove_folder(self, run: RunFolder, run_dir: str) -> None:
        """After a failed submission. What is here the client removes."""
        if not self._host.is_here:
            self._host.run(["rm", "-rf", run_dir])
        elif run.path.is_symlink():
            run.path.unlink()
            shutil.rmtree(run_dir, ignore_errors=True)

    def _write_end(self, run: RunFolder, end: EngineEnd, began: float) -> None:
        """Write down the end of a run, on which the bootstraps had no last word."""
        left: dict[str, Any] = next(
            (event["report"] for event in reversed(run.events()) if event["event"] == "left"), {}
        )
        if left and end.status not in ("Canceled", "TimedOut"):
            host = left["cause"]["host"]
            end = EngineEnd("Preempted", left["exit_code"], "preempted", left["message"], host=host)
        elif not left and end.failure_class:
            end = end._replace(last_lines=_last_lines(run))
        finish(run, end, left, began)
        if not self._host.is_here:
            secret = [f"{_run_dir(run)}/{name}" for name in (plan_file.SECRETS, plan_file.TOKEN)]
            self._host.run(["rm", "-f", *secret])

    # -- is it well? ---------------------------------------------------------------------------------------------

    def check(self) -> list[Check]:
        host = self._host
        answer = host.run(["sinfo", "--noheader", "--format", "%R|%a|%D|%G|%l"])
        if answer.code:
            return [Check("Slurm answers", False, answer.last_words, f"see that sinfo works on {host.name}")]
        partitions = {line.partition("|")[0]: line.split("|") for line in answer.out.splitlines()}
        found = [Check("Slurm answers", True, f"partitions {', '.join(partitions) or 'none'}")]
        for name in filter(None, self.settings.get("partition", "").split(",")):
            if name in partitions:
                _, up, nodes, gres, limit = partitions[name]
                text = f"{up}, {nodes} nodes, gres {gres}, time limit {limit}"
                found.append(Check(f"partition {name}", up == "up", text, "" if up == "up" else "use another one"))
            else:
                fix = f"set partition to one of {', '.join(partitions)}"
                found.append(Check(f"partition {name}", False, "there is none", fix))
        python = self.settings.get("python", "python3")
        try:
            version = host.run([python, "--version"])
            text = f"{version.last_words} on {host.name}; the nodes were not looked at"
            found.append(Check("python", not version.code, text, "" if not version.code else "set python"))
        except ComputeError as error:
            found.append(Check("python", False, str(error), "set python, if it is not on the nodes either"))
        folder = self.settings.get("folder") or str(home())
        try:
            host.write(folder, {".jobsdk-check": b""})
            host.run(["rm", "-f", f"{folder}/.jobsdk-check"])
            text = f"{folder} can be written on {host.name}; whether the nodes see it was not looked at"
            found.append(Check("folder", True, text))
        except ComputeError as error:
            found.append(Check("folder", False, str(error), "set folder to one that all nodes see"))
        return found


def _tell(run: RunFolder, job: str, state: JobState, asked: float) -> None:
    """Add an event where the job now waits for something else, or has nodes."""
    facts: dict[str, Any] = {"job": job, "starts": state.restarts}
    if state.is_waiting:
        kind, facts["message"] = "queued", slurm_state.reason_in_words(job, state)
    else:
        kind, facts["nodes"] = "allocated", state.nodes
    last: dict[str, Any] = next(
        (event for event in reversed(run.events()) if event["event"] in ("queued", "allocated")), {}
    )
    if {"event": kind, **facts}.items() - last.items():
        run.append_event(kind, t=asked, **facts)


def _job(run: RunFolder) -> str:
    """The number of its job. Raises ComputeError for a run whose submission was cut short."""
    job = run.read_json(_JOB).get("job")
    if job is None:
        raise ComputeError(f"run {run.name} has no job of Slurm: its submission did not come to an end")
    return str(job)


def _run_dir(run: RunFolder) -> str:
    return str(run.read_json("native.json")["run_dir"])


def _last_lines(run: RunFolder) -> list[str]:
    """The last lines of what Slurm, srun and the bootstraps themselves wrote."""
    try:
        text = (run.path / slurm_script.LOG).read_text("utf-8", "replace")
    except OSError:
        return []
    return [line[:400] for line in text.splitlines() if line.strip()][-_TAIL:]

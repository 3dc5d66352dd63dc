"""The Ray compute: a job is a placement group, and each of its nodes an actor that runs the bootstrap.

computes:
  cluster: {type: ray, address: "http://head:8265"}   # by job submission: the job goes on without this machine
  laptop: {type: ray}                                 # the session open here, or a Ray of the run's own
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from jobsdk.bootstrap.spec import ranks
from jobsdk.bootstrap.spec.secrets import Redactor
from jobsdk.compute import job_rules
from jobsdk.compute.base import Check, Spec, Warn
from jobsdk.compute.engine import EngineCompute
from jobsdk.compute.ray import handover
from jobsdk.compute.ray import settings as ray_settings
from jobsdk.compute.settings import meanings
from jobsdk.errors import ComputeError
from jobsdk.findings import Finding
from jobsdk.installation import install_command
from jobsdk.job import durations
from jobsdk.runs.folder import RunFolder

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.compute.engine.hold import Hold
    from jobsdk.compute.ray.jobs import Jobs
    from jobsdk.job.command import CommandJob
    from jobsdk.job.workers import Layout
    from jobsdk.planning.placement import Placement

_SUPPORTED = (("resources", "properties", "ray"),)


class RayCompute(EngineCompute):
    """By the cluster's job submission API, within a session, or with a driver process that has one."""

    type: ClassVar[str] = "ray"
    takes_job_settings: ClassVar[bool] = True
    settings_known: ClassVar[Mapping[str, str]] = meanings(ray_settings.SETTINGS)

    def mistakes(self, own: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        yield from ray_settings.mistakes(own)
        for setting in ("init",) if self.is_submitting else ("headers", "verify"):
            if setting in own:
                which = "has no meaning with" if self.is_submitting else "is for"
                yield setting, f"{which} the job submission API"

    @classmethod
    def job_mistakes(cls, own: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        return ray_settings.mistakes(own, of_job=True)

    @property
    def address(self) -> str | None:
        address = self.settings.get("address")
        return None if address == "local" else address

    @property
    def is_submitting(self) -> bool:
        """Whether runs go by the job submission API."""
        return (self.address or "").startswith(("http://", "https://"))

    # -- compiling -----------------------------------------------------------------------------------------------

    def place(self, job: CommandJob) -> Placement:
        """With `scaling` only Ray decides how many nodes there are: before that it is as if one held all."""
        at = super().place(job)
        if at.layout is None or not ray_settings.is_placed_by_ray(job):
            return at
        return at._replace(layout=at.layout._replace(findings=tuple(one for one in at.layout.findings if one.is_error)))

    def settings_for(self, job: CommandJob, layout: Layout | None) -> dict[str, Any]:
        return {**self.settings, **_own(job)}

    def plan(self, job: CommandJob, at: Placement, *, name: str) -> Plan:
        """As elsewhere, but that workers placed by Ray see the GPUs of all of their node, as Ray Train's do."""
        plan = super().plan(job, at, name=name)
        share = plan["gpus_per_process"]
        if not share or not ray_settings.is_placed_by_ray(job) or job.resources.gpus_per_process is not None:
            return plan
        # A share that does not divide a GPU takes as much as one that does: three of 0.3 fit on one.
        share = share if share >= 1 else 1 / ranks.sharers(share)
        environment = {"JOBSDK_GPUS_PER_PROCESS": f"{share:.16g}", **plan["environment"]}
        return {**plan, "gpus_per_process": None, "environment": environment}

    def findings(self, job: CommandJob, plan: Plan, at: Placement, *, build_env: bool = False) -> list[Finding]:
        found = [
            *self._judge_settings(job),
            *job_rules.what_none_can(self.name, job, plan, "give a path of the nodes, or an https URL"),
            *job_rules.ray_within_ray(self.name, job),
            *(job_rules.inputs_not_sent(plan, f"the nodes of {self.name}") if self.address is not None else ()),
            *self._judge_outputs(job, plan, at.settings.get("outputs_limit")),
            *job_rules.ignored_fields(self.name, job, _SUPPORTED),
            *job_rules.ignored_preemptions(self.name, job),
        ]
        if build_env:
            message = f"the compute {self.name} builds no environment"
            found.append(Finding("error", ("environment",), message, "set runtime_env of the compute, as {pip: [...]}"))
        elif job.environment is not None:
            fix = "set runtime_env of the compute, or resources.properties.ray.runtime_env of the job"
            found.append(Finding("warning", ("environment",), f"is not used on the compute {self.name}", fix))
        return found

    def compile(
        self, job: CommandJob, plan: Plan, at: Placement, *, in_place: bool = False, build_env: bool = False
    ) -> Spec:
        settings = at.settings
        runtime_env = _merged(self.settings.get("runtime_env"), _own(job).get("runtime_env"))
        wanted = ray_settings.demand(job, plan, settings)
        spec: Spec = {
            "compute": self.name,
            "type": self.type,
            "run": plan["run"],
            "address": self.address,
            "code": job_rules.code_here(job),
            "group": {**wanted._asdict(), "labels": wanted.labels},
            "runtime_env": runtime_env,
            "patience": durations.seconds(settings.get("placement_timeout")),
            "grows": bool(settings.get("autoscaling")),
        }
        if self.is_submitting:
            from jobsdk.compute.ray import jobs as ray_jobs

            spec["job"] = ray_jobs.compiled(plan, settings)
        return spec

    def native(self, spec: Spec) -> str:
        """The placement group, the actors' options and, by the job submission API, the submission, as YAML."""
        import yaml

        from jobsdk.job.yaml_text import Dumper

        group = spec["group"]
        what: dict[str, Any] = {
            "placement_group": {
                "name": spec["run"],
                "strategy": group["strategy"],
                "bundles": [dict(group["bundle"]) for _ in range(group["size"])],
                **({"bundle_label_selector": group["labels"]} if group["labels"] else {}),
            },
            "actor_for_each": "rank" if group["per_rank"] else "node",
            **({"runtime_env": spec["runtime_env"]} if spec["runtime_env"] else {}),
            **({"job": spec["job"]} if "job" in spec else {"address": spec["address"]}),
        }
        return yaml.dump(Redactor().data(what), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)

    # -- running -------------------------------------------------------------------------------------------------

    def prepare(self, spec: Spec, warn: Warn) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ComputeError(f"the compute {self.name} needs Ray here. Fix: {install_command('ray')}")
        if self.is_submitting:
            self.jobs().version()
        elif not self.has_session():
            self.require_cluster()

    def require_cluster(self) -> None:
        """Raises ComputeError where nobody listens at the address: Ray itself tries for minutes."""
        from jobsdk.compute.engine import reaching

        if self.address not in (None, "auto"):
            place = str(self.address).removeprefix("ray://").partition("/")[0].partition("?")[0]
            reaching.require(f"the Ray cluster at {self.address}", *reaching.split(place, 10001))

    def has_session(self) -> bool:
        if self.is_submitting or "ray" not in sys.modules:
            return False
        import ray

        return ray.is_initialized() and self._belongs(ray)

    def _belongs(self, ray: Any) -> bool:
        """Whether the session of this process is one of the cluster that is meant."""
        address = self.address
        if address is None or address == "auto":
            return True
        if address.startswith("ray://"):
            return bool(ray.util.client.ray.is_connected())
        return bool(ray.get_runtime_context().gcs_address == address)

    def submit(self, spec: Spec, run: RunFolder, warn: Warn) -> None:
        if self.is_submitting:
            self.jobs().submit(spec, run)
        else:
            super().submit(spec, run, warn)

    def drive(self, hold: Hold) -> None:
        import ray

        from jobsdk.compute.engine.hold import foreign
        from jobsdk.compute.ray import driver as ray_driver

        is_ours = not self.has_session()
        if is_ours:
            self._connect(ray, hold.spec["group"])
        try:
            order = ray_driver.Order(**handover.order(hold.spec, foreign()))
            ray_driver.drive(order, hold.files(), _Held(hold))
        finally:
            if is_ours:
                ray.shutdown()

    def _connect(self, ray: Any, group: Mapping[str, Any]) -> None:
        """Start a Ray of the run's own, or connect to the cluster. Raises ComputeError."""
        given: dict[str, Any] = {"log_to_driver": False, **self.settings.get("init", {})}
        if self.address is None:
            # It is the run's alone: what counts as a processor there is nobody else's concern.
            from jobsdk.bootstrap.system.processes import cores

            needed = int(-(-group["bundle"].get("CPU", 0) * group["size"] // 1))
            given = {"num_cpus": max(cores(), needed), "include_dashboard": False, **given}
        try:
            ray.init(address=self.address or "local", **given)
        except Exception as error:  # Ray has many of its own
            from jobsdk.compute.ray import errors as ray_errors

            said = ray_errors.cannot_connect(self.address, str(error))
            raise ComputeError(f"compute {self.name}: {said}") from error

    def cancel(self, run: RunFolder, by: str) -> None:
        if not self.is_submitting:
            super().cancel(run, by)
        elif not run.recorded_state().is_terminal:
            run.append_event("cancel_requested", by=by)
            self.jobs().stop(run)

    def ask(self, run: RunFolder, request: str) -> None:
        if self.is_submitting:
            self.jobs().ask(run, request)
        else:
            super().ask(run, request)

    def refresh(self, run: RunFolder) -> None:
        if self.is_submitting:
            self.jobs().refresh(run)
        else:
            super().refresh(run)

    def fetch(self, run: RunFolder, names: Sequence[str]) -> dict[str, str]:
        if self.is_submitting:
            from jobsdk.compute.ray import jobs as ray_jobs

            ray_jobs.require_outputs(run)
        return super().fetch(run, names)

    def check(self) -> list[Check]:
        from jobsdk.compute.ray import check as ray_check

        jobs = self.jobs() if self.is_submitting else None
        init = self.settings.get("init", {})
        return ray_check.check(ray_check.Cluster(self.address, self.has_session(), init, self.require_cluster, jobs))

    def jobs(self) -> Jobs:
        """The cluster's job submission API."""
        from jobsdk.compute.ray import jobs as ray_jobs

        return ray_jobs.Jobs(self.name, self.address or "", self.settings)

    # -- what it cannot do ---------------------------------------------------------------------------------------

    def _judge_settings(self, job: CommandJob) -> Iterator[Finding]:
        yield from job_rules.of_settings(self.type, job)
        if job.scaling is not None:
            for name in ("cpus_per_node", "gpus_per_node", "resources_per_node", "placement_strategy"):
                if name in _own(job):
                    path = ("resources", "properties", self.type, name)
                    yield Finding("error", path, "clashes with scaling", "say it in scaling")

    def _judge_outputs(self, job: CommandJob, plan: Plan, limit: int | None) -> Iterable[Finding]:
        yield from job_rules.ignored_outputs(self.name, job, plan)
        if self.is_submitting and limit == 0:
            for name, given in plan["outputs"].items():
                if given["uri"] is None:
                    message = "the output goes with the job: outputs_limit is 0"
                    yield Finding("warning", ("outputs", name), message, "give it a path on a shared disk")


class _Held:
    """What the driver has to say, for a run's folder: its `Client`."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.take, self.tell, self.asked = hold.take, hold.tell, hold.asked

    def planned(self, plan: Plan) -> None:
        handover.replan(self._hold, plan)

    def leave(self, rank: int, chunks: Iterator[bytes]) -> None:
        self._hold.leave(chunks)


def _own(job: CommandJob) -> dict[str, Any]:
    """What the job itself says of the compute's settings."""
    own = (job.resources.properties or {}).get("ray") or {}
    return dict(own) if isinstance(own, Mapping) else {}


def _merged(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> dict[str, Any]:
    """Ray's own rule: the other wins, and env_vars are put together."""
    merged = {**(one or {}), **(other or {})}
    variables = {**(one or {}).get("env_vars", {}), **(other or {}).get("env_vars", {})}
    return {**merged, **({"env_vars": variables} if variables else {})}

"""The Azure ML compute: a job is a command job of a workspace, sent with azure-ai-ml, followed over the service."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from jobsdk.bootstrap.spec import plan_file
from jobsdk.bootstrap.system import processes
from jobsdk.compute import job_rules
from jobsdk.compute.azureml import following, scaling, translation
from jobsdk.compute.azureml import settings as azureml_settings
from jobsdk.compute.azureml.body import CODE, rest_body
from jobsdk.compute.azureml.workspace import KEYS, Workspace
from jobsdk.compute.base import Check, Compute, Spec, Wanted, Warn
from jobsdk.compute.settings import meanings
from jobsdk.errors import ComputeError, JobsdkError
from jobsdk.findings import Finding
from jobsdk.home import locked
from jobsdk.job.io import Input
from jobsdk.job.paths import is_local
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.refresh import Pace

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.compute.azureml.connection import Connection
    from jobsdk.job.command import CommandJob
    from jobsdk.planning.placement import Placement

SERVERLESS = "serverless"


class AzureMlCompute(Compute):
    """Submits to a workspace with DefaultAzureCredential, or the credential that `MLClient` was given."""

    type: ClassVar[str] = "azureml"
    takes_job_settings: ClassVar[bool] = True
    pace: ClassVar[Pace] = Pace(1.0, 10.0)
    settings_known: ClassVar[Mapping[str, str]] = meanings(azureml_settings.SETTINGS)

    def mistakes(self, own: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        return azureml_settings.mistakes(own)

    @classmethod
    def job_mistakes(cls, own: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        return azureml_settings.mistakes(own, of_job=True)

    @property
    def workspace(self) -> Workspace:
        """Its workspace. Raises ComputeError."""
        return azureml_settings.workspace(self.name, self.settings)

    @property
    def target(self) -> str:
        """The name of the compute in the workspace."""
        return str(self.settings.get("target", self.name))

    # -- compiling -------------------------------------------------------------------------------------------------

    def findings(self, job: CommandJob, plan: Plan, at: Placement, *, build_env: bool = False) -> list[Finding]:
        mistakes = list(job_rules.of_settings(self.type, job))
        if mistakes:
            return mistakes
        from jobsdk.job import workers

        laid_out = workers.applied(job, at.layout)
        found = list(translation.findings(self.name, laid_out, plan, self.settings))
        if job.scaling is not None:
            launcher = translation.launcher(laid_out, self.settings)
            found = [one for one in found if not scaling.is_said_here(one)]
            found += scaling.findings(self.name, job, launcher, at.machine)
        others = job_rules.of_other_computes(self.name, job, [("resources", "properties", self.type)])
        # Properties of no type of ours are Azure's own.
        own = [*self._judge_code(job), *self._judge_environment(job, build_env)]
        return [*own, *found, *(one for one in others if one.is_error)]

    def compile(
        self, job: CommandJob, plan: Plan, at: Placement, *, in_place: bool = False, build_env: bool = False
    ) -> Spec:
        from jobsdk.job import workers
        from jobsdk.job.secret_rules import without

        job = workers.applied(job, at.layout)
        launcher = translation.launcher(job, self.settings)
        job = self._with_defaults(job)
        native = translation.native_job(job, plan, self.settings)
        native.name = plan["run"]
        native.compute = None if self.target == SERVERLESS and not job.compute else self.target
        source = job.resolve(job.code) if job.code is not None and is_local(job.code) else None
        body = rest_body(native, self.workspace, target=native.compute)
        if launcher == translation.BOOTSTRAP:
            body["properties"]["codeId"] = CODE
        return {
            "compute": self.name,
            "type": self.type,
            "workspace": self.workspace._asdict(),
            "launcher": launcher,
            "code": str(source) if source is not None else None,
            "body": body,
            "job": without(native).to_dict(lambda path: str(native.resolve(path))),
        }

    def native(self, spec: Spec) -> str:
        """The body of the request, as JSON. What only submitting knows, such as the code's id, has a word in place."""
        return json.dumps(spec["body"], indent=2, ensure_ascii=False) + "\n"

    def _with_defaults(self, job: CommandJob) -> CommandJob:
        """The job with the compute's own environment and datastore, where it names none."""
        job = copy.deepcopy(job)
        if job.environment is None:
            from jobsdk.job.environment import Environment

            image = self.settings.get("image")
            job.environment = Environment(image=image) if image else self.settings.get("environment")
        datastore = self.settings.get("datastore")
        for given in job.inputs.values() if datastore else ():
            if isinstance(given, Input) and given.path is not None and is_local(given.path) and not given.datastore:
                given.datastore = datastore
        return job

    # -- running ---------------------------------------------------------------------------------------------------

    def prepare(self, spec: Spec, warn: Warn) -> None:
        """Nothing is asked before: a job that cannot be submitted is refused as a whole."""
        from jobsdk.compute.azureml.failures import told

        with told(f"compute {self.name}"):
            import azure.ai.ml
            import azure.identity  # noqa: F401

    def submit(self, spec: Spec, run: RunFolder, warn: Warn) -> None:
        from jobsdk.compute.azureml import submission

        # Who is killed meanwhile leaves a run that is found out about: see `refresh`.
        run.write_json(following.PLACE, {"launcher": spec["launcher"], "key": _key(spec), "submitting": True})
        plan = plan_file.read(str(run.path))
        submitted = submission.submit(self._connection(), spec, plan)
        plan_file.forget_secrets(str(run.path))  # the service has them
        if submitted.code:
            run.write_json("snapshot.json", submitted.code)
        key = submission.key_of(spec, submitted.code.get("hash"))
        run.write_json(following.PLACE, {**submitted.place, "launcher": spec["launcher"], "key": key})

    def is_same(self, spec: Spec, run: RunFolder) -> bool:
        known = run.read_json(following.PLACE).get("key")
        return known is not None and bool(known == _key(spec))

    def cancel(self, run: RunFolder, by: str) -> None:
        from jobsdk.compute.azureml.failures import AzureError

        if run.recorded_state().is_terminal:
            return
        self._of(run)
        run.append_event("cancel_requested", by=by)
        try:
            self._connection().post(f"/jobs/{run.name}/cancel")
        except AzureError as error:
            if error.kind not in ("conflict", "refused"):  # it has ended meanwhile
                raise
            with contextlib.suppress(ComputeError):
                self.refresh(run)
            if not run.recorded_state().is_terminal:
                raise

    def refresh(self, run: RunFolder) -> None:
        place = run.read_json(following.PLACE)
        if not place or run.recorded_state().is_terminal or (place.get("submitting") and _has_submitter(run)):
            return
        with locked(run.path / "refresh.lock"):
            if not run.recorded_state().is_terminal:
                following.Look(self._connection(), run, place).take()

    def change(self, run: RunFolder, changes: Mapping[str, Any]) -> None:
        place = self._of(run)
        names = {"display_name": "displayName", "archived": "hidden"}
        sent = {names.get(name, name): value for name, value in changes.items()}
        if sent:
            self._connection().change_run(place.get("experiment") or "Default", run.name, sent)

    def _of(self, run: RunFolder) -> dict[str, Any]:
        place = run.read_json(following.PLACE)
        if not place:
            raise ComputeError(f"run {run.name} was not submitted to the end")
        return place

    def _connection(self) -> Connection:
        from jobsdk.compute.azureml.connection import connect

        return connect(self.workspace)

    # -- outputs ---------------------------------------------------------------------------------------------------

    def outputs(self, run: RunFolder) -> dict[str, str]:
        """The URIs of the outputs, which another job there can take as inputs; a path here once they were fetched."""
        from jobsdk.compute.azureml import fetching

        return fetching.places(run)

    def fetch(self, run: RunFolder, names: Sequence[str]) -> dict[str, str]:
        from jobsdk.compute.azureml import fetching

        place, connection = self._of(run), self._connection()
        if "artifacts" not in place:
            place = {**place, **following.facts_of(connection.job(run.name))}
            run.write_json(following.PLACE, place)
        datastore, prefix = place["artifacts"]
        return fetching.fetch(connection, run, names, (datastore, prefix))

    # -- runs that were submitted elsewhere --------------------------------------------------------------------------

    def bring(self, name: str) -> RunFolder:
        """Make the folder of a job of the workspace. Raises RunNotFound, JobsdkError."""
        from jobsdk.compute.azureml import bringing

        return bringing.bring(self._connection(), name, self._of_job)

    def use_bootstrap(self, job: CommandJob) -> None:
        own = job.resources.properties or {}
        job.resources.properties = {**own, self.type: {**own.get(self.type, {}), "launcher": "bootstrap"}}

    def bring_all(self, most: int, wanted: Wanted, *, is_of_target: bool) -> None:
        from itertools import islice

        from jobsdk.compute.azureml import bringing

        target = self.target if is_of_target else None
        jobs = bringing.found(self._connection(), wanted, target=target)
        for job in islice(jobs, most):
            with contextlib.suppress(JobsdkError):  # one that is no job of ours in any sense
                bringing.bring_job(job, *self._of_job(job))

    def _of_job(self, job: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The name and the settings of the compute of a job of the workspace."""
        target = str(job["properties"].get("computeId") or SERVERLESS).rpartition("/")[2]
        if target == self.target:
            return self.name, dict(self.settings)
        return target, dict(zip(KEYS, self.workspace, strict=True))

    # -- checking --------------------------------------------------------------------------------------------------

    def check(self) -> list[Check]:
        from jobsdk.compute.azureml.checking import check

        try:
            workspace = self.workspace
        except ComputeError as error:
            return [Check.failed("workspace", error)]
        return check(workspace, self.target, self.settings.get("datastore") or "workspaceblobstore")

    # -- what it cannot do -----------------------------------------------------------------------------------------

    def _judge_code(self, job: CommandJob) -> list[Finding]:
        """azure-ai-ml itself refuses these when it submits the job."""
        code = (job.code or "").lower()
        if not code.startswith(("git+", "azureml://registries/")):
            return []
        what = "a git repository" if code.startswith("git+") else "a registry"
        message = f"Azure ML takes no code from {what}"
        return [Finding("error", ("code",), message, "give a local folder: --set code=FOLDER")]

    def _judge_environment(self, job: CommandJob, build_env: bool) -> list[Finding]:
        found = []
        if build_env:
            message = "Azure ML builds environments by itself"
            found.append(Finding("error", ("environment",), message, "leave out --build-env"))
        given = job.environment
        if given is None and not (self.settings.get("image") or self.settings.get("environment")):
            message = f"the compute {self.name} needs an environment"
            fix = f"set environment: {{image: ...}} in the job, or image in the compute {self.name}"
            found.append(Finding("error", ("environment",), message, fix))
        if getattr(given, "requirements", None):
            message = f"requirements are not installed on the compute {self.name}"
            found.append(Finding("warning", ("environment", "requirements"), message, "write them into conda_file"))
        return found


def _key(spec: Spec) -> str:
    """What two submissions of the same have in common, with the code as it is now."""
    from pathlib import Path

    from jobsdk.compute.azureml import submission
    from jobsdk.snapshot import copy as snapshot

    code = snapshot.fingerprint(Path(spec["code"])) if spec["code"] is not None else None
    return submission.key_of(spec, code)


def _has_submitter(run: RunFolder) -> bool:
    """Whether the process that submits the run may still be at it; of another machine's nobody knows."""
    facts = run.facts()
    if facts.get("host") != os.uname().nodename:
        return True
    pid = int(facts.get("submitter_pid") or 0)
    return pid > 0 and processes.start_time(pid) == facts.get("submitter_start")


def of_workspace(workspace: Workspace, name: str | None) -> AzureMlCompute:
    """The compute `name` of a workspace, which no file speaks of; None stands for its serverless one."""
    settings = dict(zip(KEYS, workspace, strict=True))
    return AzureMlCompute(name or SERVERLESS, settings)

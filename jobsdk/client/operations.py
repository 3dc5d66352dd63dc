"""The client: `MLClient().jobs` submits jobs and finds their runs, under the names of Azure ML's client."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from jobsdk import compute as computes
from jobsdk.client.results import Validation
from jobsdk.client.run import CHANGEABLE, Cancellation, Run
from jobsdk.client.submission import Draft, JobSource, Submission
from jobsdk.errors import JobsdkError, RunNotFound, ValidationError
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.names import generate_name

if TYPE_CHECKING:
    from jobsdk.compute.azureml.workspace import Workspace
    from jobsdk.compute.base import Compute
    from jobsdk.findings import Finding
    from jobsdk.job.command import CommandJob
    from jobsdk.job.yaml_file import Overrides
    from jobsdk.runs.deletion import Deleted
    from jobsdk.runs.logs import Chosen, Sink
    from jobsdk.runs.metrics import Table
    from jobsdk.snapshot.listing import Listing

Warn = Callable[[str], None]
#: How many jobs of a workspace are taken into a list that says nothing of its length.


class JobOperations:
    """Submit and manage jobs. An operation takes a run's name, or a `Run`.

    Every operation on a run raises RunNotFound for an unknown name. With a `workspace` of Azure ML, you can also name
    its computes, and find its jobs, whoever submitted them.
    """

    def __init__(self, workspace: Workspace | None = None) -> None:
        self._workspace = workspace

    # -- submitting ----------------------------------------------------------------------------------------------

    def create_or_update(
        self,
        job: CommandJob | JobSource | Run,
        *,
        name: str | None = None,
        compute: str | Compute | None = None,
        build_env: bool = False,
        in_place: bool = False,
        strict: bool = False,
        refuse_outside_links: bool = False,
        warn: Warn | None = None,
    ) -> Run:
        """Submit a job and return its run at once. The run does not need this process.

        `name` and `compute` (its name, or the compute itself) take the place of the job's own. `build_env` builds the
        job's environment where the compute does not by itself; `in_place` runs in the code folder instead of a private
        copy of it, where the compute can. With `refuse_outside_links` a symbolic link that leads out of the code folder
        is an error; without it the link is followed, with a warning. `warn` receives each warning; by default they go
        to the logger `jobsdk`. The job itself is not changed. Given a `Run`, its tags, properties, description and
        display name are kept.

        Raises ValidationError before anything is written, ComputeError, RunExists.
        """
        if isinstance(job, Run):
            return self._update(job)
        compiled = self.compile(
            job, name=name, compute=compute, build_env=build_env, in_place=in_place, strict=strict,
            refuse_outside_links=refuse_outside_links,
        )  # fmt: skip
        return self.submit(compiled, warn or getattr(job, "options", {}).get("warn") or _log)

    def compile(
        self,
        job: CommandJob | JobSource,
        *,
        name: str | None = None,
        compute: str | Compute | None = None,
        build_env: bool = False,
        in_place: bool = False,
        strict: bool = False,
        refuse_outside_links: bool = False,
    ) -> Submission:
        """Return what `create_or_update` would submit, without network. Writes nothing except a function's call.
        Raises the same errors."""
        from jobsdk.job.command import CommandJob

        if not isinstance(job, CommandJob):
            own = getattr(job, "options", {})  # those that a function's job was made with
            build_env, strict = build_env or own.get("build_env", False), strict or own.get("strict", False)
            in_place = in_place or own.get("in_place", False)
            refuse_outside_links = refuse_outside_links or own.get("refuse_outside_links", False)
            source = getattr(job, "code", None)
            job = _job_of_function(job, in_place)
        else:
            source = None
        job = copy.deepcopy(job)
        if name is not None:
            job.name = name
        if compute is not None:
            job.compute = compute if isinstance(compute, str) else compute.name
        if source is None and job.code is not None:
            source = job.resolve(job.code)

        def resolve(name: str | None) -> Compute:
            return self._resolve(name) if compute is None or isinstance(compute, str) else compute

        name = job.name or generate_name()
        draft = Draft(job, name=name, resolve=resolve, strict=strict, build_env=build_env)
        submission = draft.submission(in_place=in_place)
        if source is None or in_place:
            return submission
        refuse = refuse_outside_links or submission.compute.settings.get("refuse_outside_links", False)
        return _with_code(submission, Path(source), refuse)

    def submit(self, compiled: Submission, warn: Warn) -> Run:
        """Start what `compile` returned. Raises JobsdkError, also for a secret that is not set here."""
        from jobsdk.client.starting import start

        return start(compiled, warn)

    def rerun(self, name: str | Run, params_override: Overrides = None, *, warn: Warn | None = None) -> Run:
        """Submit a run's job again under a new name, with the code of that run, and `params_override` as load_job's.

        Raises JobsdkError for a run whose job was not submitted from here, and as `create_or_update` does.
        """
        from jobsdk.client.again import job_of

        return self.create_or_update(job_of(self._run(name), params_override, warn or _log), warn=warn)

    def _update(self, run: Run) -> Run:
        from jobsdk.runs.history import History

        before = run.folder.facts()
        fields = {field: getattr(run, field) for field in CHANGEABLE}
        changes = {field: value for field, value in fields.items() if value != before.get(field)}
        if changes:
            run.target.change(run.folder, changes)
        run.folder.update_facts(fields)
        History().record(run.folder)
        return Run(run.folder)

    def validate(self, job: CommandJob | JobSource, *, strict: bool = False) -> Validation:
        """Return all errors and warnings about a job and its compute, without network."""
        from jobsdk.job.command import CommandJob

        if not isinstance(job, CommandJob):
            job = _job_of_function(job, job.options.get("in_place", False))
        try:
            draft = Draft(job, name=job.name or "run", resolve=self._resolve, strict=strict)
        except ValidationError as error:
            return Validation(error.findings)  # the compute would only repeat it
        return Validation((*draft.of_job, *draft.of_compute))

    # -- finding -------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Run:
        """Return the run with this name, including one of the client's workspace that was submitted elsewhere."""
        if self._workspace is None:
            return Run(RunFolder.find(name))
        try:
            return Run(RunFolder.find(name))
        except RunNotFound:
            from jobsdk.compute.azureml.compute import of_workspace

            return Run(of_workspace(self._workspace, None).bring(name))

    def list(
        self,
        *,
        status: str | None = None,
        tag: str | None = None,
        experiment: str | None = None,
        compute: str | None = None,
        max_results: int | None = None,
        list_view_type: str = "ActiveOnly",
    ) -> list[Run]:
        """Return the runs that match all filters, newest first.

        `tag` is `key` or `key=value`; `list_view_type` is ActiveOnly, ArchivedOnly or All. Of a workspace of Azure ML,
        the client's or that of `compute`, the newest runs that were submitted elsewhere are among them, at most
        `max_results` or else 100. Raises ValueError for an unknown status or view.
        """
        from jobsdk.client.listing import archived_of, list_runs
        from jobsdk.compute.base import Wanted

        wanted = Wanted(status, tag, experiment, archived_of(list_view_type))
        return list_runs(self._workspace, self._resolve, compute, wanted, max_results)

    def _resolve(self, name: str | None) -> Compute:
        """The compute of a job: one that is configured, else of the workspace, if the client has one."""
        if self._workspace is None:
            return computes.resolve(name)
        found = computes.configuration()
        bare = name.removeprefix("azureml:") if name else None
        if bare in found.computes or (bare is None and found.default_file is not None):
            return computes.resolve(name, found)
        from jobsdk.compute.azureml.compute import of_workspace

        return of_workspace(self._workspace, bare)

    # -- following -----------------------------------------------------------------------------------------------

    def stream(self, name: str | Run, *, ranks: Chosen = None, tail: int | None = None, out: Sink | None = None) -> Run:
        """Show the output of a run's ranks until it ends; see `Run.stream`. Raises JobFailed if it failed."""
        return self._run(name).stream(ranks=ranks, tail=tail, out=out)

    def logs(
        self, name: str | Run, *, ranks: Chosen = None, tail: int | None = None, follow: bool = False,
        out: Sink | None = None,
    ) -> None:  # fmt: skip
        """Show the output of a run's ranks so far; see `Run.logs`."""
        self._run(name).logs(ranks=ranks, tail=tail, follow=follow, out=out)

    def wait(self, name: str | Run, timeout: float | None = None) -> Run:
        """Wait until a run ends, whether it succeeds or not. Raises TimeoutError after `timeout` seconds."""
        return self._run(name).wait(timeout)

    def metrics(self, name: str | Run) -> Table:
        """Return the metrics of a run: a row for each point that a process reported or logged with MLflow.

        The result is a sequence of (metric, step, value, time, rank) with `to_pandas()`. It prints a line per metric.
        """
        from jobsdk.runs.metrics import Table

        run = self._run(name)
        run.state()  # brings in what has been written elsewhere
        return Table(run.metrics)

    def stacks(self, name: str | Run) -> dict[str, Any]:
        """Return the Python stacks of a run's ranks; see `Run.stacks`."""
        return self._run(name).stacks()

    # -- changing ------------------------------------------------------------------------------------------------

    def cancel(self, name: str | Run) -> Run:
        """Request that a run end, and return at once."""
        return self._run(name).cancel()

    def begin_cancel(self, name: str | Run) -> Cancellation:
        """Request that a run end; the result's `result()` waits for that."""
        return Cancellation(self.cancel(name))

    def archive(self, name: str | Run) -> Run:
        """Hide a run from lists."""
        return self._archive(name, True)

    def restore(self, name: str | Run) -> Run:
        """Show an archived run in lists again."""
        return self._archive(name, False)

    def _archive(self, name: str | Run, archived: bool) -> Run:
        run = self._run(name)
        if run.archived != archived:
            run.target.change(run.folder, {"archived": archived})
        run.folder.update_facts({"archived": archived})
        return self._update(Run(run.folder))

    def delete(self, *names: str | Run, force: bool = False) -> tuple[Deleted, ...]:
        """Delete ended runs with their logs, outputs and copies of the code. Names must be complete.

        Raises JobsdkError, and deletes nothing, for a run that has not ended or whose outputs are inputs of another.
        `force` cancels the one first, and deletes the other anyway.
        """
        from jobsdk.client import deletion

        runs = (name if isinstance(name, Run) else deletion.whole(name) for name in names)
        return deletion.delete(list(dict.fromkeys(runs)), force)

    def prune(
        self,
        *,
        older_than: float | str | None = None,
        keep: int | None = None,
        failed: bool = False,
        dry_run: bool = False,
    ) -> tuple[Deleted, ...]:
        """Delete the ended runs that all of these let go, the newest first; with `dry_run` only say which.

        `older_than` is the time since their end (seconds, or `30d`), `keep` how many of the newest stay, `failed` takes
        only those that have not completed. Without any of them the retention of the user's computes.yml holds. A run
        whose outputs another one has as inputs stays. Raises JobsdkError where nothing says which runs may go.
        """
        from jobsdk.client import deletion
        from jobsdk.job.durations import seconds
        from jobsdk.runs.deletion import Retention

        age = None if older_than is None else seconds(older_than)
        if older_than is not None and age is None:
            raise ValueError(f"older_than: {older_than!r} is not a length of time. Fix: 30d or 12h, or seconds")
        return deletion.prune(Retention(age, keep, failed), dry_run)

    def download(
        self,
        name: str | Run,
        *,
        download_path: str | os.PathLike[str] = ".",
        output_name: str | None = None,
        all: bool = False,
        warn: Warn | None = None,
    ) -> Path:
        """Copy the logs and outputs of an ended run to `download_path`, and return that folder.

        The default is `artifacts/`: the logs, and what the script wrote to ./outputs. `output_name` takes one named
        output instead, `all` all of them as well, to `named-outputs/<name>/`, as Azure ML lays them out. Links that
        stay inside an output are kept; other links and special files are left out, and `warn` gets one warning that
        names them; without it the logger `jobsdk` does. Raises JobsdkError if the run has not ended or has no such
        output.
        """
        from jobsdk.client.download import download

        run = self._run(name)
        state = run.state()
        if not state.is_terminal:
            raise JobsdkError(f"run {run.name} is {state.status}: only a run that has ended can be downloaded")
        return download(run.folder, run.target, Path(download_path), output_name, all, warn or _log)

    def _run(self, name: str | Run) -> Run:
        return name if isinstance(name, Run) else self.get(name)


class MLClient:
    """The entry to runs: `MLClient().jobs`.

    Without arguments to those on this machine and on the computes of computes.yml. With a workspace of Azure ML, named
    as for azure-ai-ml's client, its computes can be named in jobs as well, and its jobs are found. `credential` is any
    of azure-identity's; without one it is DefaultAzureCredential. Nothing is asked before it is needed.
    """

    def __init__(
        self,
        credential: Any = None,
        subscription_id: str | None = None,
        resource_group_name: str | None = None,
        workspace_name: str | None = None,
        *,
        show_progress: bool | None = None,
        enable_telemetry: bool | None = None,
    ) -> None:
        """`show_progress` and `enable_telemetry`, azure-ai-ml's, have no effect: there is neither here."""
        names = (subscription_id, resource_group_name, workspace_name)
        if not any(name is not None for name in (credential, *names)):
            self.jobs = JobOperations()
            return
        if not all(isinstance(name, str) and name for name in names):
            raise JobsdkError(
                "a workspace has three names, each a text: subscription_id, resource_group_name, workspace_name. "
                "Fix: give all three, or MLClient.from_config(), or MLClient() for what computes.yml names"
            )
        from jobsdk.compute.azureml.workspace import Workspace

        self._workspace = Workspace(*map(str, names))
        if credential is not None:
            from jobsdk.compute.azureml.connection import use

            use(self._workspace, credential)
        self.jobs = JobOperations(self._workspace)

    @classmethod
    def from_config(
        cls,
        credential: Any = None,
        *,
        path: str | os.PathLike[str] | None = None,
        file_name: str | None = None,
    ) -> MLClient:
        """A client of the workspace of a config.json: `path`, or in that folder, else here or above.

        Raises JobsdkError if there is none, or one that names no workspace.
        """
        from jobsdk.compute.azureml.workspace import from_config

        return cls(credential, *from_config(path, file_name))

    @property
    def subscription_id(self) -> str | None:
        """Return the subscription of the client's workspace."""
        return self._workspace.subscription_id if self._workspace else None

    @property
    def resource_group_name(self) -> str | None:
        """The resource group of the client's workspace."""
        return self._workspace.resource_group if self._workspace else None

    @property
    def workspace_name(self) -> str | None:
        """The client's workspace."""
        return self._workspace.workspace_name if self._workspace else None

    _workspace: Workspace | None = None

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"jobsdk has no MLClient().{name}. Fix: MLClient() runs jobs with its .jobs")

    def create_or_update(
        self, job: CommandJob | JobSource | Run, *, name: str | None = None, compute: str | None = None
    ) -> Run:
        """Submit a job, or keep the changes of a run; see `JobOperations.create_or_update`."""
        return self.jobs.create_or_update(job, name=name, compute=compute)


def _with_code(submission: Submission, source: Path, refuse_outside_links: bool) -> Submission:
    """A submission with the listing of its code. Raises ValidationError for links that are to be refused."""
    from jobsdk.snapshot.listing import scan

    try:
        listing = scan(source)
    except JobsdkError:
        return submission  # said when it is to be copied
    of_code = submission.job.located(_judge_code(listing, refuse_outside_links))
    if any(one.is_error for one in of_code):
        raise ValidationError(of_code)
    return submission._replace(findings=(*submission.findings, *of_code), code=listing)


def _judge_code(listing: Listing, refuse_outside_links: bool) -> list[Finding]:
    """What the user should know of the files that are sent as code; links that are to be refused are an error."""
    from jobsdk.findings import Finding

    found = listing.findings
    if listing.outside and refuse_outside_links:
        fix = "copy what they lead to into the folder, or leave the links out with .amlignore"
        found.append(Finding("error", ("code",), f"{listing.words_on_outside}", fix))
    elif listing.outside:
        fix = "leave them out with .amlignore, or refuse them with refuse_outside_links"
        found.append(Finding("warning", ("code",), f"{listing.words_on_outside}; they are followed", fix))
    return found


def _job_of_function(job: object, in_place: bool) -> CommandJob:
    """The job that calls a function. Raises JobsdkError for anything else."""
    if isinstance(job, JobSource):
        return job.job(in_place=in_place)
    raise JobsdkError(
        f"only a job can be submitted, not an object of type {type(job).__name__}. "
        "Fix: make one with command(...), function(...) or load_job(...)"
    )


def _log(text: str) -> None:
    import logging

    logging.getLogger("jobsdk").warning("%s", text)

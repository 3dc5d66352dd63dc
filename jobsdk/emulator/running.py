"""Runs the submitted jobs: jobsdk's local compute starts the processes, what they leave goes where Azure has it."""

from __future__ import annotations

import contextlib
import datetime
import json
import shlex
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobsdk.emulator import rank
from jobsdk.emulator.bodies import LocalJob, invalid
from jobsdk.emulator.data import Carrier, Unreachable
from jobsdk.emulator.logs import Logs
from jobsdk.emulator.settings import LOCATION, Settings
from jobsdk.emulator.storage import Storage
from jobsdk.emulator.store import Document, Store
from jobsdk.errors import JobsdkError

if TYPE_CHECKING:
    from jobsdk import CommandJob
    from jobsdk.client.run import Run

_TURN_S = 0.25  # between two looks at a run
_LOGS_EVERY = 2  # turns
_ENDED = {"Completed": "Completed", "Canceled": "Canceled", "TimedOut": "Canceled"}
_TERMINAL = ("Completed", "Failed", "Canceled")


class Runner:
    """Takes jobs, and runs so many of them at once; the others are queued."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        store: Store,
        storage: Storage,
        at_once: int,
        mapped: Mapping[str, Path],
        python: Path | None = None,
    ) -> None:
        self._mapped = mapped
        self._python = python
        self._folder = folder
        self._settings = settings
        self._store = store
        self._storage = storage
        self._slots = threading.Semaphore(at_once)
        self._cancelled: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}

    def judge(self, name: str, job: LocalJob) -> None:
        """Raises Refused for what the local compute cannot run."""
        from jobsdk import MLClient
        from jobsdk.errors import ValidationError

        try:
            MLClient().jobs.compile(_local(name, job, "true", None), compute="local", in_place=True)
        except ValidationError as error:
            first = next(finding for finding in error.findings if finding.is_error)
            raise invalid(f"jobsdk azure-emulator cannot run the job: {first}") from None

    def submit(self, name: str, job: LocalJob) -> None:
        """Run a job whose document is stored; returns at once."""
        self._cancelled[name] = threading.Event()
        thread = threading.Thread(target=self._live, args=(name, job), name=name, daemon=True)
        self._threads[name] = thread
        thread.start()

    def cancel(self, name: str) -> None:
        """Ask that a job be ended; one that is not of this emulator's life is left alone."""
        if name in self._cancelled and not self._cancelled[name].is_set():
            self._cancelled[name].set()
            self._status(name, "CancelRequested")

    def stop(self) -> None:
        """End all jobs, and wait for that."""
        for event in list(self._cancelled.values()):
            event.set()
        for thread in list(self._threads.values()):
            thread.join(60)

    def bury(self) -> None:
        """Say of jobs that an earlier life of the emulator has left unfinished that they have failed."""
        from jobsdk import MLClient
        from jobsdk.errors import RunNotFound

        for job in self._store.list("jobs"):
            if job["run"]["ended"] is None:
                try:
                    MLClient().jobs.cancel(job["name"])  # its processes go on where the emulator was killed
                except RunNotFound:
                    pass
                self._end(job["name"], "Failed", "The emulator was stopped while the job ran.")

    # -- the life of a job ---------------------------------------------------------------------------------------

    def _live(self, name: str, job: LocalJob) -> None:
        cancelled = self._cancelled[name]
        try:
            self._status(name, "Queued")
            while not self._slots.acquire(timeout=_TURN_S):
                if cancelled.is_set():
                    return self._end(name, "Canceled")
            own = self._folder / name
            shutil.rmtree(own, ignore_errors=True)
            own.mkdir(parents=True)
            try:
                with _one_word(own) as folder:
                    self._run(name, job, folder, cancelled)
            finally:
                self._slots.release()
        except (JobsdkError, Unreachable) as error:
            self._end(name, "Failed", str(error))
        except Exception as error:  # a fault of ours must not leave a job without an end
            traceback.print_exc(file=sys.stderr)
            self._end(name, "Failed", f"The emulator itself failed: {type(error).__name__}: {error}", "ServiceError")
        finally:
            self._threads.pop(name, None)

    def _run(self, name: str, job: LocalJob, folder: Path, cancelled: threading.Event) -> None:
        from jobsdk import MLClient

        if cancelled.is_set():
            return self._end(name, "Canceled")
        self._status(name, "Preparing")
        code = folder / "code"
        code.mkdir()
        carrier = Carrier(self._settings, self._store, self._storage, folder, self._mapped)
        carrier.fetch_code(job.code_id, code)
        for own in (code / "outputs", code / "logs", folder / "tmp"):
            own.mkdir(exist_ok=True)
        paths = {
            "inputs": {**job.literals, **{key: carrier.fetch(key, data) for key, data in job.inputs.items()}},
            "outputs": {key: carrier.make(key, data) for key, data in job.outputs.items()},
        }
        if cancelled.is_set():
            return self._end(name, "Canceled")
        words = folder / "azure.json"
        content = {
            "command": job.rendered(paths),
            "programs": str(self._python.absolute().parent) if self._python is not None else "",
            "distribution": job.distribution,
            "environment": job.variables,
            "variables": {**self._variables(name), "AZ_BATCHAI_JOB_TEMP": str(folder / "tmp"), **_named(paths)},
        }
        words.write_text(json.dumps(content))
        self._status(name, "Starting")
        command = "exec " + shlex.join([sys.executable, "-S", "-E", rank.__file__, str(words)])
        local = _local(name, job, command, code)
        run = MLClient().jobs.create_or_update(local, compute="local", in_place=True, warn=lambda _: None)
        logs = Logs(self._storage, self._settings, name, run.folder.logs, job.world_size)
        try:
            ended = self._watch(name, run, logs, cancelled)
        except Exception:
            run.cancel()  # nobody looks after it any more
            raise
        self._status(name, "Finalizing")
        logs.carry()
        carrier.keep_artifacts(name, code)
        for key, data in job.outputs.items():
            carrier.keep(name, key, data)
        if ended == "Failed":
            self._end(name, "Failed", _failure(run, job, logs))
        else:
            self._end(name, ended)

    def _watch(self, name: str, run: Run, logs: Logs, cancelled: threading.Event) -> str:
        """Follow a run to its end; returns Azure's word for how it ended."""
        asked, shown, turn = False, False, 0
        while True:
            state = run.state()
            if state.started is not None and not shown:
                shown = True
                self._status(name, "Running", started=_now())
            if state.is_terminal:
                return _ENDED.get(state.status, "Failed")
            if turn % _LOGS_EVERY == 0:
                logs.carry()
            turn += 1
            if cancelled.is_set() and not asked:
                asked = True
                run.cancel()
            if asked:
                threading.Event().wait(_TURN_S)
            else:
                cancelled.wait(_TURN_S)

    def _variables(self, name: str) -> dict[str, str]:
        """What every process of a job has, whatever its rank is."""
        settings, experiment = self._settings, self._store.get("jobs", name)
        title = experiment["properties"]["experimentName"] if experiment else "Default"
        scope = f"{settings.workspace.id}/experiments/{title}"
        return {
            "AZUREML_RUN_ID": name,
            "AZUREML_ROOT_RUN_ID": name,
            "AZUREML_EXPERIMENT_NAME": title,
            "AZUREML_EXPERIMENT_ID": title,
            "AZUREML_EXPERIMENT_SCOPE": scope,
            "AZUREML_ARM_SUBSCRIPTION": settings.subscription_id,
            "AZUREML_ARM_RESOURCEGROUP": settings.resource_group,
            "AZUREML_ARM_WORKSPACE_NAME": settings.workspace_name,
            "AZUREML_ARM_PROJECT_NAME": title,
            "AZUREML_WORKSPACE_ID": settings.workspace_guid,
            "AZUREML_WORKSPACE_SCOPE": settings.workspace.id,
            "AZUREML_SERVICE_ENDPOINT": f"https://{settings.api_host}",
            "AZUREML_DISCOVERY_SERVICE_ENDPOINT": f"https://{settings.api_host}/discovery",
            "AZUREML_RUN_HISTORY_SERVICE_ENDPOINT": f"https://{settings.api_host}",
            "AZ_BATCHAI_GPU_COUNT": "0",
        }

    # -- documents -----------------------------------------------------------------------------------------------

    def _status(self, name: str, status: str, **more: Any) -> None:
        def go_on(job: Document) -> None:
            run = job["run"]
            if run["ended"] is None:
                run.update(more)
                if run["status"] != "CancelRequested" or status in ("Finalizing", *_TERMINAL):
                    run["status"] = status

        self._store.change("jobs", name, go_on)

    def _end(self, name: str, status: str, message: str | None = None, code: str = "UserError") -> None:
        error = None
        if message is not None:
            error = {
                "error": {"code": code, "message": message, "messageParameters": {}, "details": []},
                "correlation": {"operation": name, "request": name},
                "environment": LOCATION,
                "location": LOCATION,
                "time": _now(),
                "componentName": "CommonRuntime",
            }
        self._status(name, status, ended=_now(), error=error)


@contextlib.contextmanager
def _one_word(folder: Path) -> Iterator[Path]:
    """A name of the folder that is one word for the shell that takes the command: itself, or a link to it."""
    if shlex.quote(str(folder)) == str(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="jobsdk-") as private:
        link = Path(private, "job")
        link.symlink_to(folder)
        yield link


def _local(name: str, job: LocalJob, command: str, code: Path | None) -> CommandJob:
    """The job for jobsdk's local compute."""
    from jobsdk import CommandJob

    fields: dict[str, Any] = {
        "name": name,
        "command": command,
        "resources": {"instance_count": job.nodes},
        "environment_variables": _without_identity(job.variables),
    }
    if code is not None:
        fields["code"] = str(code)
    if job.timeout is not None:
        fields["limits"] = {"timeout": job.timeout}
    if job.distribution == "TensorFlow":
        fields["distribution"] = {
            "type": "tensorflow",
            "worker_count": job.workers,
            "parameter_server_count": job.parameter_servers,
        }
    elif job.distribution is not None:
        fields["distribution"] = {"type": job.distribution.lower(), "process_count_per_instance": job.processes}
    return CommandJob(**fields)


def _without_identity(variables: dict[str, str]) -> dict[str, str]:
    """A job's own variables, but for those that say which process it is: Azure ML's win over them."""
    from jobsdk.bootstrap.distributions.contract import IDENTITY

    return {name: value for name, value in variables.items() if name not in IDENTITY}


def _named(paths: dict[str, dict[str, str]]) -> dict[str, str]:
    """The variables by which a script finds its inputs and outputs."""
    return {
        f"AZURE_ML_{kind[:-1].upper()}_{name}": value for kind, named in paths.items() for name, value in named.items()
    }


def _failure(run: Run, job: LocalJob, logs: Logs) -> str:
    """What the service says of a job whose process has failed."""
    report = run.report
    cause = report.get("cause") or {}
    number = cause.get("rank")
    if number is None or cause.get("exit_code") is None:
        return f"Execution failed. {report.get('message') or 'The processes could not be started.'}"
    program = next(iter(job.command.split()), "")
    said = "; ".join(
        line for line in str(cause.get("traceback") or cause.get("message") or "").splitlines()[-1:] if line
    )
    return (
        f"Execution failed. User process '{program}' exited with status code {cause['exit_code']}. Please check log "
        f"file '{logs.name_of(int(number))}' for error details." + (f" Error: {said}" if said else "")
    )


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")

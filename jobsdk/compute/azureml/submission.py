"""Submitting a job with azure-ai-ml's public API: once, whatever the network does, with the code that is there now."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsdk.compute.azureml import translation
from jobsdk.compute.azureml.body import default_experiment
from jobsdk.compute.azureml.connection import Connection
from jobsdk.compute.azureml.failures import AzureError, Failure, told
from jobsdk.compute.azureml.following import facts_of
from jobsdk.compute.azureml.remembered import Remembered
from jobsdk.compute.shipping import parcel
from jobsdk.errors import RunExists, ValidationError
from jobsdk.findings import Report
from jobsdk.job.io import Input
from jobsdk.job.paths import is_local
from jobsdk.snapshot import copy

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.job.command import CommandJob

#: The property of a job that says what was submitted: the same for the same body and code.
KEY = "jobsdk.submission"
#: Failures after which nobody knows whether the service has the job.
_UNCLEAR = ("network", "service", "throttled", "conflict")
_quiet = threading.RLock()


class Submitted(NamedTuple):
    """What is known of a job once the service has it."""

    place: dict[str, Any]  # what is known of it: see `following.facts_of`
    code: dict[str, Any]  # facts of the snapshot; empty for a job without local code


def submit(connection: Connection, spec: Mapping[str, Any], plan: Plan) -> Submitted:
    """Submit what `AzureMlCompute.compile` gave; `plan` is the run's, with its secrets.

    Raises AzureError, RunExists where the workspace has another job of that name.
    """
    return _Submission(connection, spec, plan).submit()


def key_of(spec: Mapping[str, Any], code: str | None) -> str:
    """What two submissions of the same have in common; `code` is the code's fingerprint."""
    whole = json.dumps([spec["body"], code], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


class _Submission:
    def __init__(self, connection: Connection, spec: Mapping[str, Any], plan: Plan) -> None:
        self._connection = connection
        self._spec = spec
        self._name: str = plan["run"]
        self._body = spec["body"]["properties"]
        self._remembered = Remembered(connection.workspace)
        native = translation.completed(_job_of(spec), plan, secrets.token_hex(32))
        native.experiment_name = self._body.get("experimentName") or default_experiment()
        self._native = native
        self._source = Path(spec["code"]) if spec["code"] is not None else None
        self._facts: dict[str, Any] = {}

    def submit(self) -> Submitted:
        fingerprint = None
        if self._source is not None:
            fingerprint = copy.fingerprint(self._source)
            self._facts = {"source": str(self._source), "hash": fingerprint}
        key = key_of(self._spec, fingerprint)
        self._native.properties = {**self._native.properties, **_git(self._source), KEY: key}
        short = self._known(fingerprint)
        try:
            try:
                return Submitted(self._send(short), self._facts)
            except AzureError as error:
                is_expired = error.kind == "expired"  # a signature for the upload, which took too long
                if not is_expired and not (short and error.kind in ("refused", "gone", "data")):
                    raise
                if self._of_service(key) is None:  # what was there is there no more: all of it once again
                    self._remembered.forget(list(short))
                    return Submitted(self._send({}), self._facts)
                raise
        except AzureError as error:
            return Submitted(facts_of(self._after(error, key)), self._facts)
        except KeyboardInterrupt:
            self._take_back(key)
            raise

    def _take_back(self, key: str) -> None:
        """End the job if the service has it: who interrupts its submission has no run of it here."""
        with contextlib.suppress(AzureError, RunExists):
            if self._of_service(key) is not None:
                self._connection.post(f"/jobs/{self._name}/cancel")

    def _after(self, error: AzureError, key: str) -> dict[str, Any]:
        """The job, if the service has it in spite of the failure. Raises the failure otherwise."""
        if error.kind not in (*_UNCLEAR, "refused"):
            raise error
        try:
            found = self._of_service(key)
        except AzureError:
            if error.kind not in ("network", "service"):
                raise error from None
            what = f"{error}; whether the job {self._name} is there cannot be found out either"
            fix = f"submit it again as --name {self._name}: a job that is there is not made twice"
            raise AzureError(Failure(error.kind, what, fix)) from None
        if found is None:
            raise error
        return found

    def _of_service(self, key: str) -> dict[str, Any] | None:
        """The job of this name that the service has; None if it has none. Raises RunExists if it is another one."""
        try:
            found = self._connection.job(self._name)
        except AzureError as error:
            if error.kind == "gone":
                return None
            raise
        properties = found["properties"].get("properties") or {}
        if properties.get(KEY) == key:
            return found
        raise RunExists(
            f"the workspace {self._connection.workspace.workspace_name} has another job named {self._name!r}. "
            "Fix: give the job another name, or none to have one made up"
        )

    # -- what is there already ---------------------------------------------------------------------------------------

    def _known(self, fingerprint: str | None) -> dict[str, str]:
        """What an earlier submission has brought to the workspace: keys of `remembered` -> ids."""
        wanted = [self._code_key(fingerprint)] if fingerprint is not None else []
        if self._has_own_environment():
            wanted.append(self._environment_key())
        wanted += [self._input_key(name) for name in self._local_inputs()]
        found = {key: self._remembered.get(key) for key in wanted}
        return {key: value for key, value in found.items() if value is not None}

    def _code_key(self, fingerprint: str) -> str:
        extra = hashlib.sha256(b"".join(self._extra().values())).hexdigest() if self._extra() else ""
        return f"code {fingerprint} {extra}"

    def _environment_key(self) -> str:
        return f"environment {self._body.get('environmentId')}"

    def _input_key(self, name: str) -> str:
        return f"input {self._body['inputs'][name].get('uri')}"

    def _has_own_environment(self) -> bool:
        given = str(self._body.get("environmentId"))
        return "/CliV2AnonymousEnvironment/versions/" in given

    def _local_inputs(self) -> list[str]:
        return [
            name
            for name, given in self._native.inputs.items()
            if isinstance(given, Input) and given.path is not None and is_local(given.path)
        ]

    def _extra(self) -> dict[str, bytes]:
        """What goes with the code besides the user's own."""
        is_needed = self._spec["launcher"] == translation.BOOTSTRAP
        return {translation.BOOTSTRAP_FILE: parcel.bootstrap()} if is_needed else {}

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send(self, short: Mapping[str, str]) -> dict[str, Any]:
        """One submission; what is in `short` is not sent again."""
        with told(f"workspace {self._connection.workspace.workspace_name}"), contextlib.ExitStack() as stack:
            from jobsdk.compute.azureml.entities import to_azure

            stack.enter_context(_silence())
            native = self._native
            azure = to_azure(native)
            azure.properties = _Whole(azure.properties or {})
            for name in self._local_inputs():
                known = short.get(self._input_key(name))
                if known is not None:
                    azure._job_inputs[name].path = known
            if self._has_own_environment() and self._environment_key() in short:
                azure.environment = short[self._environment_key()]
            if self._source is not None or self._extra():
                fingerprint = self._facts.get("hash", "")
                known = short.get(self._code_key(fingerprint)) if fingerprint else None
                azure.code = known or str(self._folder(stack))
                stack.enter_context(_interrupted_at_once(str(azure.code) if known is None else None))
            made = self._connection.ml_client().jobs.create_or_update(azure)
            self._remember(azure)
        return {"studio_url": made.studio_url, "experiment": self._native.experiment_name}

    def _folder(self, stack: contextlib.ExitStack) -> Path:
        """A private copy of the code as it is now, which azure-ai-ml uploads as a whole."""
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jobsdk-code-"))) / "code"
        if self._source is not None:
            taken = copy.take(self._source, folder)
            self._facts = taken.to_dict()
        for name, content in self._extra().items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        ignored = [name for name in (".amlignore", ".gitignore") if (folder / name).exists()]
        if ignored:  # it has been applied; of azure-ai-ml an empty .amlignore takes the place of a .gitignore
            (folder / ".amlignore").unlink(missing_ok=True)
            (folder / ".amlignore").write_bytes(b"")
        return folder

    def _remember(self, azure: Any) -> None:
        """Note the ids that azure-ai-ml has put into its job."""
        found: dict[str, str] = {}
        if self._facts.get("hash") and str(azure.code).startswith("/subscriptions/"):
            found[self._code_key(self._facts["hash"])] = str(azure.code)
        if self._has_own_environment() and str(azure.environment).startswith("/subscriptions/"):
            found[self._environment_key()] = str(azure.environment)
        for name in self._local_inputs():
            path = str(azure._job_inputs[name].path)
            if path.startswith("azureml:"):
                found[self._input_key(name)] = path
        self._remembered.put(found)


class _Whole(dict[str, Any]):
    """The properties of a job, complete: azure-ai-ml would add git's of the working directory to those that have
    none of git's."""

    def __contains__(self, key: object) -> bool:
        return True


def _job_of(spec: Mapping[str, Any]) -> CommandJob:
    """The job that a spec holds."""
    from jobsdk.job.command import CommandJob

    report = Report()
    job = CommandJob.structure(spec["job"], (), report)
    ValidationError.raise_for(report)
    job.secrets = []
    return job


def _git(source: Path | None) -> dict[str, str]:
    """Where the code comes from, as properties of the job."""
    if source is None:
        return {}
    from jobsdk.compute.azureml.git import git_properties

    return git_properties(source)


@contextlib.contextmanager
def _interrupted_at_once(folder: str | None) -> Iterator[None]:
    """Let Ctrl-C end the upload of a folder of ours: azure-ai-ml otherwise uploads all of it before it reacts."""
    before = signal.getsignal(signal.SIGINT)
    if folder is None or not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        with contextlib.suppress(OSError):
            os.rename(folder, f"{folder}-interrupted")  # the files that still wait are not found any more
        before(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """What azure-ai-ml tells this thread's user is not heard: that parts of it are experimental, progress bars."""
    names = ("azure.ai.ml._utils._experimental", "azure.ai.ml._artifacts._blob_storage_helper", "azure.identity")
    loggers = [logging.getLogger(name) for name in names]
    with _quiet:
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        before = sys.stderr
        sys.stderr = _ForOthers(before)
        try:
            yield
        finally:
            sys.stderr = before
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


class _ForOthers:
    """stderr for the other threads: what this one writes is dropped, and what its progress bars' monitor writes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread or type(threading.current_thread()).__name__ == "TMonitor":
            return len(text)
        return int(self._stream.write(text) or 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

"""Runs that go by Ray's job submission API: submitted with all that they need, and followed by their job's log."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import re
import shlex
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsdk.bootstrap.spec import plan_file
from jobsdk.compute.base import Spec
from jobsdk.compute.ends import EngineEnd
from jobsdk.compute.engine.hold import Hold, foreign
from jobsdk.compute.ray import handover
from jobsdk.compute.ray import settings as ray_settings
from jobsdk.errors import ComputeError
from jobsdk.home import locked
from jobsdk.runs.folder import RunFolder

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan

_PACKAGE = "jobsdk_ray"  # what travels, on the cluster: not a name that would hide jobsdk itself
_TRAVELS = ("ends.py", "ray/entry.py", "ray/driver.py", "ray/node.py", "ray/placing.py", "engine/node.py")
_STATE = "ray.json"
_LINE = re.compile(rb"@(\d+) (\S+) (.*)", re.DOTALL)
_FIRST_LOOK, _WHOLE = 1000, -1  # lines
_STRAYS = 20
_ANNOUNCED = "Running entrypoint for job "  # what Ray itself writes, which may come after what the shell has said
_STOPPING_S = 20  # seconds that the driver has to stop its nodes, beside the job's grace time
_OVER = ("SUCCEEDED", "FAILED", "STOPPED")
_TELL = "import ray, sys; ray.init(namespace=sys.argv[1], log_to_driver=False); " \
    "ray.get(ray.get_actor(sys.argv[2]).ask.remote(sys.argv[3]))"  # fmt: skip
_environment = threading.Lock()


def compiled(plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is submitted, but for the files that are added then."""
    wait = int(plan["grace_s"]) + _STOPPING_S
    return {
        "submission_id": plan["run"],
        "entrypoint": shlex.join([settings.get("python", "python"), "-m", f"{_PACKAGE}.ray.entry"]),
        "entrypoint_num_cpus": settings.get("entrypoint_num_cpus", 0),
        "entrypoint_resources": dict(settings.get("entrypoint_resources", {})),
        "runtime_env": {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(wait)}},
        "metadata": {"jobsdk": plan["display_name"]},
        "outputs_limit": settings.get("outputs_limit", ray_settings.OUTPUTS_LIMIT),
    }


def require_outputs(run: RunFolder) -> None:
    """Raises ComputeError where what the run has left did not come here."""
    nodes = run.read_json(_STATE).get("unsent")
    if nodes:
        raise ComputeError(
            f"the outputs of run {run.name} on node {nodes[0]} were more than outputs_limit, and are gone. Fix: "
            "raise outputs_limit of the compute, or write to a path on a disk that this machine has too"
        )


class Jobs:
    """The job submission API of a cluster."""

    def __init__(self, compute: str, address: str, settings: Mapping[str, Any]) -> None:
        self._compute = compute
        self._address = address
        self._settings = settings
        self._known: Any = None

    @property
    def _client(self) -> Any:
        """Ray's own. Raises ComputeError where the cluster does not answer."""
        if self._known is None:
            with self._errors(), _addresses_forgotten():
                from ray.job_submission import JobSubmissionClient

                headers, verify = self._settings.get("headers"), self._settings.get("verify", True)
                self._known = JobSubmissionClient(self._address, headers=headers, verify=verify)
        return self._known

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Ray's, requests'
            from jobsdk.compute.ray import errors as ray_errors

            said = ray_errors.refused(self._address, str(error))
            raise ComputeError(f"compute {self._compute}: {said}") from error

    def version(self) -> str:
        """The cluster's version of Ray. Raises ComputeError."""
        return str(self.get("/api/version")["ray_version"])

    def get(self, path: str) -> Any:
        """What the cluster's dashboard answers, as JSON. Raises ComputeError."""
        client = self._client
        with self._errors():
            answer = client._do_request("GET", path)
            answer.raise_for_status()
            return answer.json()

    # -- submitting ----------------------------------------------------------------------------------------------

    def submit(self, spec: Spec, run: RunFolder) -> None:
        """Start the job. What it needs travels in its package, secrets too; they are not in what Ray shows of it."""
        given = dict(spec["job"])
        limit = given.pop("outputs_limit")
        client = self._client
        with tempfile.TemporaryDirectory(prefix="jobsdk-ray-") as folder:
            _pack(Path(folder), Hold(run, spec).files(), {**handover.order(spec, foreign()), "outputs_limit": limit})
            given["runtime_env"] = {**given["runtime_env"], "working_dir": folder}
            with self._errors(), _quiet():
                client.submit_job(**{key: value for key, value in given.items() if value})
        run.write_json(_STATE, {"job": given["submission_id"], "seen": 0})
        plan_file.forget_secrets(str(run.path))  # nothing here needs them any more

    def stop(self, run: RunFolder) -> None:
        client = self._client
        with self._errors():
            client.stop_job(run.read_json(_STATE)["job"])

    def ask(self, run: RunFolder, request: str) -> None:
        """Pass a request on to node 0: only who is on the cluster can talk to it, so that a job of its own does."""
        native, client = run.read_json("native.json"), self._client
        argv = [shlex.split(native["job"]["entrypoint"])[0], "-c", _TELL]
        argv += ["jobsdk", f"jobsdk-{native['run']}", request]
        with self._errors():
            client.submit_job(entrypoint=shlex.join(argv), submission_id=f"{native['run']}-{request}")

    # -- following -----------------------------------------------------------------------------------------------

    def refresh(self, run: RunFolder) -> None:
        """Bring in what is new in the job's log, and its end."""
        if not run.read_json(_STATE) or run.recorded_state().is_terminal:
            return
        with locked(run.path / "refresh.lock"):
            if not run.recorded_state().is_terminal:
                _Look(self, run).take()

    def job(self, name: str) -> Any:
        """Ray's record of a job; None where there is none."""
        client = self._client
        with self._errors():
            answer = client._do_request("GET", f"/api/jobs/{name}")
            if answer.status_code == 404:
                return None
            answer.raise_for_status()
            return answer.json()

    def tail(self, name: str, lines: int) -> list[bytes]:
        """The last whole lines of a job's log; empty where there is none yet."""
        client = self._client
        with self._errors():
            answer = client._do_request("GET", f"/api/v0/logs/file?submission_id={name}&lines={lines}&timeout=30")
            if answer.status_code != 200:  # not there yet, or an older Ray
                answer = client._do_request("GET", f"/api/jobs/{name}/logs")
                content = answer.json()["logs"].encode() if answer.status_code == 200 else b""
            else:
                content = answer.content
        return content[: content.rfind(b"\n") + 1].splitlines(keepends=True)


class _Numbered(NamedTuple):
    number: int
    kind: str
    text: bytes


class _Look:
    """One look at a run's job: `take` brings the run's folder up to date."""

    def __init__(self, jobs: Jobs, run: RunFolder) -> None:
        self._jobs = jobs
        self._run = run
        self._state: dict[str, Any] = {"seen": 0, "told": "", **run.read_json(_STATE)}
        self._hold = Hold(run, run.read_json("native.json"))
        self._strays: list[str] = []
        self._end: dict[str, Any] | None = None
        self._taken: dict[int, list[bytes]] = {}

    def take(self) -> None:
        job = self._jobs.job(self._state["job"])
        lines = self._new_lines() if job is not None else []
        if job is not None and job["status"] == "PENDING":  # first: the lines are newer
            self._tell("queued", message=job.get("message") or "the Ray job is pending")
        for line in lines:
            self._bring(line)
        for rank, taken in self._taken.items():
            self._hold.take(rank, taken)
        self._state["seen"] += len(lines)
        self._run.write_json(_STATE, self._state)
        if self._end is not None or job is None or job["status"] in _OVER:
            self._finish(job)

    def _new_lines(self) -> list[_Numbered]:
        """Lines of ours that were not seen yet. Only the end of the log is asked for, as long as that is enough."""
        asked = _FIRST_LOOK
        while True:
            lines = self._jobs.tail(self._state["job"], asked)
            found, strays = [], []
            for line in lines:
                match = _LINE.fullmatch(line)
                if match is not None:
                    found.append(_Numbered(int(match[1]), match[2].decode(), match[3].rstrip(b"\n")))
                else:
                    strays.append(line.decode("utf-8", "replace").strip())
            self._strays = [line for line in strays if line and not line.startswith(_ANNOUNCED)][-_STRAYS:]
            seen = self._state["seen"]
            if asked == _WHOLE or len(lines) < asked or (found and found[0].number <= seen + 1):
                return [one for one in found if one.number > seen]
            asked = asked * 8 if asked < 100 * _FIRST_LOOK else _WHOLE

    def _bring(self, line: _Numbered) -> None:
        if line.kind.isdigit():
            self._taken.setdefault(int(line.kind), []).append(line.text + b"\n")
        elif line.kind == "event":
            facts = json.loads(line.text)
            self._tell(facts.pop("event"), **facts)
        elif line.kind == "plan":
            handover.replan(self._hold, json.loads(line.text))
        elif line.kind == "left":
            rank, start, piece = line.text.split(b" ")
            path = self._left(int(rank))
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.seek(int(start))
                file.write(base64.b64decode(piece))
        elif line.kind == "unsent":
            self._state.setdefault("unsent", []).append(int(line.text))
        elif line.kind == "end":
            self._end = json.loads(line.text)

    def _left(self, rank: int) -> Path:
        return self._run.path / f"left-{rank}.tar"

    def _tell(self, event: str, **facts: Any) -> None:
        """Note an event, unless it was the last one told."""
        said = json.dumps([event, facts], sort_keys=True)
        if said != self._state["told"]:
            self._state["told"] = said
            self._run.append_event(event, **facts)

    def _finish(self, job: Mapping[str, Any] | None) -> None:
        for rank in range(self._hold.plan["nodes"]):
            path = self._left(rank)
            if path.exists():
                self._hold.leave([path.read_bytes()])
                path.unlink()
        if self._state.get("unsent"):
            nodes = ", ".join(map(str, self._state["unsent"]))
            text = f"what the job has left on node {nodes} was more than outputs_limit, and went with the job"
            self._run.append_event("warning", message=text)
        self._hold.finish(self._ended(job))

    def _ended(self, job: Mapping[str, Any] | None) -> EngineEnd | None:
        """How the job ended by Ray's words; None where node 0's report says it."""
        if self._end is not None:
            return EngineEnd(**self._end) if self._end else None
        name = self._state["job"]
        if job is None:
            return EngineEnd.lost(f"the Ray job {name} is gone: it was deleted, or the cluster has restarted")
        if job["status"] == "STOPPED":
            return EngineEnd.canceled(f"the Ray job {name} was stopped")
        words = next(iter(self._strays[-1:]), "") or " ".join(str(job.get("message") or "").split())
        is_of_python = "named 'ray'" in words or "exit code 127" in str(job.get("message"))
        fix = ". Fix: set python of the compute to the interpreter that Ray has there" if is_of_python else ""
        return EngineEnd.failed(f"its driver on the cluster failed: {words[:250]}{fix}")


def _pack(folder: Path, files: Mapping[str, bytes], order: Mapping[str, Any]) -> None:
    """Put together what travels: the driver and its neighbours, the order, the parcel with the code."""
    from jobsdk.compute.ray import entry as ray_entry  # needs Ray

    computes = Path(__file__).parent.parent
    for name in _TRAVELS:
        place = folder / _PACKAGE / name
        place.parent.mkdir(parents=True, exist_ok=True)
        for package in (place.parent, folder / _PACKAGE):
            (package / "__init__.py").touch()
        place.write_bytes((computes / name).read_bytes())
    (folder / ray_entry.ORDER).write_text(json.dumps(order))
    (folder / ray_entry.PARCEL).mkdir()
    for name, content in files.items():
        (folder / ray_entry.PARCEL / name).write_bytes(content)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray's client tells of each step of an upload on stderr."""
    names = ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging")
    loggers = [logging.getLogger(name) for name in names]
    levels = [one.level for one in loggers]
    try:
        for one in loggers:
            one.setLevel(logging.WARNING)
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


@contextlib.contextmanager
def _addresses_forgotten() -> Iterator[None]:
    """Ray's client takes an address of the environment before the one that it is given."""
    names = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
    with _environment:
        before = {name: os.environ.pop(name) for name in names if name in os.environ}
        try:
            yield
        finally:
            os.environ.update(before)

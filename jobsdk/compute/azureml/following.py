"""One look at a run of Azure ML: its status, its logs and how it ended are brought to the run's folder here."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.coordinator import restarts
from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.spec import ranks as ranks_
from jobsdk.bootstrap.system import private
from jobsdk.compute.azureml.connection import Blob, Connection
from jobsdk.compute.azureml.failures import AzureError
from jobsdk.compute.ends import EngineEnd, finish
from jobsdk.compute.shipping.relayed import Mirror
from jobsdk.runs.folder import RunFolder
from jobsdk.train import reporting

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan

#: In the run's folder: where the run is, and what of it has been seen.
PLACE, _STATE = "azureml.json", "azureml-state.json"
_AT_ONCE = 8  # logs that are read at the same time
_PIECE = 4 << 20  # bytes of a log that are asked for at once
_ENOUGH = 32 << 20  # bytes of a log in one look, before the run's end
_PATIENCE_S = 20.0  # seconds that the last lines are waited for after the service says that all is over
#: The states of Azure ML's runs, and the event that each is.
_EVENTS = {
    "NotStarted": "queued",
    "Queued": "queued",
    "Paused": "queued",
    "Provisioning": "preparing",
    "Preparing": "preparing",
    "Starting": "bootstrap_up",
    "Running": "started",
    "Finalizing": "started",
    "CancelRequested": "cancel_requested",
}
_ENDS = ("Completed", "Failed", "Canceled", "NotResponding")
_LOG = re.compile(
    r"user_logs/(?:retry_(?P<again>\d+)/)?"
    r"(?:std_log(?:_process)?(?:_(?P<role>worker|ps|chief))?(?:_(?P<number>\d+))?|(?P<mpi>mpi_log))\.txt"
)
_REPORTS = re.compile(re.escape(reporting.KEPT).replace("%d", r"(\d+)"))


class Log(NamedTuple):
    """A log that Azure ML writes: of which start of the job, and of whom."""

    blob: Blob
    again: int  # how often the job had been started before
    role: str | None
    number: int
    is_launcher: bool
    is_of_reports: bool = False


def logs_of(blobs: list[Blob], prefix: str) -> list[Log]:
    """The ranks' logs among the blobs of a run; `prefix` is that of all of them."""
    found = []
    for blob in blobs:
        match = _LOG.fullmatch(blob.name.removeprefix(prefix))
        if match is not None:
            again, number = int(match["again"] or 0), int(match["number"] or 0)
            found.append(Log(blob, again, match["role"], number, match["mpi"] is not None))
    return sorted(found, key=lambda log: (log.again, log.role or "", log.number))


def reports_of(blobs: list[Blob], prefix: str) -> list[Log]:
    """What ranks that Azure ML has started said with `jobsdk.train.report`, among the blobs of a run."""
    found = ((blob, _REPORTS.fullmatch(blob.name.removeprefix(prefix))) for blob in blobs)
    return [Log(blob, 0, None, int(match[1]), False, True) for blob, match in found if match is not None]


def rank_of(log: Log, plan: Plan) -> ranks_.Process | None:
    """Whose log it is; None where the plan has no such process."""
    for process in distributions.of(plan).processes():
        if log.role is not None and plan["distribution"]["type"] == "tensorflow":
            if (process.role, process.role_index) == (log.role, log.number):
                return process
        elif process.rank == log.number:
            return process
    return None


class Look:
    """`take` brings the folder of a run here up to date. Raises AzureError where the service cannot be asked."""

    def __init__(self, connection: Connection, run: RunFolder, place: Mapping[str, Any]) -> None:
        self._connection = connection
        self._run = run
        self._place = dict(place)
        self._plan = run.plan()
        self._is_bootstrap = place.get("launcher") == "bootstrap"
        self._mirror = Mirror(run)
        self._state: dict[str, Any] = {"status": None, "files": {}, "again": 0, **run.read_json(_STATE)}
        self._before = repr(self._state)
        self._written: dict[int, float] = {}  # by rank: when its log was last added to

    def take(self) -> None:
        details = self._details()
        if details is None:
            return
        status = str(details.get("status"))
        is_over = status in _ENDS
        if not self._is_bootstrap:
            self._tell(status, details)
        is_whole = self._read_logs(is_over)
        if self._is_bootstrap:
            self._tell(status, details)  # first: the logs are newer
            self._mirror.tell()
        self._keep()
        if is_over and (is_whole or self._has_waited("logs")):
            self._finish(status, details)

    def _details(self) -> dict[str, Any] | None:
        """How the run is. None where the service does not know it: then its end is written, if it had known it."""
        try:
            return self._connection.details(self._run.name)
        except AzureError as error:
            if error.kind != "gone":
                raise
        try:
            job = self._connection.job(self._run.name)
        except AzureError as error:
            if error.kind != "gone" or not self._has_waited("gone"):
                raise
            text = "the workspace has no such job any more: somebody has deleted it"
            finish(self._run, EngineEnd.lost(text))
            return None
        return {"status": job["properties"].get("status")}

    def _keep(self) -> None:
        if repr(self._state) != self._before:
            self._run.write_json(_STATE, self._state)
            self._before = repr(self._state)

    def _has_waited(self, what: str) -> bool:
        since = self._state.setdefault(f"{what}_since", time.time())
        self._keep()
        return time.time() - float(since) > _PATIENCE_S

    # -- how far it is -----------------------------------------------------------------------------------------------

    def _tell(self, status: str, details: Mapping[str, Any]) -> None:
        """Note that the run has come to another state. What the bootstrap says itself is left to it."""
        if status == self._state["status"]:
            return
        self._state["status"] = status
        event = _EVENTS.get(status)
        if event is None or (self._is_bootstrap and event in ("bootstrap_up", "started")):
            return
        if event == "queued":
            message = "the job is paused" if status == "Paused" else "waits for machines"
            self._run.append_event(event, message=message, azureml=status)
        elif event == "cancel_requested":
            if self._run.recorded_state().status != "CancelRequested":
                self._run.append_event(event, by="Azure ML", azureml=status)
        else:
            began = seconds(details.get("startTimeUtc")) if event == "started" else None
            self._run.append_event(event, azureml=status, t=time.time() if began is None else began)

    # -- logs --------------------------------------------------------------------------------------------------------

    def _read_logs(self, to_the_end: bool) -> bool:
        """Bring what is new of all logs; whether that was all."""
        datastore, prefix = self._artifacts()
        logs = logs_of(self._connection.list_blobs(datastore, f"{prefix}user_logs/"), prefix)
        if not self._is_bootstrap:
            ranks = ((rank_of(log, self._plan), log.blob.modified) for log in logs)
            self._written = {process.rank: when for process, when in ranks if process is not None}
        self._tell_restarts(max((log.again for log in logs), default=0))
        if to_the_end and not self._is_bootstrap:  # until then ./outputs may be on the nodes alone
            kept = f"{prefix}{os.path.dirname(reporting.KEPT)}/"
            logs += reports_of(self._connection.list_blobs(datastore, kept), prefix)
        known: dict[str, int] = self._state["files"]
        wanted = [log for log in logs if log.blob.size > known.get(log.blob.name, 0)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for log, data in zip(
                wanted, pool.map(lambda log: self._new(datastore, log, to_the_end), wanted), strict=True
            ):
                known[log.blob.name] = self._take(log, data, known.get(log.blob.name, 0), to_the_end)
        self._mirror.flush()
        return all(known.get(log.blob.name, 0) >= log.blob.size for log in logs)

    def _new(self, datastore: str, log: Log, to_the_end: bool) -> bytes:
        begin, pieces, size = self._state["files"].get(log.blob.name, 0), [], 0
        while begin + size < log.blob.size and (to_the_end or size < _ENOUGH):
            wanted = min(_PIECE, log.blob.size - begin - size)
            piece = self._connection.read_blob(datastore, log.blob.name, begin + size, wanted)
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def _take(self, log: Log, data: bytes, begin: int, to_the_end: bool) -> int:
        """Put what was read of a log, from byte `begin`, into the folder; up to where it is there now."""
        if self._is_bootstrap:
            if not to_the_end:  # records are lines
                data = data[: data.rfind(b"\n") + 1]
            for line in data.split(b"\n"):
                if line:
                    self._mirror.take(log.number, line, log.again)
            return begin + len(data)
        path = self._path(log)
        private.make_within(os.path.dirname(path))
        with open(path, "r+b" if os.path.exists(path) else "w+b", opener=private.opener) as file:
            file.seek(begin)  # a look that was cut short may have written it already
            file.write(data)
        return begin + len(data)

    def _path(self, log: Log) -> str:
        folder, process = str(self._run.path), rank_of(log, self._plan)
        if log.is_of_reports:
            return paths.reports(folder, process.node_rank if process else 0, log.number, 0)
        if log.is_launcher or process is None:
            return paths.launcher_log(folder, 0, log.again)
        return paths.rank_log(folder, process.node_rank, process.rank, log.again)

    def _tell_restarts(self, again: int) -> None:
        """Azure ML has started the job once more by itself, as it does where nodes were taken away."""
        while not self._is_bootstrap and self._state["again"] < again:
            self._state["again"] += 1
            message, why = "the job was interrupted", "Azure ML starts it again"
            cause = {"message": message, "time": time.time(), "class": "preempted"}
            summary = restarts.summary(cause)
            summary["time"], summary["decision"], summary["round"] = time.time(), why, self._state["again"] - 1
            self._run.append_event(
                "restart", restart=self._state["again"], decision=why, message=message, delay=0.0, summary=summary,
                used=(0, self._state["again"], 0),
            )  # fmt: skip

    def _artifacts(self) -> tuple[str, str]:
        """The datastore with the run's logs and ./outputs, and what their names begin with."""
        if "artifacts" not in self._place:
            job = self._connection.job(self._run.name)
            self._place.update(facts_of(job))
            self._run.write_json(PLACE, self._place)
        datastore, prefix = self._place["artifacts"]
        return datastore, prefix

    # -- the end -----------------------------------------------------------------------------------------------------

    def _finish(self, status: str, details: Mapping[str, Any]) -> None:
        """The bootstrap's report is how it ended, but for what it could not know; without one the logs are judged."""
        report = self._mirror.report() if self._is_bootstrap else {}
        if report and status == "Canceled" and report.get("status") not in ("TimedOut", "Failed", "Completed"):
            finish(self._run, EngineEnd.canceled(), report)
        elif report and not (status == "Failed" and report.get("status") == "Completed"):
            finish(self._run, None, report)
        else:
            from jobsdk.compute.azureml import verdict

            times = {"started": seconds(details.get("startTimeUtc")), "ended": seconds(details.get("endTimeUtc"))}
            if times["started"] is not None and self._run.recorded_state().started is None:
                self._run.append_event("started", t=times["started"], azureml=status)  # between two looks
            nodes = range(self._plan["nodes"]) if self._is_bootstrap else ()
            said = {node: self._mirror.last_words(node) for node in nodes}
            verdict.write(self._run, self._plan, status=status, error=details.get("error"), written=self._written,
                          said=said, **times)  # fmt: skip


def facts_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """What of a job as the service has it is kept with the run."""
    properties = job["properties"]
    outputs = properties.get("outputs") or {}
    uri = (outputs.get("default") or {}).get("uri") or ""
    place = parsed(uri.replace("${{name}}", job["name"])) or (
        "workspaceartifactstore",
        f"ExperimentRun/dcid.{job['name']}",
    )
    services = {
        name: {key: one.get(key) for key in ("endpoint", "jobServiceType", "status", "port") if one.get(key)}
        for name, one in (properties.get("services") or {}).items()
        if isinstance(one, Mapping)
    }
    return {
        "artifacts": [place[0], f"{place[1].rstrip('/')}/"],
        "experiment": properties.get("experimentName"),
        "studio_url": (services.get("Studio") or {}).get("endpoint"),
        "services": services,
    }


def parsed(uri: str) -> tuple[str, str] | None:
    """(datastore, path) of a datastore's URI in any of its forms; None for another one."""
    found = re.fullmatch(r"azureml://(?:subscriptions/.*/)?datastores/([^/]+)/(?:paths/)?(.*)", uri)
    return (found[1], found[2]) if found else None


def seconds(moment: Any) -> float | None:
    """A time as the service writes it (RFC 3339, with up to seven digits after the point), in seconds."""
    if not isinstance(moment, str):
        return None
    text = re.sub(r"(\.\d{1,6})\d*", r"\1", moment).replace("Z", "+00:00")
    text = text if re.search(r"[+-]\d\d:?\d\d$", text) else f"{text}+00:00"
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None

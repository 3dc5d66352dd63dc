"""Jobs under their ARM addresses: put, shown, listed, cancelled; and what their documents look like."""

from __future__ import annotations

import re
import threading
from typing import Any
from urllib.parse import quote

from jobsdk.emulator import bodies
from jobsdk.emulator.bodies import LocalJob, invalid
from jobsdk.emulator.running import Runner
from jobsdk.emulator.server import Refused, Request, Response, Route
from jobsdk.emulator.settings import LOCATION, Settings
from jobsdk.emulator.store import Store
from jobsdk.emulator.workspace import CURATED, MANAGEMENT, route, system_data

TERMINAL = ("Completed", "Failed", "Canceled")
_PAGE = 50


class Jobs:
    """The operations on jobs. A job's document has `properties` as the service shows them, and `run`: its history."""

    def __init__(self, settings: Settings, store: Store, runner: Runner) -> None:
        self._settings = settings
        self._store = store
        self._runner = runner
        self._lock = threading.Lock()

    def routes(self) -> list[Route]:
        one = r"/jobs/(?P<name>[^/]+)"
        table = [
            ("GET", r"/jobs", self._list),
            ("GET", one, self._get),
            ("PUT", one, self._put),
            ("POST", one + r"/cancel", self._cancel),
        ]
        within = [route(self._settings, *one) for one in table]
        results = (
            MANAGEMENT
            + r"/subscriptions/(?P<subscription>[^/]+)/providers/Microsoft\.MachineLearningServices/locations/"
            r"[^/]+/mfeOperationResults/jc:(?P<name>[^/]+)"
        )
        return [*within, Route("GET", re.compile(results), self._cancelled)]

    # -- what is asked -------------------------------------------------------------------------------------------

    def _put(self, request: Request) -> Response:
        name, given = request.parts["name"], request.json().get("properties")
        if not isinstance(given, dict):
            raise invalid("The request has no properties.")
        with self._lock:  # of two that send the same job at once, one makes it
            found = self._store.get("jobs", name)
            if found is not None:
                return Response(self._shown(self._changed(found, given)))
            job = bodies.read(name, given)
            self._check_references(job)
            self._runner.judge(name, job)
            self._store.put("jobs", name, self._new(name, given))
            self._runner.submit(name, job)
        return Response(self._shown(self._document(name)), 201)

    def _get(self, request: Request) -> Response:
        return Response(self._shown(self._document(request.parts["name"])))

    def _list(self, request: Request) -> Response:
        query = request.query
        view, kind = query.get("listViewType", "ActiveOnly"), query.get("jobType")
        found = [
            job
            for job in self._store.list("jobs")
            if (view == "All" or job["properties"]["isArchived"] == (view == "ArchivedOnly"))
            and (not kind or kind == "Command")
            and _has_tag(job, query.get("tag"))
        ]
        start = int(query.get("$skip") or 0) if (query.get("$skip") or "0").isdigit() else 0
        page: dict[str, Any] = {"value": [self._shown(job) for job in found[start : start + _PAGE]]}
        if len(found) > start + _PAGE:
            kept = "".join(f"&{key}={quote(value)}" for key, value in query.items() if key != "$skip")
            address = f"https://management.azure.com{self._settings.workspace.id}/jobs"
            page["nextLink"] = f"{address}?$skip={start + _PAGE}{kept}"
        return Response(page)

    def _cancel(self, request: Request) -> Response:
        name = request.parts["name"]
        job = self._document(name)
        if job["run"]["status"] in TERMINAL:
            return Response(None)
        self._runner.cancel(name)
        place = (
            f"https://management.azure.com/subscriptions/{self._settings.subscription_id}/providers/"
            f"Microsoft.MachineLearningServices/locations/{LOCATION}/mfeOperationResults/jc:{name}"
        )
        return Response(None, 202, {"Location": f"{place}?api-version=2024-10-01", "Retry-After": "1"})

    def _cancelled(self, request: Request) -> Response:
        job = self._document(request.parts["name"])
        if job["run"]["status"] in TERMINAL:
            return Response(None)
        place = f"https://{request.host}{request.path}?api-version=2024-10-01"
        return Response(None, 202, {"Location": place, "Retry-After": "1"})

    # -- documents -----------------------------------------------------------------------------------------------

    def _document(self, name: str) -> dict[str, Any]:
        found = self._store.get("jobs", name)
        if found is None:
            raise Refused(404, "UserError", f"Job {name} not found in workspace {self._settings.workspace_name}.")
        return found

    def _new(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        outputs = {
            key: {**(value or {}), "uri": (value or {}).get("uri") or default_uri(name, key)}
            for key, value in (given.get("outputs") or {}).items()
            if key != "default"
        }
        outputs["default"] = {"uri": artifacts_uri(name), "jobOutputType": "uri_folder", "mode": "ReadWriteMount"}
        properties = {
            "tags": {}, "properties": {}, "isArchived": False, "inputs": {}, "environmentVariables": {},
            **given,
            "displayName": given.get("displayName") or name,
            "experimentName": given.get("experimentName") or "Default",
            "outputs": outputs,
        }  # fmt: skip
        made = system_data()
        run = {"status": "NotStarted", "created": made["createdAt"], "started": None, "ended": None, "error": None}
        return {"name": name, "given": given, "properties": properties, "run": run, "systemData": made}

    def _changed(self, found: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        """A job that is there already, with what may be changed; that much is also all that may differ."""
        if not bodies.same_job(found["given"], given) and not bodies.same_job(found["properties"], given):
            raise invalid(
                "A job with this name already exists. If you are trying to submit a new job, use a different name. If "
                "you are trying to update an existing job, the existing job's configuration cannot be changed. Only "
                f"{', '.join(bodies.CHANGEABLE)} can be updated."
            )
        changes = {key: given[key] for key in bodies.CHANGEABLE if given.get(key) is not None}
        return self._store.change("jobs", found["name"], lambda job: job["properties"].update(changes))

    def _shown(self, job: dict[str, Any]) -> dict[str, Any]:
        settings, name = self._settings, job["name"]
        endpoint = f"https://ml.azure.com/runs/{name}?wsid={settings.workspace.id}"
        tracking = f"azureml://{settings.api_host}/mlflow/v1.0{settings.workspace.id}?"
        return {
            "id": f"{settings.workspace.id}/jobs/{name}",
            "name": name,
            "type": "Microsoft.MachineLearningServices/workspaces/jobs",
            "systemData": job["systemData"],
            "properties": {
                **job["properties"],
                "status": job["run"]["status"],
                "services": {
                    "Tracking": {"jobServiceType": "Tracking", "endpoint": tracking},
                    "Studio": {"jobServiceType": "Studio", "endpoint": endpoint},
                },
            },
        }

    def _check_references(self, job: LocalJob) -> None:
        """What a job names of the workspace must be there; curated environments and registries have everything."""
        for kind, reference in (("codes", job.code_id), ("environments", job.environment_id)):
            if reference is None or reference.startswith("azureml://registries/"):
                continue
            found = re.search(rf"(?:^azureml:|^|/{kind}/)([\w.-]+)(?:/versions/|/labels/|:|@)([\w.+-]+)$", reference)
            name, version = found.groups() if found else ("", "")
            if kind == "environments" and name.startswith(CURATED):
                continue
            if version == "latest" and self._store.list(kind, name):
                continue
            if self._store.get(kind, name, version) is None:
                raise invalid(f"The job's {kind[:-1]} {reference.rpartition(f'/{kind}/')[2]} was not found.")


def default_uri(job: str, output: str) -> str:
    """Where the service keeps a named output that gives no place."""
    return f"azureml://datastores/workspaceblobstore/paths/azureml/{job}/{output}/"


def artifacts_uri(job: str) -> str:
    """Where the service keeps a job's logs and what it writes to ./outputs."""
    return f"azureml://datastores/workspaceartifactstore/ExperimentRun/dcid.{job}"


def _has_tag(job: dict[str, Any], tag: str | None) -> bool:
    if not tag:
        return True
    key, equals, value = tag.partition("=")
    tags = job["properties"]["tags"]
    return key in tags and (not equals or tags[key] == value)

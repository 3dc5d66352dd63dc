"""Run history and the data service: how a run goes, what it left, and the changes that studio makes to runs."""

from __future__ import annotations

import re
from typing import Any

from jobsdk.emulator.server import Handler, Refused, Request, Response, Route
from jobsdk.emulator.settings import LOCATION, Settings
from jobsdk.emulator.storage import Storage
from jobsdk.emulator.store import Document, Store
from jobsdk.emulator.workspace import route

#: How run history spells the types of outputs (azure-ai-ml 1.35.2 knows only the other spelling: its issue 48941).
_TYPES = {
    "uri_folder": "UriFolder", "uri_file": "UriFile", "mltable": "MLTable",
    "custom_model": "CustomModel", "mlflow_model": "MLFlowModel", "triton_model": "TritonModel",
}  # fmt: skip
_ASSET = re.compile(
    r"azureml://locations/[^/]+/workspaces/[^/]+/(?:data|models)/azureml_(?P<run>.+)_output_(?P<out>\w+)/.*"
)


class History:
    """What clients ask of `*.api.azureml.ms`."""

    def __init__(self, settings: Settings, store: Store, storage: Storage) -> None:
        self._settings = settings
        self._store = store
        self._storage = storage

    def routes(self) -> list[Route]:
        run = r"(?:/experiments/[^/]+|/experimentids/[^/]+)?/runs/(?P<name>[^/]+)"
        table: list[tuple[str, str, str, Handler]] = [
            ("GET", "history", run, self._run),
            ("GET", "history", run + "/details", self._details),
            ("GET", "history", run + "/children", self._children),
            ("PATCH", "history", run, self._change),
            ("GET", "history", run + r"/serviceinstances/[^/]+", self._services),
            ("POST", "history", "/rundata", self._data),
            ("POST", "data", "/dataversion/batchGetResolvedUris", self._addresses),
            ("POST", "modelregistry", "/models/batchGetResolvedUris", self._addresses),
        ]
        return [
            route(self._settings, method, pattern, handler, rf"[a-z0-9]+\.api\.azureml\.ms/{service}/v1\.0")
            for method, service, pattern, handler in table
        ]

    def _details(self, request: Request) -> Response:
        job = self._job(request.parts["name"])
        container, folder = self._settings.containers["workspaceartifactstore"], f"ExperimentRun/dcid.{job['name']}"
        logs = {}
        signature = self._storage.signature(container)
        for path in self._storage.below(container, f"{folder}/user_logs"):
            logs[path[len(folder) + 1 :]] = f"{self._storage.url(container, path)}?{signature}"
        return Response({**self._of_run(job), "logFiles": logs, "warnings": [], "inputDatasets": []})

    def _run(self, request: Request) -> Response:
        return Response(self._of_run(self._job(request.parts["name"])))

    def _children(self, request: Request) -> Response:
        self._job(request.parts["name"])
        return Response({"value": []})

    def _change(self, request: Request) -> Response:
        given = request.json()
        self._job(request.parts["name"])

        def edit(job: Document) -> None:
            properties = job["properties"]
            if given.get("hidden") is not None:
                properties["isArchived"] = bool(given["hidden"])
            for key in ("displayName", "description"):
                if given.get(key) is not None:
                    properties[key] = given[key]
            for key in ("tags", "properties"):
                properties[key] = {**properties[key], **(given.get(key) or {})}

        return Response(self._of_run(self._store.change("jobs", request.parts["name"], edit)))

    def _services(self, request: Request) -> Response:
        self._job(request.parts["name"])
        return Response({"instances": {}})

    def _data(self, request: Request) -> Response:
        job = self._job(str(request.json().get("runId")))
        outputs = {
            name: {
                "assetId": f"azureml://locations/{LOCATION}/workspaces/{self._settings.workspace_guid}/data/"
                f"azureml_{job['name']}_output_{name}/versions/1",
                "type": _TYPES.get(value.get("jobOutputType", "uri_folder"), "UriFolder"),
            }
            for name, value in job["properties"]["outputs"].items()
            if name != "default"
        }
        return Response({"runMetadata": {**self._of_run(job), "outputs": outputs}, "runDefinition": {}})

    def _addresses(self, request: Request) -> Response:
        found: dict[str, Any] = {}
        for asset in request.json().get("values") or ():
            match = _ASSET.fullmatch(str(asset))
            job = self._store.get("jobs", match["run"]) if match else None
            output = job["properties"]["outputs"].get(match["out"]) if match and job else None
            if output is not None:
                kind = _TYPES.get(output.get("jobOutputType", "uri_folder"), "UriFolder")
                found[str(asset)] = {"uri": output["uri"], "path": output["uri"], "type": kind}
        return Response({"values": found})

    def _job(self, name: str) -> dict[str, Any]:
        job = self._store.get("jobs", name)
        if job is None:
            raise Refused(404, "UserError", f"Run {name} was not found.", body=_no_run(name))
        return job

    def _of_run(self, job: dict[str, Any]) -> dict[str, Any]:
        run, properties = job["run"], job["properties"]
        target = (properties.get("computeId") or "serverless").rpartition("/")[2]
        return {
            "runId": job["name"], "runUuid": job["name"], "experimentName": properties["experimentName"],
            "status": run["status"], "target": target, "runType": "azureml.scriptrun",
            "createdTimeUtc": run["created"], "startTimeUtc": run["started"], "endTimeUtc": run["ended"],
            "error": run["error"], "tags": properties["tags"], "hidden": properties["isArchived"],
            "properties": {**properties["properties"], "azureml.runsource": "azureml.scriptrun"},
            "displayName": properties["displayName"], "description": properties.get("description"),
        }  # fmt: skip


def _no_run(name: str) -> dict[str, Any]:
    """The error as run history shapes it."""
    return {
        "error": {
            "code": "UserError",
            "message": f"RunId {name} was not found.",
            "innerError": {"code": "NotFoundError"},
        },
        "environment": LOCATION,
        "location": LOCATION,
        "componentName": "RunHistory",
    }

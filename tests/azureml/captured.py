"""azure-ai-ml as it is, before a service that answers in memory: what it would send for a job, without a network.

The client, its pipeline and its requests are azure-ai-ml's own; only `requests`' adapter, the last step before the
socket, is another one. It answers the requests of a submission as Azure ML and its blob store would.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import requests
from urllib3.response import HTTPResponse

from jobsdk.compute.azureml.workspace import Workspace

WORKSPACE = Workspace("00000000-0000-0000-0000-000000000001", "group", "space")
#: What `name@latest` of an asset resolves to here.
LATEST = "7"
_BLOBS = "https://captured.blob.core.windows.net/container"
_TOKEN = (
    "eyJhbGciOiJub25lIn0."
    + base64.urlsafe_b64encode(json.dumps({"oid": "o", "tid": "t", "aud": "https://ml.azure.com"}).encode())
    .decode()
    .rstrip("=")
    + "."
)


class _Credential:
    def get_token(self, *scopes: str, **options: Any) -> Any:
        from azure.core.credentials import AccessToken

        return AccessToken(_TOKEN, 1 << 33)


class Service:
    """The answers of Azure ML and of its blob store; `puts` are the bodies that were sent, by their URLs' paths."""

    def __init__(self) -> None:
        self.puts: dict[str, Any] = {}
        self.requests: list[str] = []

    def answer(self, request: requests.PreparedRequest, **_: Any) -> requests.Response:
        url = urlsplit(request.url or "")
        self.requests.append(f"{request.method} {url.path}")
        if url.hostname and url.hostname.endswith(".blob.core.windows.net"):
            return self._blob(request)
        status, content = self._service(request, url.path, parse_qs(url.query))
        return _response(request, status, json.dumps(content).encode(), {"content-type": "application/json"})

    def _blob(self, request: requests.PreparedRequest) -> requests.Response:
        if request.method in ("HEAD", "GET"):
            return _response(request, 404, b"", {"x-ms-error-code": "BlobNotFound"})
        body = request.body
        if hasattr(body, "read"):
            body.read()
        status = 200 if "comp=metadata" in (request.url or "") else 201
        return _response(request, status, b"", {"etag": '"1"', "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"})

    def _service(self, request: requests.PreparedRequest, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        body = request.body.decode() if isinstance(request.body, bytes) else request.body or "null"
        name = path.rsplit("/", 1)[-1]
        if request.method == "PUT":
            self.puts[path] = content = json.loads(body)
            answer = {**json.loads(body), "id": path, "name": name}
            if "/jobs/" in path:
                properties = {**content["properties"], "status": "NotStarted"}
                properties["services"] = {"Studio": {"jobServiceType": "Studio", "endpoint": "https://ml.azure.com/x"}}
                properties.pop("distribution", None)
                answer["properties"] = properties
            return 201, answer
        if path.endswith("/startPendingUpload"):
            credential = {"credentialType": "SAS", "sasUri": f"{_BLOBS}?sig=s"}
            return 200, {"blobReferenceForConsumption": {"blobUri": _BLOBS, "credential": credential}}
        if path.endswith("/listSecrets"):
            return 200, {"secretsType": "AccountKey", "key": base64.b64encode(b"key").decode()}
        if re.search(r"/datastores/[^/]+$", path):
            credentials = {"credentialsType": "AccountKey"}
            names = {"accountName": "captured", "containerName": "container"}
            properties = {"datastoreType": "AzureBlob", **names, "credentials": credentials}
            return 200, {"name": name, "id": path, "properties": properties}
        if path.endswith("/versions") and "/codes/" not in path:
            item = {
                "id": f"{path}/{LATEST}",
                "name": LATEST,
                "properties": {"dataType": "uri_folder", "dataUri": "azureml://d", "flavors": {}},
            }
            return 200, {"value": [item]}
        if path.endswith("/versions"):
            return 200, {"value": []}
        if re.search(r"/(environments|data|models)/[^/]+$", path):
            return 200, {"id": path, "name": name, "properties": {"latestVersion": LATEST, "dataType": "uri_folder"}}
        if re.search(r"/(environments|data|models)/[^/]+/versions/[^/]+$", path):
            properties = {"dataType": "uri_folder", "dataUri": "azureml://d", "modelUri": "azureml://m", "flavors": {}}
            return 200, {"id": path, "name": name, "properties": properties}
        return 501, {"error": {"code": "NotImplemented", "message": f"{request.method} {path}"}}


def _response(
    request: requests.PreparedRequest, status: int, body: bytes, headers: dict[str, str]
) -> requests.Response:
    response = requests.Response()
    response.status_code = status
    response.headers.update({"content-length": str(len(body)), **headers})
    response.raw = HTTPResponse(io.BytesIO(body), headers, status, preload_content=False)
    response.request = request
    response.url = request.url or ""
    response.reason = str(status)
    return response


@contextmanager
def service() -> Iterator[Service]:
    """A service that all requests of this process go to."""
    answers = Service()
    with mock.patch.object(requests.adapters.HTTPAdapter, "send", lambda _, request, **k: answers.answer(request, **k)):
        yield answers


def client() -> Any:
    """azure-ai-ml's client of WORKSPACE, with a credential that is none."""
    from azure.ai.ml import MLClient

    return MLClient(_Credential(), *WORKSPACE, show_progress=False, enable_telemetry=False)


class Captured:
    """Asks azure-ai-ml for the bodies of jobs."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.client = client()

    def sent(self, job: Any, *, judged: bool = True) -> dict[str, Any]:
        """The body that azure-ai-ml sends for its own job object; raises what it raises.

        Its judgement of the object against the schema takes longer than all the rest; without `judged` it is left out.
        """
        self.service.puts.clear()
        self.service.requests.clear()
        self.client.jobs.create_or_update(job, skip_validation=not judged)
        (body,) = (body for path, body in self.service.puts.items() if "/jobs/" in path)
        return body

"""The connection to a workspace: logins, requests to the service, to its run history and to its storage."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jobsdk.compute.azureml.failures import AzureError, Failure, quieten, scrubbed, told
from jobsdk.compute.azureml.workspace import Workspace

Json = dict[str, Any]

#: The variable that names the cloud, and the cloud without it; as for azure-ai-ml.
_CLOUD, _USUAL = "AZUREML_CURRENT_CLOUD", "AzureCloud"
#: Azure's clouds, by the names that azure-ai-ml knows them by: (management, the storage's suffix).
_CLOUDS = {
    "AzureCloud": ("https://management.azure.com", "core.windows.net"),
    "AzureChinaCloud": ("https://management.chinacloudapi.cn", "core.chinacloudapi.cn"),
    "AzureUSGovernment": ("https://management.usgovcloudapi.net", "core.usgovcloudapi.net"),
}
OLDER_API, DATASTORES_API = "2024-01-01-preview", "2024-10-01-preview"
_FRESH_S = 40 * 60.0  # seconds that a key or a signature of the storage is used; it is asked to be valid for an hour
_CONNECT, _READ = 15, 60  # seconds


class Blob(NamedTuple):
    name: str
    size: int  # bytes
    is_folder: bool  # a mark that stands for an empty folder
    modified: float  # when it was last written, in seconds since 1970


class Connection:
    """What is asked of one workspace with one login. Safe with threads. Its methods raise AzureError."""

    def __init__(self, workspace: Workspace, credential: Any) -> None:
        self.workspace = workspace
        self.credential = credential
        cloud = os.environ.get(_CLOUD, _USUAL)
        self._management, self._suffix = _CLOUDS.get(cloud, _CLOUDS[_USUAL])
        self._clients: dict[str, Any] = {}
        self._containers: dict[str, tuple[float, Any]] = {}
        self._lock = threading.RLock()
        self._api: str | None = None

    def __repr__(self) -> str:
        return f"Connection({self.workspace.workspace_name!r})"

    # -- the service -------------------------------------------------------------------------------------------------

    def get(self, path: str, *, api: str = OLDER_API, **query: str) -> Json:
        """What is at `path` below the workspace."""
        return self._send("GET", f"{self.workspace.id}{path}", {"api-version": api, **query})

    def post(self, path: str, body: Any = None, *, api: str = OLDER_API) -> Json:
        return self._send("POST", f"{self.workspace.id}{path}", {"api-version": api}, body)

    def job(self, name: str) -> Json:
        """A job as the service has it."""
        return self.get(f"/jobs/{name}")

    def pages(self, path: str, *, api: str = OLDER_API, **query: str) -> Iterator[Json]:
        """All of a list, page by page, as it is used."""
        found = self.get(path, api=api, **query)
        while True:
            yield from found.get("value") or ()
            following = found.get("nextLink")
            if not following:
                return
            found = self._send("GET", following, {})

    # -- the history of runs -----------------------------------------------------------------------------------------

    def details(self, name: str) -> Json:
        """How a run is now: status, times, error."""
        return self._history("GET", f"runs/{name}/details")

    def change_run(self, experiment: str, name: str, changes: Json) -> None:
        """Change what of a run can be changed; tags and properties are joined to those that it has."""
        self._history("PATCH", f"experiments/{experiment}/runs/{name}", changes)

    def _history(self, method: str, path: str, body: Any = None) -> Json:
        # Run history has the scope's own spelling in its routes.
        where = f"{self._data_plane()}/history/v1.0{self.workspace.id}/{path}"
        return self._send(method, where, {}, body)

    def _data_plane(self) -> str:
        """Where the workspace's region answers. It is asked once: it stays."""
        with self._lock:
            if self._api is None:
                from jobsdk.compute.azureml import remembered

                known = remembered.Remembered(self.workspace)
                self._api = known.get("api")
                if self._api is None:
                    found = self.get("", api=DATASTORES_API)
                    url = (found.get("properties") or {}).get("discoveryUrl")
                    if not url:
                        raise AzureError(Failure("service", "the workspace does not say where its runs are"))
                    self._api = str(self._send("GET", url, {}, has_login=False)["api"]).rstrip("/")
                    known.put({"api": self._api})
            return self._api

    # -- its storage -------------------------------------------------------------------------------------------------

    def list_blobs(self, datastore: str, prefix: str) -> list[Blob]:
        """The blobs of a datastore whose names begin so."""

        def read(container: Any) -> list[Blob]:
            found = container.list_blobs(name_starts_with=prefix, include=["metadata"])
            return [
                Blob(
                    one.name,
                    int(one.size or 0),
                    (one.metadata or {}).get("hdi_isfolder") == "true",
                    one.last_modified.timestamp() if one.last_modified else 0.0,
                )
                for one in found
            ]

        found: list[Blob] = self._with_container(datastore, read)
        return found

    def read_blob(self, datastore: str, name: str, begin: int, size: int) -> bytes:
        """At most `size` bytes of a blob, from byte `begin`."""

        def read(container: Any) -> bytes:
            return bytes(container.download_blob(name, offset=begin, length=size, max_concurrency=1).readall())

        data: bytes = self._with_container(datastore, read)
        return data

    def fetch_blob(self, datastore: str, name: str, path: str) -> None:
        """Write a blob to the file `path`, piece by piece."""

        def read(container: Any) -> None:
            with open(path, "wb") as file:
                container.download_blob(name, max_concurrency=4).readinto(file)

        self._with_container(datastore, read)

    def _with_container(self, datastore: str, use: Any) -> Any:
        """Use a datastore's container; once more with a new signature where the one that there was has expired."""
        from jobsdk.compute.azureml.failures import status_of

        for is_last in (False, True):
            container = self._container(datastore)
            try:
                with told(f"datastore {datastore}"):
                    return use(container)
            except AzureError as error:
                if is_last or status_of(error.__cause__ or error) not in (401, 403):
                    raise
                with self._lock:
                    self._containers.pop(datastore, None)
        raise AssertionError

    def _container(self, datastore: str) -> Any:
        with self._lock:
            since, container = self._containers.get(datastore, (0.0, None))
            if container is None or time.monotonic() - since > _FRESH_S:
                container = self._open_container(datastore)
                self._containers[datastore] = time.monotonic(), container
            return container

    def _open_container(self, datastore: str) -> Any:
        place = f"/datastores/{datastore}"
        facts = self.get(place, api=DATASTORES_API)["properties"]
        kind = facts.get("datastoreType")
        container = facts.get("containerName") or facts.get("filesystem")
        if kind not in ("AzureBlob", "AzureDataLakeGen2") or not facts.get("accountName") or not container:
            what = f"datastore {datastore} is of the type {kind}, which is not read from here"
            raise AzureError(Failure("refused", what, "keep outputs in a blob datastore"))
        credential = self.credential
        if (facts.get("credentials") or {}).get("credentialsType") not in ("None", None):
            with contextlib.suppress(AzureError):  # without the right to, by the login itself, as azure-ai-ml does
                secrets = self.post(f"{place}/listSecrets", {"expirableSecret": True, "expireAfterHours": 1},
                                    api=DATASTORES_API)  # fmt: skip
                credential = secrets.get("sasToken") or secrets.get("key") or credential
        with told(f"datastore {datastore}"):
            from azure.storage.blob import ContainerClient, ExponentialRetry

            url = f"https://{facts['accountName']}.blob.{facts.get('endpoint') or self._suffix}"
            retry = ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=4)
            return ContainerClient(url, container, credential=credential, retry_policy=retry,
                                   connection_timeout=_CONNECT, read_timeout=_READ)  # fmt: skip

    # -- requests ----------------------------------------------------------------------------------------------------

    def _send(
        self, method: str, url: str, query: Mapping[str, str], body: Any = None, *, has_login: bool = True
    ) -> Json:
        with told(f"workspace {self.workspace.workspace_name}"):
            from azure.core.rest import HttpRequest

            if url.startswith("/"):
                url = self._management + url
            request = HttpRequest(method, url, params=dict(query) or None, json=body)
            response = self._client(has_login).send_request(request)
            response.raise_for_status()
            content = response.json() if response.content else {}
            return content if isinstance(content, dict) else {"value": content}

    def _client(self, has_login: bool) -> Any:
        """A pipeline of azure-core: it tries again what may be tried again, and waits as long as the service asks."""
        with self._lock:
            key = "login" if has_login else "open"
            if key not in self._clients:
                from azure.core import PipelineClient
                from azure.core.pipeline import policies

                chosen: list[Any] = [
                    policies.UserAgentPolicy(sdk_moniker="jobsdk"),
                    policies.RetryPolicy(retry_total=4, retry_backoff_factor=0.5, retry_backoff_max=20),
                ]
                if has_login:
                    scope = f"{self._management}/.default"
                    chosen.append(policies.BearerTokenCredentialPolicy(self.credential, scope))
                self._clients[key] = PipelineClient(
                    self._management, policies=chosen, connection_timeout=_CONNECT, read_timeout=_READ
                )
            return self._clients[key]

    # -- azure-ai-ml -------------------------------------------------------------------------------------------------

    def ml_client(self) -> Any:
        """azure-ai-ml's own client, for what only it does: uploads, environments, the submission.

        With progress bars, for whose output the caller cares: without them azure-ai-ml 1.35.2 waits forever for the
        upload of a folder of which a file has failed.
        """
        with self._lock:
            if "ml" not in self._clients:
                with told(f"workspace {self.workspace.workspace_name}"):
                    from azure.ai.ml import MLClient

                    chosen = os.environ.get(_CLOUD)
                    self._clients["ml"] = MLClient(
                        self.credential, *self.workspace, show_progress=True, enable_telemetry=False
                    )
                    if chosen is None and os.environ.get(_CLOUD) == _USUAL:
                        del os.environ[_CLOUD]  # it sets it for itself, and ranks started from here would find it
            return self._clients["ml"]


_open: dict[tuple[Workspace, int, int], Connection] = {}
_given: dict[Workspace, Any] = {}
_default: dict[int, Any] = {}
_lock = threading.Lock()


def use(workspace: Workspace, credential: Any) -> None:
    """Let this process ask the workspace with that credential. Raises AzureError for what is none."""
    if not callable(getattr(credential, "get_token", None)):
        what = f"a credential has a method get_token; {type(credential).__name__} has none"
        raise AzureError(Failure("login", what, "give one of azure-identity's, such as DefaultAzureCredential()"))
    _given[workspace] = credential


def connect(workspace: Workspace) -> Connection:
    """The connection of this process to a workspace; without a credential of `use` by DefaultAzureCredential."""
    with _lock:
        credential = _given.get(workspace)
        if credential is None:
            credential = _default_credential()
        key = workspace, id(credential), os.getpid()
        if key not in _open:
            _open[key] = Connection(workspace, credential)
        return _open[key]


def _default_credential() -> Any:
    """One for the process, so that a token is fetched once; another one where the variables for it have changed."""
    variables = sorted(
        (name, value) for name, value in os.environ.items() if name.startswith(("AZURE_", "HTTPS_PROXY"))
    )
    key = hash((os.getpid(), tuple(variables)))
    if key not in _default:
        with told("login"):
            from azure.identity import DefaultAzureCredential

            quieten()
            try:
                _default[key] = DefaultAzureCredential()
            except ValueError as error:  # an empty variable, such as a CI's secret that is not set
                fix = "look at AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
                raise AzureError(Failure("login", f"the variables AZURE_* are no login: {scrubbed(str(error))}", fix)
                                 ) from None  # fmt: skip
    return _default[key]

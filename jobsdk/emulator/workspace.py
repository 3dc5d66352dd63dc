"""The workspace and what it holds beside jobs: datastores, computes, codes, environments, data."""

from __future__ import annotations

import datetime
import hashlib
import re
from typing import Any

from jobsdk.emulator.faults import Faults
from jobsdk.emulator.server import Handler, Refused, Request, Response, Route
from jobsdk.emulator.settings import LOCATION, Settings
from jobsdk.emulator.storage import Storage
from jobsdk.emulator.store import Store

MANAGEMENT = r"management\.azure\.com"
_NAMED = (
    r"/subscriptions/(?P<subscription>[^/]+)/resource[Gg]roups/(?P<group>[^/]+)"
    r"/providers/Microsoft\.MachineLearningServices/workspaces/(?P<workspace>[^/]+)"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
#: Assets with versions: kind, as it stands in ids -> the type that ARM gives it.
_VERSIONED = ("codes", "environments", "data")
#: What the names of Azure ML's own environments begin with.
CURATED = "AzureML-"
#: Machines that Azure ML knows are of no interest here: every name is a cluster.
_SIZE = "STANDARD_EMULATED"
_SCALE = {"minNodeCount": 0, "maxNodeCount": 64, "nodeIdleTimeBeforeScaleDown": "PT120S"}


def _in_workspace(settings: Settings, handler: Handler) -> Handler:
    """The handler, for requests that name this workspace; others are refused as ARM does it."""

    def checked(request: Request) -> Response:
        parts = request.parts
        subscription, group, name = parts["subscription"], parts["group"], parts["workspace"]
        if subscription.lower() != settings.subscription_id.lower():
            raise Refused(404, "SubscriptionNotFound", f"The subscription '{subscription}' could not be found.")
        if group.lower() != settings.resource_group.lower():
            raise Refused(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")
        if name.lower() != settings.workspace_name.lower():
            raise Refused(
                404,
                "ResourceNotFound",
                f"The Resource 'Microsoft.MachineLearningServices/workspaces/{name}' under resource group '{group}' "
                "was not found. For more details please go to https://aka.ms/ARMResourceNotFoundFix",
            )
        return handler(request)

    return checked


def route(settings: Settings, method: str, pattern: str, handler: Handler, host: str = MANAGEMENT) -> Route:
    """One of the workspace's: `pattern` is what comes after its name."""
    return Route(method, re.compile(host + _NAMED + pattern), _in_workspace(settings, handler))


def system_data(created: str | None = None) -> dict[str, str]:
    """Who made a resource, and when."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")
    return {
        "createdAt": created or now, "createdBy": "emulator", "createdByType": "Application", "lastModifiedAt": now,
    }  # fmt: skip


class Workspace:
    """The resources that a submission of a job needs, under their ARM addresses."""

    def __init__(self, settings: Settings, store: Store, storage: Storage, faults: Faults) -> None:
        self._settings = settings
        self._store = store
        self._storage = storage
        self._faults = faults

    def routes(self) -> list[Route]:
        versioned = rf"/(?P<kind>{'|'.join(_VERSIONED)})"
        one = versioned + r"/(?P<name>[^/]+)/versions/(?P<version>[^/]+)"
        table: list[tuple[str, str, Handler]] = [
            ("GET", "", self._workspace),
            ("GET", r"/datastores", self._datastores),
            ("GET", r"/datastores/(?P<name>[^/]+)", self._datastore),
            ("POST", r"/datastores/(?P<name>[^/]+)/listSecrets", self._secrets),
            ("GET", r"/computes", self._computes),
            ("GET", r"/computes/(?P<name>[^/]+)", self._compute),
            ("GET", versioned, self._containers),
            ("GET", versioned + r"/(?P<name>[^/]+)", self._container),
            ("GET", versioned + r"/(?P<name>[^/]+)/versions", self._versions),
            ("GET", one, self._version),
            ("PUT", one, self._put_version),
            ("POST", one + r"/startPendingUpload", self._start_upload),
        ]
        discovery = Route("GET", re.compile(r"[a-z0-9]+\.api\.azureml\.ms/discovery.*"), self._discovery, True)
        return [
            discovery,
            *(route(self._settings, *one) for one in table),
        ]

    # -- the workspace -------------------------------------------------------------------------------------------

    def _workspace(self, request: Request) -> Response:
        settings = self._settings
        return Response(
            {
                "id": settings.workspace.id,
                "name": settings.workspace_name,
                "type": "Microsoft.MachineLearningServices/workspaces",
                "location": LOCATION,
                "kind": "Default",
                "sku": {"name": "Basic", "tier": "Basic"},
                "identity": {"type": "SystemAssigned", "tenantId": settings.tenant_id},
                "tags": {},
                "properties": {
                    "friendlyName": settings.workspace_name,
                    "workspaceId": settings.workspace_guid,
                    "provisioningState": "Succeeded",
                    "discoveryUrl": f"https://{settings.api_host}/discovery",
                    "mlFlowTrackingUri": f"azureml://{settings.api_host}/mlflow/v1.0{settings.workspace.id}",
                    "storageAccount": f"/subscriptions/{settings.subscription_id}/resourceGroups/"
                    f"{settings.resource_group}/providers/Microsoft.Storage/storageAccounts/{settings.account}",
                },
            }
        )

    def _discovery(self, request: Request) -> Response:
        names = ("api", "history", "experimentation", "modelmanagement", "catalog", "pipelines")
        return Response(dict.fromkeys(names, f"https://{self._settings.api_host}"))

    def _datastores(self, request: Request) -> Response:
        names = self._settings.containers if request.query.get("isDefault") != "true" else ["workspaceblobstore"]
        return Response({"value": [self._of_datastore(name) for name in names]})

    def _datastore(self, request: Request) -> Response:
        return Response(self._of_datastore(request.parts["name"]))

    def _of_datastore(self, name: str) -> dict[str, Any]:
        container = self._settings.containers.get(name)
        if container is None:
            raise self._none("Datastore", name)
        return {
            **self._addressed("datastores", name),
            "properties": {
                "datastoreType": "AzureBlob",
                "accountName": self._settings.account,
                "containerName": container,
                "endpoint": "core.windows.net",
                "protocol": "https",
                "serviceDataAccessAuthIdentity": "None",
                "credentials": {"credentialsType": "AccountKey"},
                "isDefault": name == "workspaceblobstore",
                "description": None,
                "tags": {},
                "properties": {},
            },
        }

    def _secrets(self, request: Request) -> Response:
        self._of_datastore(request.parts["name"])
        return Response({"secretsType": "AccountKey", "key": self._settings.account_key})

    def _computes(self, request: Request) -> Response:
        return Response({"value": []})  # there is a cluster of every name, and none that would be missed

    def _compute(self, request: Request) -> Response:
        name = request.parts["name"]
        return Response(
            {
                **self._addressed("computes", name),
                "location": LOCATION,
                "properties": {
                    "computeType": "AmlCompute",
                    "computeLocation": LOCATION,
                    "provisioningState": "Succeeded",
                    "description": "A cluster of jobsdk azure-emulator: its nodes are processes of this machine.",
                    "properties": {
                        "vmSize": _SIZE,
                        "vmPriority": "Dedicated",
                        "scaleSettings": _SCALE,
                        "osType": "Linux",
                        "allocationState": "Steady",
                    },
                },
            }
        )

    # -- assets with versions ------------------------------------------------------------------------------------

    def _containers(self, request: Request) -> Response:
        kind = request.parts["kind"]
        names = dict.fromkeys(document["name"] for document in self._store.list(kind))
        return Response({"value": [self._of_container(kind, name) for name in names]})

    def _container(self, request: Request) -> Response:
        return Response(self._of_container(request.parts["kind"], request.parts["name"]))

    def _of_container(self, kind: str, name: str) -> dict[str, Any]:
        versions = self._known(kind, name)
        if not versions:
            raise self._none(kind, name)
        numbers = [int(one["version"]) for one in versions if one["version"].isdigit()]
        return {
            **self._addressed(kind, name),
            "systemData": system_data(),
            "properties": {
                "latestVersion": versions[0]["version"],
                "nextVersion": str(max(numbers, default=0) + 1),
                "isArchived": False,
                "tags": {},
                "properties": {},
                **({"dataType": versions[0]["properties"].get("dataType", "uri_folder")} if kind == "data" else {}),
            },
        }

    def _versions(self, request: Request) -> Response:
        kind, name, query = request.parts["kind"], request.parts["name"], request.query
        if kind == "codes" and "hash" in query:  # the content counts, whatever name it has
            found = [
                one
                for one in self._store.list(kind)
                if (one["properties"].get("properties") or {}).get("hash_sha256") == query["hash"]
            ]
        else:
            found = self._known(kind, name)
            if "createdtime asc" in (query.get("$orderBy") or query.get("orderBy") or "").lower():
                found.reverse()
        top = query.get("$top", "")
        found = found[: int(top)] if top.isdigit() else found
        return Response({"value": [self._of_version(kind, one) for one in found]})

    def _version(self, request: Request) -> Response:
        kind, name, version = (request.parts[part] for part in ("kind", "name", "version"))
        found = next((one for one in self._known(kind, name, version) if one["version"] == version), None)
        if found is None:
            raise self._none(kind, f"{name}:{version}")
        return Response(self._of_version(kind, found))

    def _known(self, kind: str, name: str, version: str = "1") -> list[dict[str, Any]]:
        """The versions of an asset. Every curated environment is there, in the version that is asked for."""
        found = self._store.list(kind, name)
        if found or kind != "environments" or not name.startswith(CURATED):
            return found
        properties = {"image": f"mcr.microsoft.com/azureml/curated/{name}:{version}", "description": "Curated."}
        return [{"name": name, "version": version, "properties": properties, "systemData": system_data()}]

    def _put_version(self, request: Request) -> Response:
        kind, name, version = (request.parts[part] for part in ("kind", "name", "version"))
        given = request.json().get("properties")
        if not isinstance(given, dict):
            raise Refused(400, "UserError", "The request has no properties.")
        for word in (name, version):
            if not _NAME.fullmatch(word):
                raise Refused(400, "UserError", f"{word!r} is no valid name or version of an asset.")
        earlier = self._store.get(kind, name, version)
        if kind != "environments" and earlier is not None:
            uri = "codeUri" if kind == "codes" else "dataUri"
            if earlier["properties"].get(uri) != given.get(uri):
                raise Refused(
                    409 if kind == "codes" else 400,
                    "UserError",
                    f"A {'code' if kind == 'codes' else 'data'} version with this name and version already exists: "
                    f"{name}:{version}. Its {uri} cannot be changed; use another version.",
                )
        made = system_data(earlier["systemData"]["createdAt"] if earlier else None)
        document = {"name": name, "version": version, "properties": given, "systemData": made}
        is_new = self._store.put(kind, name, document, version)
        return Response(self._of_version(kind, document), 201 if is_new else 200)

    def _of_version(self, kind: str, document: dict[str, Any]) -> dict[str, Any]:
        name, version = document["name"], document["version"]
        return {
            "id": f"{self._settings.workspace.id}/{kind}/{name}/versions/{version}",
            "name": version,
            "type": f"Microsoft.MachineLearningServices/workspaces/{kind}/versions",
            "systemData": document["systemData"],
            "properties": {
                "isArchived": False, "isAnonymous": False, "tags": {}, "properties": {},
                **({"environmentType": "UserCreated", "osType": "Linux"} if kind == "environments" else {}),
                **{key: value for key, value in document["properties"].items() if value is not None},
                "provisioningState": "Succeeded",
            },
        }  # fmt: skip

    def _start_upload(self, request: Request) -> Response:
        kind, name, version = (request.parts[part] for part in ("kind", "name", "version"))
        container = f"{kind}-{hashlib.sha256(f'{name}:{version}'.encode()).hexdigest()[:40]}"
        self._storage.make(container)
        has_run_out = self._faults.hit("expired_sas", "POST", request.host, request.path) is not None
        signature = self._storage.signature(container, has_run_out=has_run_out)
        address = self._storage.url(container)
        return Response(
            {
                "pendingUploadId": container,
                "pendingUploadType": "TemporaryBlobReference",
                "blobReferenceForConsumption": {
                    "blobUri": address,
                    "storageAccountArmId": "",
                    "credential": {"credentialType": "SAS", "sasUri": f"{address}?{signature}"},
                },
            }
        )

    # -- inside --------------------------------------------------------------------------------------------------

    def _addressed(self, kind: str, name: str) -> dict[str, str]:
        return {
            "id": f"{self._settings.workspace.id}/{kind}/{name}",
            "name": name,
            "type": f"Microsoft.MachineLearningServices/workspaces/{kind}",
        }

    def _none(self, kind: str, name: str) -> Refused:
        return Refused(404, "UserError", f"Not found: {kind} {name} in workspace {self._settings.workspace_name}.")

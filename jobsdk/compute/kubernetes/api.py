"""The Kubernetes API as far as jobs need it, over lightkube's configuration, credentials and connection.

Objects go and come as plain JSON, so that what was compiled is what is sent: the typed models of a client library leave
out what they do not know.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsdk.errors import ComputeError
from jobsdk.installation import install_command

if TYPE_CHECKING:
    import httpx2

Object = dict[str, Any]

#: kind -> (path of its API group and version, plural)
KINDS = {
    "ConfigMap": ("api/v1", "configmaps"),
    "Event": ("api/v1", "events"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "Job": ("apis/batch/v1", "jobs"),
    "JobSet": ("apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "Pod": ("api/v1", "pods"),
    "Secret": ("api/v1", "secrets"),
    "Service": ("api/v1", "services"),
    "Workload": ("apis/kueue.x-k8s.io/v1beta2", "workloads"),
}
_TIMEOUT_S = 10.0  # seconds
_CLIENTS = 16  # that share the connections of what is followed
_RETRIES = 3  # of a request that a busy server puts off
_RETRY_S = 60.0  # seconds that a server may ask to wait at most
_PAGE = 500  # objects in one answer
_AUTHORIZATION = "authorization.k8s.io/v1"
_STRICT = {"fieldValidation": "Strict"}  # unless asked so, the server drops fields that it does not know
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # in a pod


class Refused(ComputeError):
    """The server answered with an error: its HTTP status (`code`), its `reason` and its own `words`.

    `retry_after` is in seconds.
    """

    def __init__(self, message: str, code: int, reason: str = "", words: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.words = words
        self.retry_after = retry_after


class KubeTarget(NamedTuple):
    """Where objects live. `context` is None within a cluster."""

    context: str | None
    namespace: str


class Api:
    """A connection to one namespace. Every method raises ComputeError, in plain words; `Refused` is one."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        try:
            import httpx2
            import msgspec
            import yaml
            from lightkube.config.client_adapter import Client, ConnectionParams
            from lightkube.core.exceptions import ConfigError
        except ImportError as error:
            raise ComputeError(f"{error}. Fix: {install_command('kubernetes')}") from None
        self.errors: tuple[type[Exception], ...] = httpx2.HTTPError, ConfigError  # the second: of what logs in
        try:
            config = _configuration(context)
            self._client: httpx2.Client = Client(config, ConnectionParams(timeout=httpx2.Timeout(_TIMEOUT_S)))
            self._config = config
        except (
            ConfigError,
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,  # an empty file
            msgspec.ValidationError,
            yaml.YAMLError,
        ) as error:
            words = " ".join(str(error).split())
            fix = "set KUBECONFIG, or the compute's context; in a pod, mount its ServiceAccount's token"
            raise ComputeError(f"there is no usable Kubernetes configuration: {words}. Fix: {fix}") from None
        self.server = str(config.cluster.server)
        self.place = KubeTarget(None if config.fname is None else config.context_name, namespace or config.namespace)

    def get(self, kind: str, name: str) -> Object:
        return self._json("GET", self.path(kind, name))

    def create(self, one: Object) -> Object:
        base, kind = _base(one["apiVersion"]), one["kind"]
        path = f"{base}/namespaces/{self.place.namespace}/{self.plural(one['apiVersion'], kind)}"
        return self._json("POST", path, one, parameters=_STRICT)

    def plural(self, version: str, kind: str) -> str:
        """What the API calls objects of a kind: for a kind that jobsdk does not know, the server is asked."""
        if KINDS.get(kind, ("", ""))[0] == _base(version):
            return KINDS[kind][1]
        with contextlib.suppress(Gone):
            for one in self._json("GET", _base(version)).get("resources", ()):
                if one["kind"] == kind and one["namespaced"] and "/" not in one["name"]:
                    return str(one["name"])
        fix = "Fix: have an administrator install it, or leave out the setting that creates it"
        raise ComputeError(f"the cluster has no objects of kind {kind} ({version}) in namespaces. {fix}")

    def dry_run(self, one: Object) -> None:
        """Have an object judged as if it were created: its schema, quotas, policies, webhooks. Raises Refused."""
        self._json("POST", self.path(one["kind"]), one, parameters={**_STRICT, "dryRun": "All"})

    def merge(self, kind: str, name: str, patch: Object) -> Object:
        """Change an object by a JSON merge patch."""
        return self._json("PATCH", self.path(kind, name), patch, "application/merge-patch+json", _STRICT)

    def merge_status(self, kind: str, name: str, status: Object) -> None:
        """Change the status of an object by a JSON merge patch."""
        self._json("PATCH", self.path(kind, name) + "/status", {"status": status}, "application/merge-patch+json")

    def delete(self, kind: str, name: str) -> None:
        """Delete an object and, before it is gone, all that it owns. One that is not there is fine."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        with contextlib.suppress(Gone):
            self._json("DELETE", self.path(kind, name), options)

    def list(self, kind: str, **selectors: str) -> list[Object]:
        """All objects of a kind; selectors are `labelSelector` and `fieldSelector`."""
        return self.listed(kind, **selectors)[0]

    def listed(self, kind: str, **selectors: str) -> tuple[builtins.list[Object], str | None]:
        """The same, and the version from which a watch reports what changes."""
        found: builtins.list[Object] = []
        parameters: dict[str, str] = {**selectors, "limit": str(_PAGE)}
        while True:
            try:
                page = self._json("GET", self.path(kind), parameters=parameters)
            except Refused as error:
                if error.code != 410 or "continue" not in parameters:
                    raise
                found, parameters = [], {**selectors, "limit": str(_PAGE)}  # the list has grown too old: from the start
                continue
            found += page.get("items", [])
            more = page.get("metadata", {}).get("continue")
            if not more:
                return found, page.get("metadata", {}).get("resourceVersion")
            parameters["continue"] = more

    def may(self, verb: str, resource: str, group: str = "", subresource: str = "", *, account: str = "") -> bool:
        """Whether this user may do that in the namespace, or else one of its ServiceAccounts.

        Raises Refused if this user may not ask that about the account.
        """
        namespace = self.place.namespace
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
        if subresource:
            attributes["subresource"] = subresource
        review: Object = {"apiVersion": _AUTHORIZATION, "kind": "SelfSubjectAccessReview"}
        spec: Object = {"resourceAttributes": attributes}
        path = f"apis/{_AUTHORIZATION}/selfsubjectaccessreviews"
        if account:
            review |= {"kind": "LocalSubjectAccessReview", "metadata": {"namespace": namespace}}
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
            spec |= {"user": account_user(namespace, account), "groups": groups}
            path = f"apis/{_AUTHORIZATION}/namespaces/{namespace}/localsubjectaccessreviews"
        answer = self._json("POST", path, {**review, "spec": spec})
        return bool(answer.get("status", {}).get("allowed"))

    def has_namespace(self) -> bool:
        """Whether objects can be created in the namespace, as far as that depends on the namespace alone."""
        probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "jobsdk-check"}}
        try:  # rights and lists are the same in one that is not there
            self._json("POST", self.path("ConfigMap"), probe, parameters={"dryRun": "All"})
        except Gone:
            return False
        except Refused as error:
            if error.code not in (403, 409):
                raise
        return True

    def version(self) -> str:
        return str(self._json("GET", "version").get("gitVersion", "?"))

    def log(self, pod: str, container: str, since: str | None) -> Iterator[bytes]:
        """The lines of a container's log from the second `since` on, each with its time and without its end.

        A last line that is not whole is left out.
        """
        parameters = {"container": container, "timestamps": "true", **({"sinceTime": since} if since else {})}
        rest = b""
        try:
            with self._stream(self.path("Pod", pod) + "/log", parameters) as answer:
                for data in answer.iter_bytes():
                    *lines, rest = (rest + data).split(b"\n")
                    yield from lines
        except self.errors as error:
            raise self.unreachable(error) from None

    def asynchronous(self) -> builtins.list[httpx2.AsyncClient]:
        """Clients for many answers at the same time that may go on for hours."""
        import httpx2
        from lightkube.config.client_adapter import ConnectionParams

        timeout = httpx2.Timeout(_TIMEOUT_S, read=None, pool=None)
        parameters = ConnectionParams(timeout=timeout).httpx_params(self._config)
        # For each request a client looks at all its connections: one with 1,000 would spend seconds on that.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=1)
        return [httpx2.AsyncClient(**parameters, limits=limits) for _ in range(_CLIENTS)]

    def path(self, kind: str, name: str = "") -> str:
        base, plural = KINDS[kind]
        return f"{base}/namespaces/{self.place.namespace}/{plural}" + (f"/{name}" if name else "")

    # -- inside ----------------------------------------------------------------------------------------------------

    def _json(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        form: str = "application/json",
        parameters: Mapping[str, str] | None = None,
    ) -> Object:
        import json

        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": form} if body else None
        for is_last in (*[False] * _RETRIES, True):
            try:
                answer = self._client.request(method, path, params=parameters, content=content, headers=headers)
                self.judge(answer.status_code, answer.content, f"{method} {path}", answer.headers)
                break
            except Refused as error:
                if is_last or not 0 < error.retry_after <= _TIMEOUT_S:
                    raise
                time.sleep(error.retry_after)  # a busy server: it has not looked at the request
            except self.errors as error:
                raise self.unreachable(error) from None
        try:
            found = json.loads(answer.content or b"{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ComputeError(f"{self.server} answers, but is no Kubernetes API server")
        return found

    @contextlib.contextmanager
    def _stream(self, path: str, parameters: Mapping[str, str]) -> Iterator[httpx2.Response]:
        with self._client.stream("GET", path, params=parameters) as answer:
            if answer.status_code >= 400:
                self.judge(answer.status_code, answer.read(), f"GET {path}")
            yield answer

    def unreachable(self, error: Exception) -> ComputeError:
        where = f"the Kubernetes API at {self.server}"
        fix = "see that `kubectl get pods` works here: the network, a VPN, the kubeconfig's context"
        return ComputeError(f"{where} cannot be reached: {str(error) or type(error).__name__}. Fix: {fix}")

    def judge(self, code: int, content: bytes, what: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raise for an answer that is an error."""
        import json

        if code < 400:
            return
        try:
            status = json.loads(content)
            words, reason = str(status.get("message") or what), str(status.get("reason") or "")
        except (ValueError, AttributeError):
            words, reason = f"{what}: {content[:200].decode('utf-8', 'replace').strip()}", ""
        fix = {
            400: "see the compute's settings, its patches first",
            401: "log in again: the credentials of the kubeconfig's context are not accepted",
            403: "have an administrator grant this role (docs/kubernetes.md lists the rights)",
            409: "give the job another name",
            422: "see the compute's settings, its patches first",
        }.get(code, "")
        fix = f". Fix: {fix}" if fix else ""
        kind = Gone if code == 404 else Refused
        after = headers.get("Retry-After", "")
        retry_after = min(_RETRY_S, float(after)) if after.isdigit() else 0.0
        raise kind(f"the Kubernetes API answers {code}: {words}{fix}", code, reason, words, retry_after)


class Gone(Refused):
    """There is no such object."""


def account_user(namespace: str, account: str) -> str:
    """The name of a ServiceAccount as a user."""
    return f"system:serviceaccount:{namespace}:{account}"


def _base(version: str) -> str:
    """The path of an API group and version."""
    return f"apis/{version}" if "/" in version else f"api/{version}"


def connect(context: str | None, namespace: str | None) -> Api:
    """The connection to a namespace. It is kept, since making one, and logging in, takes time. Raises ComputeError."""
    file = _file()
    return _connect(context, namespace, file, os.stat(file).st_mtime_ns if os.path.exists(file) else 0)


@functools.lru_cache(maxsize=8)
def _connect(context: str | None, namespace: str | None, file: str, changed: int) -> Api:
    return Api(context, namespace)


def _file() -> str:
    """The kubeconfig."""
    return os.path.expanduser(os.environ.get("KUBECONFIG") or "~/.kube/config")


def _configuration(context: str | None) -> Any:
    """lightkube's configuration: of the context, of the kubeconfig's current one, or of the pod that this runs in."""
    from lightkube.config.kubeconfig import KubeConfig

    file = _file()
    if os.pathsep in file and not os.path.exists(file):
        raise ValueError("KUBECONFIG names several files, of which `kubectl config view --flatten` makes one")
    if context is None and not os.path.exists(file) and (_SERVICE_ACCOUNT / "token").exists():
        return KubeConfig.from_service_account(_SERVICE_ACCOUNT).get()  # reads the token again once it has expired
    config = KubeConfig.from_file(file).get(context)
    assert config is not None
    plugin = config.user.exec if config.user else None
    if plugin and plugin.apiVersion == "client.authentication.k8s.io/v1":
        plugin.apiVersion = "client.authentication.k8s.io/v1beta1"  # lightkube knows that name; what comes is the same
    return config

"""A small Kubernetes API server on loopback: real requests and answers, and no cluster but what tests put behind it.

Objects are checked as the server's field validation `Strict` does, by the published schemas. Faults come on demand.
"""

from __future__ import annotations

import copy
import datetime
import functools
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

Object = dict[str, Any]

# It would read its files anew for each object.
kubernetes_validate.utils.schema_contents = functools.lru_cache(kubernetes_validate.utils.schema_contents)

VERSION = "1.34"
PLURALS = {
    "configmaps": ("", "ConfigMap"), "jobs": ("batch", "Job"), "jobsets": ("jobset.x-k8s.io", "JobSet"),
    "events": ("", "Event"), "persistentvolumeclaims": ("", "PersistentVolumeClaim"),
    "pods": ("", "Pod"), "secrets": ("", "Secret"), "services": ("", "Service"),
}  # fmt: skip
_PATH = re.compile(r"/(?:api|apis/([\w.-]+))/(v\w+)/namespaces/([\w-]+)/(\w+)(?:/([\w.-]+))?(?:/(log|status))?")


class Failure(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = {
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason,
            "message": message,
        }  # fmt: skip


class Fault(NamedTuple):
    """What the next `times` requests that match get: an error, or (code 0) a connection that is closed."""

    match: str  # a pattern of "METHOD /path?query"
    code: int
    reason: str
    times: list[int]


class Store:
    """The objects. `changed` is told each change, outside the lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[tuple[str, str, str], Object] = {}  # (kind, namespace, name)
        self.changed: Callable[[str, Object], None] = lambda what, one: None
        self._revision = 0

    def create(self, namespace: str, one: Object) -> Object:
        one = copy.deepcopy(one)
        metadata = one["metadata"]
        key = (one["kind"], namespace, metadata["name"])
        with self.lock:
            if key in self.objects:
                raise Failure(409, "AlreadyExists", f'{one["kind"].lower()}s "{metadata["name"]}" already exists')
            metadata.update(namespace=namespace, uid=str(uuid.uuid4()), creationTimestamp=now())
            self._touch(one)
            self.objects[key] = one
        self.changed("ADDED", one)
        return copy.deepcopy(one)

    def get(self, kind: str, namespace: str, name: str) -> Object:
        with self.lock:
            found = self.objects.get((kind, namespace, name))
            if found is None:
                raise Failure(404, "NotFound", f'{kind.lower()}s "{name}" not found')
            return copy.deepcopy(found)

    def list(self, kind: str, namespace: str, labels: str = "", fields: str = "") -> list[Object]:
        with self.lock:
            return [
                copy.deepcopy(one)
                for (its_kind, its_namespace, _), one in self.objects.items()
                if its_kind == kind and its_namespace == namespace and _matches(one, labels, fields)
            ]

    def update(self, kind: str, namespace: str, name: str, change: Callable[[Object], None]) -> Object:
        with self.lock:
            one = self.objects.get((kind, namespace, name))
            if one is None:
                raise Failure(404, "NotFound", f'{kind.lower()}s "{name}" not found')
            change(one)
            self._touch(one)
            one = copy.deepcopy(one)
        self.changed("MODIFIED", one)
        return one

    def delete(self, kind: str, namespace: str, name: str) -> Object:
        """Delete it and what it owns."""
        with self.lock:
            one = self.objects.pop((kind, namespace, name), None)
            if one is None:
                raise Failure(404, "NotFound", f'{kind.lower()}s "{name}" not found')
            owned = self.owned(one["metadata"]["uid"])
        self.changed("DELETED", one)
        for other in owned:
            try:
                self.delete(other["kind"], namespace, other["metadata"]["name"])
            except Failure:
                pass
        return one

    def owned(self, uid: str) -> list[Object]:
        with self.lock:
            return [
                other for other in self.objects.values()
                if any(owner["uid"] == uid for owner in other["metadata"].get("ownerReferences", ()))
            ]  # fmt: skip

    def _touch(self, one: Object) -> None:
        self._revision += 1
        one["metadata"]["resourceVersion"] = str(self._revision)


class ApiServer:
    """The server; `with ApiServer() as server`. `kubeconfig(path)` writes how to reach it."""

    TOKEN = "a-token-of-the-tests"

    def __init__(self) -> None:
        self.store = Store()
        self.faults: list[Fault] = []
        self.requests: list[str] = []  # "METHOD /path?query", as they came
        self.forbidden: set[str] = set()  # "verb resource"
        self.missing: set[str] = set()  # namespaces
        self.admission: dict[str, Any] | None = None  # the recorded answer to each pod that is created
        self.page = 500  # the most objects in one answer
        self.logs: Callable[[str], bytes | None] = lambda pod: None  # in the form of CRI; None: not started
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ApiServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, path: Any, token: str = TOKEN) -> None:
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "jobs"}}],
        }  # fmt: skip
        path.write_text(json.dumps(content))

    def fail(self, match: str, code: int, reason: str = "InternalError", times: int = 1) -> None:
        """Let the next requests that match fail; with code 0 the connection is closed without an answer."""
        self.faults.append(Fault(match, code, reason, [times]))

    # -- answering ---------------------------------------------------------------------------------------------------

    def answer(self, method: str, target: str, token: str, body: bytes) -> Object | Iterator[bytes]:
        self.requests.append(f"{method} {target}")
        for fault in self.faults:
            if fault.times[0] > 0 and re.search(fault.match, f"{method} {target}"):
                fault.times[0] -= 1
                if not fault.code:
                    raise ConnectionAbortedError
                raise Failure(fault.code, fault.reason, f"a fault of the test: {fault.reason}")
        if token != f"Bearer {self.TOKEN}":
            raise Failure(401, "Unauthorized", "Unauthorized")
        url = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        if url.path == "/version":
            return {"major": "1", "minor": VERSION.split(".")[1], "gitVersion": f"v{VERSION}.0"}
        if url.path.endswith("/selfsubjectaccessreviews"):
            asked = json.loads(body)["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            return {"status": {"allowed": f"{asked['verb']} {resource}" not in self.forbidden}}
        found = _PATH.fullmatch(url.path)
        if found is None or found[4] not in PLURALS or (found[1] or "") != PLURALS[found[4]][0]:
            raise Failure(404, "NotFound", "the server could not find the requested resource")
        _, version, namespace, plural, name, log = found.groups()
        kind = PLURALS[plural][1]
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(method, "get" if name else "list")
        resource = f"{plural}/{log}" if log == "status" else plural
        if f"{verb} {resource}" in self.forbidden:
            text = (
                f'{plural} is forbidden: User "tester" cannot {verb} resource "{plural}" in the namespace "{namespace}"'
            )
            raise Failure(403, "Forbidden", text)
        if log == "log":
            return self._log(namespace, name, query)
        if method == "POST":
            one = json.loads(body)
            if query.get("fieldValidation") == "Strict":  # else the server takes what it knows, and drops the rest
                validate(one, kind)
            if kind == "Pod" and self.admission is not None:
                raise Failure(self.admission["code"], self.admission["reason"], self.admission["message"])
            if namespace in self.missing:
                raise Failure(404, "NotFound", f'namespaces "{namespace}" not found')
            return one if query.get("dryRun") == "All" else self.store.create(namespace, one)
        if method == "PATCH":
            patch = json.loads(body)
            return self.store.update(kind, namespace, name, lambda one: _merge(one, patch))
        if method == "DELETE":
            return self.delete(kind, namespace, name)
        if name:
            return self.store.get(kind, namespace, name)
        items = self.store.list(kind, namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        begin = int(query.get("continue", 0))
        end = begin + min(self.page, int(query.get("limit", 500)))
        metadata = {"continue": str(end)} if end < len(items) else {}
        return {"apiVersion": version, "kind": f"{kind}List", "metadata": metadata, "items": items[begin:end]}

    def delete(self, kind: str, namespace: str, name: str) -> Object:
        """Delete an object and what it owns, at once."""
        return self.store.delete(kind, namespace, name)

    def _log(self, namespace: str, pod: str, query: dict[str, str]) -> Iterator[bytes]:
        self.store.get("Pod", namespace, pod)
        content = self.logs(pod)
        if content is None:
            message = f'container "{query["container"]}" in pod "{pod}" is waiting to start: ContainerCreating'
            raise Failure(400, "BadRequest", message)
        return _log_lines(content, query.get("sinceTime", ""), query.get("timestamps") == "true")


def _log_lines(content: bytes, since: str, timestamps: bool) -> Iterator[bytes]:
    """What a kubelet makes of CRI's form: pieces (P) become lines, and `since` has whole seconds."""
    is_begun = False
    for line in content.split(b"\n")[:-1]:
        time, _, tag, text = line.split(b" ", 3)
        if since and time[:19].decode() < since[:19]:
            continue
        head = time + b" " if timestamps and not is_begun else b""
        is_begun = tag == b"P"
        yield head + text + (b"" if is_begun else b"\n")


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                answer = server.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
                code = 201 if self.command == "POST" else 200
            except Failure as failure:
                answer, code = failure.status, failure.status["code"]
            except ConnectionAbortedError:
                self.close_connection = True
                return
            self.send_response(code)
            if isinstance(answer, dict):
                data = json.dumps(answer).encode()
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                return
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in answer:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_PATCH = do_DELETE = _serve

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def validate(one: Object, kind: str) -> None:
    """What the server refuses: unknown fields, wrong types."""
    if one.get("kind") != kind:
        raise Failure(400, "BadRequest", f"{one.get('kind')} is no {kind}")
    if kind == "JobSet":
        from tests.compute.kubernetes import schemas

        found = schemas.jobset_mistakes(one)
        if found:
            raise Failure(422, "Invalid", f'JobSet "{one["metadata"]["name"]}" is invalid: {found[0]}')
        return
    try:
        kubernetes_validate.validate(one, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise Failure(422, "Invalid", f'{kind} "{one["metadata"]["name"]}" is invalid: {error.message}') from None


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _matches(one: Object, labels: str, fields: str) -> bool:
    own = one["metadata"].get("labels", {})
    for term in filter(None, labels.split(",")):
        key, _, value = term.replace("==", "=").partition("=")
        if own.get(key) != value:
            return False
    for term in filter(None, fields.split(",")):
        path, _, value = term.partition("=")
        found: Any = one
        for key in path.split("."):
            found = found.get(key, {})
        if found != value:
            return False
    return True


def _merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = value

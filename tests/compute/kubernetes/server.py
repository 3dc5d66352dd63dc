"""A small Kubernetes API server on loopback: real requests and answers, and no cluster but what tests put behind it.

Objects are checked as the server's field validation `Strict` does, by the published schemas. Faults come on demand.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import datetime
import functools
import json
import re
import socket
import ssl
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

from tests.compute.kubernetes import schemas

Object = dict[str, Any]

# It would read its files anew for each object.
kubernetes_validate.utils.schema_contents = functools.lru_cache(kubernetes_validate.utils.schema_contents)

VERSION = "1.34"
PLURALS = {
    "configmaps": ("", "ConfigMap"), "jobs": ("batch", "Job"), "jobsets": ("jobset.x-k8s.io", "JobSet"),
    "events": ("", "Event"), "persistentvolumeclaims": ("", "PersistentVolumeClaim"),
    "pods": ("", "Pod"), "secrets": ("", "Secret"), "services": ("", "Service"),
}  # fmt: skip
#: (group and version, plural) -> kind, of what others install. The server lists them, as a real one does.
INSTALLED = {
    ("kueue.x-k8s.io/v1beta2", "workloads"): "Workload",
    ("networking.k8s.io/v1", "networkpolicies"): "NetworkPolicy",
    ("scheduling.k8s.io/v1alpha1", "workloads"): "Workload",
    ("scheduling.k8s.io/v1alpha2", "podgroups"): "PodGroup",
    ("scheduling.k8s.io/v1beta1", "podgroups"): "PodGroup",
    ("scheduling.volcano.sh/v1beta1", "podgroups"): "PodGroup",
    ("scheduling.x-k8s.io/v1alpha1", "podgroups"): "PodGroup",
}
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


class Change(NamedTuple):
    """What a watch reports. `before` is the object without the change; None for one that is new."""

    revision: int
    what: str  # ADDED, MODIFIED, DELETED
    one: Object
    before: Object | None


class Store:
    """The objects and their history. It calls `changed` for each change, outside the lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.news = threading.Condition(self.lock)
        self.objects: dict[tuple[str, str, str], Object] = {}  # (kind, namespace, name)
        self.changed: Callable[[str, Object], None] = lambda what, one: None
        self.revision = 0
        self.oldest = 0  # the revision of the last compaction
        self.history: list[Change] = []

    def compact(self) -> None:
        """Forget the history, as etcd does every five minutes."""
        with self.news:
            self.oldest = self.revision
            self.history.clear()
            self.news.notify_all()

    def since(self, revision: int) -> list[Change]:
        """The changes after a revision. Raises Failure 410 where they are no longer known."""
        with self.lock:
            if revision < self.oldest:
                raise Failure(410, "Expired", f"too old resource version: {revision} ({self.oldest})")
            begin = bisect.bisect_right(self.history, revision, key=lambda change: change.revision)
            return self.history[begin:]

    def create(self, namespace: str, one: Object) -> Object:
        one = copy.deepcopy(one)
        metadata = one["metadata"]
        key = (one["kind"], namespace, metadata["name"])
        with self.lock:
            if key in self.objects:
                raise Failure(409, "AlreadyExists", f'{one["kind"].lower()}s "{metadata["name"]}" already exists')
            metadata.update(namespace=namespace, uid=str(uuid.uuid4()), creationTimestamp=now())
            self.objects[key] = one
            self._touch("ADDED", one, None)
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
            before = copy.deepcopy(one)
            change(one)
            self._touch("MODIFIED", one, before)
            one = copy.deepcopy(one)
        self.changed("MODIFIED", one)
        return one

    def delete(self, kind: str, namespace: str, name: str) -> Object:
        """Delete it and what it owns."""
        with self.lock:
            one = self.objects.pop((kind, namespace, name), None)
            if one is None:
                raise Failure(404, "NotFound", f'{kind.lower()}s "{name}" not found')
            self._touch("DELETED", one, one)
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

    def _touch(self, what: str, one: Object, before: Object | None) -> None:
        self.revision += 1
        one["metadata"]["resourceVersion"] = str(self.revision)
        self.history.append(Change(self.revision, what, copy.deepcopy(one), before))
        self.news.notify_all()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class ApiServer:
    """The server; `with ApiServer() as server`. `kubeconfig(path)` writes how to reach it."""

    TOKEN = "a-token-of-the-tests"

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.store = Store()
        self.faults: list[Fault] = []
        self.requests: list[str] = []  # "METHOD /path?query", as they came
        self.used: set[tuple[str, str, str]] = set()  # (verb, API group, resource) of all requests
        self.reviews: list[str] = []  # what was asked about rights, as JSON
        self.forbidden: set[str] = set()  # "verb resource"
        self.allowed: set[str] | None = None  # "verb resource"; None: all
        self.of_accounts: dict[str, set[str]] = {}  # "verb resource" by the user's name of a ServiceAccount
        self.refused: list[str] = []  # "verb resource", as they were asked for
        self.missing: set[str] = set()  # namespaces
        self.admission: dict[str, Any] | None = None  # the recorded answer to each pod that is created
        self.page = 500  # the most objects in one answer
        self.bookmark_s = 60.0  # seconds between the bookmarks of a watch
        self.watch_s = 300.0  # seconds after which a watch is closed
        self.logs: Callable[[str], bytes | None] = lambda pod: None  # in the form of CRI; None: not started
        self.log_written = LogNews()
        self._epoch = 0
        self.token = self.TOKEN
        self.bookmarks: list[int] = []  # the versions that were sent in them
        self.connections: set[socket.socket] = set()
        self._listen(0)

    def _listen(self, port: int) -> None:
        self._server = _Listener(("127.0.0.1", port), _handler(self))
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self._port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def __enter__(self) -> ApiServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close all connections, and take no new ones."""
        self.hang_up()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def start(self) -> None:
        """Listen again after `stop`, at the same address."""
        self._listen(self._port)
        self._thread.start()

    def hang_up(self) -> None:
        """End all answers that go on, as a server that is stopped does."""
        self._epoch += 1
        with self.store.news:
            self.store.news.notify_all()
        self.log_written.wake_all()

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

    def answer(
        self, method: str, target: str, token: str, body: bytes, content_type: str = ""
    ) -> Object | Iterator[bytes]:
        self.requests.append(f"{method} {target}")
        for fault in self.faults:
            if fault.times[0] > 0 and re.search(fault.match, f"{method} {target}"):
                fault.times[0] -= 1
                if not fault.code:
                    raise ConnectionAbortedError
                raise Failure(fault.code, fault.reason, f"a fault of the test: {fault.reason}")
        if token != f"Bearer {self.token}":
            raise Failure(401, "Unauthorized", "Unauthorized")
        url = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        if url.path == "/version":
            return {"major": "1", "minor": VERSION.split(".")[1], "gitVersion": f"v{VERSION}.0"}
        if url.path.endswith("/selfsubjectaccessreviews"):
            asked = json.loads(body)["spec"]["resourceAttributes"]
            self.reviews.append(json.dumps(asked))
            resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            return {"status": {"allowed": f"{asked['verb']} {resource}" not in self.forbidden}}
        if url.path.endswith("/localsubjectaccessreviews"):
            return self._review(url.path, json.loads(body))
        installed = {plural: kind for (group, plural), kind in INSTALLED.items() if url.path == f"/apis/{group}"}
        if installed:
            resources = [{"name": name, "kind": kind, "namespaced": True} for name, kind in installed.items()]
            return {"kind": "APIResourceList", "resources": resources}
        found = _PATH.fullmatch(url.path)
        kind = _kind(found[1] or "", found[2], found[4]) if found is not None else None
        if found is None or kind is None:
            raise Failure(404, "NotFound", "the server could not find the requested resource")
        _, version, namespace, plural, name, log = found.groups()
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(method, "get" if name else "list")
        if method == "GET" and query.get("watch") == "true":
            verb = "watch"
        resource = f"{plural}/{log}" if log else plural
        self.used.add((verb, found[1] or "", resource))
        right = f"{verb} {resource}"
        if right in self.forbidden or (self.allowed is not None and right not in self.allowed):
            self.refused.append(right)
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
            if content_type == "application/strategic-merge-patch+json":
                patch = _with_kept_conditions(self.store.get(kind, namespace, name), patch)
            return self.store.update(kind, namespace, name, lambda one: _merge(one, patch))
        if method == "DELETE":
            return self.delete(kind, namespace, name)
        if name:
            return self.store.get(kind, namespace, name)
        if verb == "watch":
            return self._watch(kind, namespace, query)
        return self._list(kind, namespace, version, query)

    def _review(self, path: str, review: Object) -> Object:
        """Whether a ServiceAccount has a right, for who may ask that."""
        spec = review["spec"]
        asked, user = spec["resourceAttributes"], spec["user"]
        namespace = user.split(":")[2]
        assert review["apiVersion"] == "authorization.k8s.io/v1"
        assert review["kind"] == "LocalSubjectAccessReview"
        assert path == f"/apis/authorization.k8s.io/v1/namespaces/{namespace}/localsubjectaccessreviews"
        assert review["metadata"]["namespace"] == asked["namespace"] == namespace
        assert f"system:serviceaccounts:{namespace}" in spec["groups"]
        right = "create localsubjectaccessreviews"
        if right in self.forbidden or (self.allowed is not None and right not in self.allowed):
            self.refused.append(right)
            raise Failure(403, "Forbidden", f'User "tester" cannot {right.replace(" ", " resource ")}')
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        return {"status": {"allowed": f"{asked['verb']} {resource}" in self.of_accounts.get(user, ())}}

    def _list(self, kind: str, namespace: str, version: str, query: dict[str, str]) -> Object:
        with self.store.lock:
            items = self.store.list(kind, namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))
            metadata: Object = {"resourceVersion": str(self.store.revision)}
        begin = int(query.get("continue", 0))
        end = begin + min(self.page, int(query.get("limit", 500)))
        if end < len(items):
            metadata |= {"continue": str(end), "remainingItemCount": len(items) - end}
        return {"apiVersion": version, "kind": f"{kind}List", "metadata": metadata, "items": items[begin:end]}

    def _watch(self, kind: str, namespace: str, query: dict[str, str]) -> Iterator[bytes]:
        """Events from a revision on, one a line. What is no longer known is an event, too, in an answer with 200."""
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        revision, epoch, began = int(query["resourceVersion"]), self._epoch, time.monotonic()
        bookmarked = began
        until = began + min(self.watch_s, float(query.get("timeoutSeconds", "inf")))
        while self._epoch == epoch and time.monotonic() < until:
            pieces = []
            with self.store.news:
                try:
                    changes = self.store.since(revision)
                except Failure as failure:
                    yield _line("ERROR", failure.status)
                    return
                if not changes:
                    self.store.news.wait(max(0.0, min(until, bookmarked + self.bookmark_s) - time.monotonic()))
            for change in changes:
                revision = change.revision
                metadata = change.one["metadata"]
                if change.one["kind"] == kind and metadata.get("namespace") == namespace:
                    what = _as_selected(change, labels, fields)
                    pieces += [_line(what, change.one)] if what else []
            if time.monotonic() >= bookmarked + self.bookmark_s and query.get("allowWatchBookmarks") == "true":
                bookmarked = time.monotonic()
                self.bookmarks.append(revision)
                pieces.append(_line("BOOKMARK", {"kind": kind, "metadata": {"resourceVersion": str(revision)}}))
            if pieces:
                yield b"".join(pieces)

    def delete(self, kind: str, namespace: str, name: str) -> Object:
        """Delete an object and what it owns, at once."""
        return self.store.delete(kind, namespace, name)

    def _log(self, namespace: str, pod: str, query: dict[str, str]) -> Iterator[bytes]:
        self.store.get("Pod", namespace, pod)
        content = self.logs(pod)
        if content is None:
            message = f'container "{query["container"]}" in pod "{pod}" is waiting to start: ContainerCreating'
            raise Failure(400, "BadRequest", message)
        lines = _log_lines(content, query.get("sinceTime", ""), query.get("timestamps") == "true")
        return self._follow(namespace, pod, len(content), lines) if query.get("follow") == "true" else lines

    def _follow(self, namespace: str, pod: str, seen: int, lines: Iterator[bytes]) -> Iterator[bytes]:
        """Lines as they are written, until the container ends."""
        yield from lines
        epoch = self._epoch
        while self._epoch == epoch:
            try:
                one = self.store.get("Pod", namespace, pod)
            except Failure:
                return
            (container,) = one["status"]["containerStatuses"]
            content = self.logs(pod) or b""
            if len(content) > seen:
                yield from _log_lines(content[seen:], "", True)
                seen = len(content)
            elif "terminated" in container["state"]:
                return
            else:
                self.log_written.wait(pod)


class LogNews:
    """Wakes who follows the log of a pod. Without a word of its writer, followers look every `every_s` seconds."""

    def __init__(self) -> None:
        self.every_s = 0.1
        self._events: dict[str, threading.Event] = {}

    def wait(self, pod: str) -> None:
        event = self._events.setdefault(pod, threading.Event())
        event.wait(self.every_s)
        event.clear()

    def wake(self, pod: str) -> None:
        self._events.setdefault(pod, threading.Event()).set()

    def wake_all(self) -> None:
        for event in list(self._events.values()):
            event.set()


def _log_lines(content: bytes, since: str, timestamps: bool) -> Iterator[bytes]:
    """What a kubelet makes of CRI's form: pieces (P) become lines, and `since` has whole seconds."""
    is_begun = False
    pieces = []
    for line in content.split(b"\n")[:-1]:
        time, _, tag, text = line.split(b" ", 3)
        if since and time[:19].decode() < since[:19]:
            continue
        head = time + b" " if timestamps and not is_begun else b""
        is_begun = tag == b"P"
        pieces.append(head + text + (b"" if is_begun else b"\n"))
    if pieces:
        yield b"".join(pieces)


def _line(what: str, one: Object) -> bytes:
    return json.dumps({"type": what, "object": one}).encode() + b"\n"


def _as_selected(change: Change, labels: str, fields: str) -> str:
    """What a change is to who selects objects; empty for those that are not selected."""
    was = change.before is not None and _matches(change.before, labels, fields)
    is_now = change.what != "DELETED" and _matches(change.one, labels, fields)
    return ("MODIFIED" if was else "ADDED") if is_now else "DELETED" if was else ""


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            server.connections.add(self.connection)

        def finish(self) -> None:
            server.connections.discard(self.connection)
            super().finish()

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                answer = server.answer(
                    self.command, self.path, self.headers.get("Authorization", ""), body,
                    self.headers.get("Content-Type", ""),
                )  # fmt: skip
                code = 201 if self.command == "POST" else 200
            except Failure as failure:
                answer, code = failure.status, failure.status["code"]
            except ConnectionAbortedError:
                self.close_connection = True
                return
            self.send_response(code)
            if code == 429:
                self.send_header("Retry-After", "1")
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
            self.wfile.flush()
            try:
                for piece in answer:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
            except ConnectionError:  # the client does not follow any longer
                self.close_connection = True

        do_GET = do_POST = do_PATCH = do_DELETE = _serve

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def validate(one: Object, kind: str) -> None:
    """What the server refuses: unknown fields, wrong types."""
    if one.get("kind") != kind:
        raise Failure(400, "BadRequest", f"{one.get('kind')} is no {kind}")
    found = schemas.mistakes(one, VERSION)
    if found:
        raise Failure(422, "Invalid", f'{kind} "{one["metadata"]["name"]}" is invalid: {found[0]}')


def _kind(group: str, version: str, plural: str) -> str | None:
    if PLURALS.get(plural, ("-", ""))[0] == group:
        return PLURALS[plural][1]
    return INSTALLED.get((f"{group}/{version}", plural))


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


def _with_kept_conditions(one: Object, patch: Object) -> Object:
    """A strategic merge patch as the merge patch with the same effect. Conditions have the merge key `type`."""
    new = patch["status"]["conditions"]
    names = {condition["type"] for condition in new}
    kept = [condition for condition in one["status"].get("conditions", []) if condition["type"] not in names]
    return {**patch, "status": {**patch["status"], "conditions": [*kept, *new]}}


def _merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = value

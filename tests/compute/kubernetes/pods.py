"""The pods of a run, without a kubelet."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from jobsdk.bootstrap.transport import stdout_relay
from tests.compute.kubernetes.server import ApiServer, Object

RUN = "able_acorn_1234567890"
NAME = "able-acorn-1234567890"


class Pods:
    """The pods of a run, without a kubelet: their states and logs are set by the test."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._logs: dict[str, bytes] = {}
        self._second = 0
        self._written = 0  # bytes of events
        server.logs = self._logs.get

    def add(self, node: int, name: str = "", **status: Any) -> str:
        name = name or f"{NAME}-{node}-abcde"
        labels = {"jobsdk/job": NAME, "batch.kubernetes.io/job-completion-index": str(node)}
        container = {"name": "main", "image": "i", "resources": {"limits": {"memory": "8Gi"}}}
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [container]}, "status": {"phase": "Pending", **status},
        }  # fmt: skip
        self._server.store.create("jobs", pod)
        return name

    def runs(self, *nodes: int) -> None:
        for node in nodes:
            name = self.add(node)
            self._logs[name] = b""
            self.state(name, {"running": {}}, phase="Running")

    def state(self, name: str, state: Object, **status: Any) -> None:
        def change(one: Object) -> None:
            one["spec"]["nodeName"] = "machine-7"
            one["status"].update(containerStatuses=[{"name": "main", "state": state}], **status)

        self._server.store.update("Pod", "jobs", name, change)
        self._server.log_written.wake(name)

    def writes(self, node: int, source: str, data: bytes, offset: int = 0) -> None:
        """Add records to a pod's log, each second some."""
        name = f"{NAME}-{node}-abcde"
        for line in stdout_relay.form(source, offset, data).splitlines(keepends=True):
            self._second += 1
            minutes, seconds = divmod(self._second // 3, 60)
            self._logs[name] += b"2026-01-02T03:%02d:%02d.%09dZ stdout F %b" % (minutes, seconds, self._second, line)
        self._server.log_written.wake(name)

    def event(self, event: Object) -> None:
        """Node 0 writes an event."""
        data = json.dumps(event).encode() + b"\n"
        self.writes(0, stdout_relay.EVENTS, data, self._written)
        self._written += len(data)

    def ends(self, node: int, code: int, why: str = "", **status: Any) -> None:
        """A container ends. A bootstrap that started, and was not killed, has written its last record."""
        if code not in (127, 137):
            self.writes(node, stdout_relay.END, b"%d\n" % code)
        ended = {"exitCode": code, "reason": why or ("Error" if code else "Completed")}
        self.state(f"{NAME}-{node}-abcde", {"terminated": ended}, phase="Failed" if code else "Succeeded", **status)

    def late(self, *nodes: int) -> Callable[[], None]:
        """From now on no more of some nodes' logs is shown, until what this returns is called."""
        shown = {f"{NAME}-{node}-abcde": self._logs[f"{NAME}-{node}-abcde"] for node in nodes}
        self._server.logs = lambda pod: shown.get(pod, self._logs.get(pod))

        def come() -> None:
            self._server.logs = self._logs.get

        return come

    def finish(self, status: str = "Completed", code: int = 0, **cause: Any) -> None:
        """The last words of node 0."""
        content = {"run": RUN, "status": status, "exit_code": code, "message": "it has ended", "ended": 5.0}
        content.update(ranks=[], cause=cause or None)
        self.writes(0, stdout_relay.REPORT, json.dumps(content).encode() + b"\n")
        ended = {"t": 5.0, "event": "ended", "status": status, "exit_code": code, "message": "it has ended"}
        self.event(ended)


def objects(server: ApiServer) -> set[tuple[str, str]]:
    return {(kind, name) for kind, _, name in server.store.objects if not name.startswith("jobsdk-bootstrap-")}

"""Pods of lost machines, declared failed by node 0 itself: then the Job replaces them although no client follows.

Node 0 does that where its pod has a ServiceAccount's token. The account needs the rights to get pods and to patch
pods/status in its namespace. `compute/kubernetes/lost.py` does the same on the client's side, and says why.
"""

from __future__ import annotations

import _thread
import json
import os
import time
from typing import Any, Callable, Dict, Mapping, Optional

from ..spec import events

FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
_TIMEOUT_S = 10.0
_STRATEGIC = "application/strategic-merge-patch+json"


def can_ask(folder: str = FOLDER) -> bool:
    """Whether this pod has a token, and knows the API server."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and os.path.exists(folder + "/token")


class LostPods:
    """`pod_of(node)` is the name of the pod in which a node last ran; None if it is not known."""

    def __init__(self, run_dir: str, pod_of: Callable[[int], Optional[str]], folder: str = FOLDER) -> None:
        self._run_dir = run_dir
        self._pod_of = pod_of
        self._folder = folder

    def replace(self, node: int) -> None:
        """Declare the pod of a node failed if it still seems to run. Returns at once."""
        pod = self._pod_of(node)
        if pod is not None:
            _thread.start_new_thread(self.declare, (node, pod))

    def declare(self, node: int, pod: str) -> None:
        """The same, in this thread. What goes wrong becomes a warning of the run."""
        import urllib.error

        message = "node %d does not answer: its pod %s is replaced" % (node, pod)
        try:
            if not _seems_to_run(self._ask("GET", pod)):
                return
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            why = {"reason": "NodeLost", "message": "node %d does not answer" % node}
            condition = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": now, **why}
            self._ask("PATCH", pod + "/status", {"status": {"phase": "Failed", "conditions": [condition], **why}})
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return  # it is gone already
            message = "node %d does not answer, and its pod %s is not replaced: %s" % (node, pod, _words(error))
        except (OSError, ValueError) as error:
            message = "node %d does not answer, and its pod %s is not replaced: %s" % (node, pod, error)
        events.note(self._run_dir, "warning", message=message)

    def _ask(self, method: str, path: str, body: Optional[Mapping[str, object]] = None) -> Dict[str, Any]:
        import ssl
        import urllib.request

        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        server = "https://%s:%s" % ("[%s]" % host if ":" in host else host, port)
        url = "%s/api/v1/namespaces/%s/pods/%s" % (server, self._read("namespace"), path)
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Accept": "application/json"}, method=method)
        request.add_header("Authorization", "Bearer " + self._read("token"))
        if data is not None:
            request.add_header("Content-Type", _STRATEGIC)
        context = ssl.create_default_context(cafile=self._folder + "/ca.crt")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as answer:  # nosec B310 # https only
            found: Dict[str, Any] = json.load(answer)
        return found

    def _read(self, name: str) -> str:
        """Read each time: the kubelet renews tokens."""
        with open("%s/%s" % (self._folder, name)) as file:
            return file.read().strip()


def _seems_to_run(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's kubelet has said nothing of its end, and nobody is deleting it."""
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _words(error: Any) -> str:
    """What the API server says."""
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error)

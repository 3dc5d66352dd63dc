"""What a user of the Kubernetes compute sees when something goes wrong, and after how many seconds: a Markdown table.

Runs `jobsdk job create --stream` against the tests' API server. Pods are podman's containers; refusals are the recorded
answers of a real server. Needs the engine `containers`.

    python -m scripts.kubernetes_scenarios [NAME ...]
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests import engines
from tests.compute.kubernetes.cluster import Cluster
from tests.compute.kubernetes.conftest import PATH, PYTHON, write_computes
from tests.compute.kubernetes.server import ApiServer

_RECORDINGS = Path(__file__).resolve().parents[1] / "tests/compute/kubernetes/recordings"
_PATIENCE_S = 120.0  # seconds
_WIDTH = 150  # characters of what is shown
_TWICE = "if [ $JOBSDK_RESTART_COUNT = 0 ]; then echo begun; exec sleep 600; fi; echo again"


class Seen(NamedTuple):
    text: str
    seconds: float  # since the scenario's event; else since the command


class Client:
    """`jobsdk job create --stream` and what it writes."""

    def __init__(self, home: Path, name: str, text: str, settings: dict[str, Any], **fields: Any) -> None:
        write_computes(home, {"type": "kubernetes", "image": engines.IMAGE, **settings})
        job = {
            "command": text, "compute": "cluster", "resources": {"instance_count": 2},
            "distribution": {"type": "pytorch", "process_count_per_instance": 2}, **fields,
        }  # fmt: skip
        (home / "job.yml").write_text(yaml.safe_dump(job))
        argv = [sys.executable, "-m", "jobsdk", "job", "create", str(home / "job.yml"), "--name", name, "--stream"]
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            argv, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip())
        self._lines.put(None)

    def sees(self, part: str) -> Seen:
        """The first line that has it."""
        until, shown = time.monotonic() + _PATIENCE_S, []
        while True:
            line = self._lines.get(timeout=until - time.monotonic())
            if line is None:
                raise RuntimeError(f"{part!r} was not shown: {shown}")
            shown.append(line)
            if part in line:
                return Seen(line, time.monotonic() - self.began)

    def event(self) -> None:
        """From now on seconds count."""
        self.began = time.monotonic()

    def end(self) -> int:
        return self._process.wait(_PATIENCE_S)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


Scenario = Callable[[Cluster, Path], Seen]


def success(cluster: Cluster, home: Path) -> Seen:
    client = Client(home, "success", "echo rank $RANK", _POD)
    assert client.end() == 0
    return Seen("all ranks' lines (exit code 0)", time.monotonic() - client.began)


def exit_42(cluster: Cluster, home: Path) -> Seen:
    client = Client(home, "failure", "[ $RANK = 3 ] && exit 42; exec sleep 600", _POD)
    seen = client.sees("rank 3")
    assert client.end() == 42
    return seen._replace(text=f"{seen.text} (exit code 42)")


def cancel(cluster: Cluster, home: Path) -> Seen:
    client = Client(home, "cancel", "echo begun; exec sleep 600", _POD)
    client.sees("begun")
    client.event()
    argv = [sys.executable, "-m", "jobsdk", "job", "cancel", "cancel"]
    subprocess.run(argv, check=True, capture_output=True)
    seconds = time.monotonic() - client.began
    assert client.end() == 130
    return Seen("`jobsdk job cancel` returns; Canceled", seconds)


def eviction(cluster: Cluster, home: Path) -> Seen:
    client = Client(home, "eviction", _TWICE, _POD, max_preemptions=1, restart_delay=0)
    client.sees("begun")
    client.event()
    cluster.disrupt("eviction-1-00000")
    seen = client.sees("again")
    client.end()
    return seen._replace(text="the run continues: `again`")


def lost(cluster: Cluster, home: Path) -> Seen:
    client = Client(home, "lost", _TWICE, _POD, max_restarts=1, restart_delay=0)
    client.sees("begun")
    client.event()
    cluster.lose("lost-1-00000")
    seen = client.sees("again")
    client.end()
    return seen._replace(text="the run continues: `again` (heartbeat limit 15 s)")


def lost_node_0(cluster: Cluster, home: Path) -> Seen:
    client = Client(home, "lost-0", _TWICE, _POD, max_restarts=1, restart_delay=0)
    client.sees("begun")
    client.event()
    cluster.lose("lost-0-0-00000")
    cluster.notice("lost-0-0-00000")
    seen = client.sees("again")
    client.end()
    return seen._replace(text="the run continues: `again` (from when the node controller says NotReady)")


def evicted_node_0(cluster: Cluster, home: Path) -> Seen:
    client = Client(home, "eviction-0", _TWICE, _POD, max_preemptions=1, restart_delay=0)
    client.sees("begun")
    client.event()
    cluster.disrupt("eviction-0-0-00000")
    seen = client.sees("again")
    client.end()
    return seen._replace(text="the run continues: `again`")


def lost_alone(cluster: Cluster, home: Path) -> Seen:
    one_node = {"resources": {"instance_count": 1}}
    client = Client(home, "lost-alone", _TWICE, _POD, max_restarts=1, restart_delay=0, **one_node)
    client.sees("begun")
    client.event()
    cluster.lose("lost-alone-0-00000")
    cluster.notice("lost-alone-0-00000")
    seen = client.sees("again")
    client.end()
    return seen._replace(text="the run continues: `again` (from when the node controller says NotReady)")


def unschedulable(cluster: Cluster, home: Path) -> Seen:
    with ApiServer() as server:
        server.kubeconfig(home / "kubeconfig")
        client = Client(home, "huge", "true", {})
        try:
            jobs = server.store.list
            _wait_for(lambda: any(one["spec"].get("suspend") is False for one in jobs("Job", "jobs")), "no Job")
            client.event()
            for one in _recorded("huge-pods")["items"]:
                server.store.create("jobs", one)
            return client.sees("queued: ")
        finally:
            client.stop()


def refused(recording: str, **settings: Any) -> Scenario:
    """A pod that the server refuses in the dry run, or an object that does not exist."""

    def run(cluster: Cluster, home: Path) -> Seen:
        with ApiServer() as server:
            server.kubeconfig(home / "kubeconfig")
            server.admission = _recorded(recording) if recording else None
            client = Client(home, "refused", "true", settings)
            seen = client.sees("Fix: ")
            assert client.end() == 2, "refused before there is a run"
            return seen

    return run


def without_dry_run(cluster: Cluster, home: Path) -> Seen:
    """Pod Security refuses the pods, and only the Job's events say so."""
    with ApiServer() as server:
        server.kubeconfig(home / "kubeconfig")
        server.admission = _recorded("dryrun-forbidden")
        client = Client(home, "locked", "true", {})
        try:
            _wait_for(lambda: any("/events" in one for one in server.requests), "the events were not read")
            client.event()  # just after a look, which is the worst moment
            for event in _recorded("events-locked")["items"]:
                mine = {**event["involvedObject"], "name": "locked", "namespace": "jobs"}
                server.store.create("jobs", {**event, "involvedObject": mine})
            return client.sees("queued: FailedCreate")
        finally:
            client.stop()


_POD = {"volumes": PYTHON, "env": {"PATH": PATH}}
_CLAIM = {"volumes": [{"mount": "/data", "claim": "datasets"}]}
#: name -> (scenario, what jobsdk showed on a real cluster before all of this, how to run it)
SCENARIOS: dict[str, tuple[str, str, Scenario]] = {
    "success": ("2 nodes x 2 end", "right, 4.7 s", success),
    "exit-42": ("exit 42 on rank 3", "right, code 42, 4.5 s", exit_42),
    "cancel": ("cancel", "Canceled, 0.6 s", cancel),
    "eviction": ("eviction with `max_preemptions`", "runs again after 6 s", eviction),
    "lost": ("machine loses power, `max_restarts`", "never recovered", lost),
    "eviction-0": ("eviction of node 0", "ended as Preempted", evicted_node_0),
    "lost-0": ("machine of node 0 loses power", "ended as Lost", lost_node_0),
    "lost-alone": ("machine of a job of one node loses power", "ended as Lost", lost_alone),
    "unschedulable": ("unschedulable", "the scheduler's message, `Queued`", unschedulable),
    "pod-security": ("Pod Security `restricted`", "`Queued`, no reason, forever", refused("dryrun-locked")),
    "quota": ("ResourceQuota of one pod", "`waiting 1/2, missing: node 1`", refused("dryrun-quota")),
    "service-account": ("missing ServiceAccount", "not tried", refused("dryrun-missing")),
    "secret": ("missing Secret", "not tried", refused("", image_pull_secrets=["registry"])),
    "claim": ("missing PersistentVolumeClaim", "not tried", refused("", **_CLAIM)),
    "no-dry-run": ("Pod Security, without the right to dry-run", "`Queued`, no reason, forever", without_dry_run),
}


def _recorded(name: str) -> Any:
    return json.loads((_RECORDINGS / f"{name}.json").read_text())


def _wait_for(condition: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < until, otherwise
        time.sleep(0.01)


def main(names: list[str]) -> None:
    print("| scenario | before | what is shown now | after |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="scenarios-") as folder:
        home = Path(folder)
        os.environ.update(JOBSDK_HOME=str(home / "jobsdk"), XDG_CONFIG_HOME=str(home / "config"))
        os.environ.update(KUBECONFIG=str(home / "kubeconfig"), PYTHONPATH=str(Path(__file__).resolve().parents[1]))
        (home / "pods").mkdir()
        with Cluster(home / "pods") as cluster:
            for name in names or SCENARIOS:
                title, before, scenario = SCENARIOS[name]
                cluster.kubeconfig(home / "kubeconfig")
                seen = scenario(cluster, home)
                text = textwrap.shorten(seen.text.replace("|", "\\|"), _WIDTH, placeholder=" ...")
                print(f"| {title} | {before} | {text} | {seen.seconds:.1f} s |", flush=True)
            for error in cluster.errors:
                print(error, file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])

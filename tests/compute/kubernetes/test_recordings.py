"""The changes that a watch of Kubernetes 1.36.2 reported of whole runs, as a follower takes them in.

Of a spec the recordings have what a follower reads.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsdk import MLClient, PyTorchDistribution, command
from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import following, watches
from jobsdk.compute.kubernetes.compute import KubernetesCompute
from jobsdk.runs.logs import View
from jobsdk.runs.refresh import Pace
from tests.bootstrap.runs import wait_for
from tests.compute.kubernetes.conftest import Configure
from tests.compute.kubernetes.server import ApiServer, Object


def recorded(name: str) -> Iterator[tuple[str, Object]]:
    """Each change: what, and the object after it."""
    for line in (Path(__file__).parent / "recordings" / f"{name}.watch.jsonl").read_text().splitlines():
        event = json.loads(line)
        yield event["type"], event["object"]


def replay(server: ApiServer, what: str, one: Object) -> None:
    kind, name = one["kind"], one["metadata"]["name"]
    one["metadata"]["namespace"] = "jobs"
    if what == "DELETED":
        server.store.delete(kind, "jobs", name)
    elif (kind, "jobs", name) in server.store.objects:
        server.store.update(kind, "jobs", name, lambda old: old.update(copy.deepcopy(one)))
    else:
        server.store.create("jobs", one)


def hosts(run: Run) -> list[tuple[int, str, str]]:
    return [(one["node"], one["host"], one["pod"]) for one in run.folder.events() if one["event"] == "allocated"]


@pytest.mark.parametrize(
    ("name", "first", "replaced"),
    [
        ("eviction", [(0, "machine-0", "eviction-0-xnks8"), (1, "machine-1", "eviction-1-mzqk9")],
         (1, "machine-1", "eviction-1-qfpps")),
        ("lost", [(0, "machine-0", "lost-0-2vlrr"), (1, "machine-1", "lost-1-7xfgj")],
         (1, "machine-2", "lost-1-4kw4l")),
    ],
)  # fmt: skip
def test_a_pod_that_is_replaced(
    name: str, first: list[tuple[int, str, str]], replaced: tuple[int, str, str],
    server: ApiServer, configure: Configure, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(KubernetesCompute, "pace", Pace(0.05, 0.1))
    monkeypatch.setattr(watches, "_SHORTEST_S", 0.05)
    monkeypatch.setattr(following, "_AGAIN_S", 0.05)
    configure(server)
    job = command(
        command="true", compute="cluster", instance_count=2, distribution=PyTorchDistribution(), max_restarts=1
    )
    run = MLClient().jobs.create_or_update(job, name=name)
    server.logs = lambda pod: f"2026-01-02T03:00:00Z stdout F {pod}:0| here\n".encode()
    expected = sorted([*first, replaced])
    logs = [run.folder.logs / f"node-{node}/{pod}.log" for node, _, pod in expected]
    with run.target.following(run.folder, View()) as check:
        for what, one in recorded(name):
            if what == "DELETED":  # whatever was there before has been seen
                wait_for(lambda: sorted(hosts(run)) == expected and all(log.exists() for log in logs))
                check()
            if one["kind"] == "Job" and what == "DELETED":
                assert not run.folder.recorded_state().is_terminal
            replay(server, what, one)
        wait_for(lambda: run.folder.recorded_state().is_terminal)
    assert [log.read_text() for log in logs] == ["here\n"] * 3
    old, new = first[1][2], replaced[2]
    state = run.folder.read_json("kubernetes-state.json")["pods"]
    assert [(state[pod]["node"], state[pod]["life"]) for pod in (old, new)] == [(1, 0), (1, 1)]
    assert [one["message"] for one in run.folder.events() if one["event"] == "warning"] == []

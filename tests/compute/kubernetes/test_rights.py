"""The Role in docs/kubernetes.md is what jobsdk needs: with it all works, and nothing else is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import following, watches
from jobsdk.compute.kubernetes.compute import KubernetesCompute
from jobsdk.runs.logs import View
from jobsdk.runs.refresh import Pace
from tests.bootstrap.runs import wait_for
from tests.compute.kubernetes.pods import Pods, objects
from tests.compute.kubernetes.server import ApiServer

_PAGE = Path(__file__).resolve().parents[3] / "docs/kubernetes.md"
#: What jobsdk does without, with something to say.
OPTIONAL = {
    "watch jobs", "watch jobsets", "watch pods", "patch pods/status", "create pods", "list events", "get secrets",
    "get persistentvolumeclaims",
}  # fmt: skip


def role() -> set[str]:
    """ "verb resource", of the page's Role."""
    block = _PAGE.read_text().split("## Rights\n```yaml\n")[1].split("```")[0]
    rules: list[dict[str, Any]] = yaml.safe_load(block)["rules"]
    return {f"{verb} {resource}" for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


@pytest.fixture
def whole_run(
    server: ApiServer, submit: Callable[..., Run], pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Run]:
    """A run that is submitted, waits, loses a node, is followed to its end; another one that is canceled."""
    monkeypatch.setattr(KubernetesCompute, "pace", Pace(0.05, 0.1))
    monkeypatch.setattr(watches, "_POLL_S", 0.05)
    monkeypatch.setattr(watches, "_SHORTEST_S", 0.05)
    monkeypatch.setattr(following, "_AGAIN_S", 0.05)

    def go() -> Run:
        settings = {"volumes": [{"mount": "/data", "claim": "datasets"}], "image_pull_secrets": ["registry"]}
        run = submit(settings, max_restarts=1, environment_variables={"MY_TOKEN": "swordfish-1234"})
        assert run.status == "Queued"
        pods.runs(0, 1)
        joined = [{"event": "node_joined", "node": node, "host": "h", "pid": 1} for node in (0, 1)]
        failed = {"event": "failure", "node": 1, "rank": None, "exit_code": 125, "message": "", "class": "node_lost"}
        for event in [*joined, failed, {"event": "restart", "restart": 1}]:
            pods.event({"t": 1.0, **event})
        with run.target.following(run.folder, View()):
            wait_for(lambda: any("does not answer" in str(one.get("message")) for one in run.folder.events()))
            pods.finish()
            pods.ends(0, 0)
            pods.ends(1, 0)
            wait_for(lambda: run.folder.recorded_state().is_terminal)
        return run

    return go


def test_with_the_role_nothing_is_refused(whole_run: Callable[[], Run], server: ApiServer) -> None:
    for kind, name in (("PersistentVolumeClaim", "datasets"), ("Secret", "registry")):
        server.store.create("jobs", {"kind": kind, "metadata": {"name": name}})
    server.allowed = role()
    run = whole_run()
    assert server.refused == []
    assert run.status == "Completed"
    assert not [one for one in objects(server) if one == ("Secret", run.folder.read_json("kubernetes.json")["name"])]


def test_without_what_is_optional_a_run_works_as_well(whole_run: Callable[[], Run], server: ApiServer) -> None:
    assert role() >= OPTIONAL
    server.allowed = role() - OPTIONAL
    assert whole_run().status == "Completed"
    assert set(server.refused) <= OPTIONAL


def test_a_waiting_run_is_canceled_with_the_role(submit: Callable[..., Run], server: ApiServer) -> None:
    server.allowed = role()
    assert submit().cancel().status == "Canceled"
    assert server.refused == []

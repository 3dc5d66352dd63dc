"""The Role in docs/kubernetes.md is what jobsdk needs: with it all works, and nothing else is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobsdk import compute as computes
from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import following, watches
from jobsdk.compute.kubernetes.compute import KubernetesCompute
from jobsdk.runs.logs import View
from jobsdk.runs.refresh import Pace
from tests.bootstrap.runs import wait_for
from tests.compute.kubernetes.conftest import Configure
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


# -- the rights of node 0's ServiceAccount --------------------------------------------------------------------------

WHAT = "lost machines, by node 0 as ServiceAccount trainer"
USER = "system:serviceaccount:jobs:trainer"


def checked() -> tuple[str, bool, str]:
    """What `jobsdk compute check` says last."""
    *_, check = computes.resolve("cluster").check()
    return check.what, check.is_well, check.found


def test_check_asks_for_the_rights_of_node_0_s_account(server: ApiServer, configure: Configure) -> None:
    configure(server, service_account="trainer", service_account_token=True)
    server.of_accounts[USER] = {"get pods", "patch pods/status"}
    assert checked() == (WHAT, True, "pods of lost machines are replaced while no client follows")
    server.of_accounts[USER] = {"get pods"}
    without = "without the right to patch pods/status a lost machine is not replaced while no client follows"
    assert checked() == (WHAT, True, without)
    server.of_accounts.clear()
    assert checked()[2].startswith("without the right to get pods and patch pods/status a lost")


def test_check_names_the_account_that_pods_have_unless_it_is_set(server: ApiServer, configure: Configure) -> None:
    configure(server, service_account_token=True)
    server.of_accounts["system:serviceaccount:jobs:default"] = {"get pods", "patch pods/status"}
    assert checked()[:2] == (WHAT.replace("trainer", "default"), True)
    assert checked()[2] == "pods of lost machines are replaced while no client follows"


def test_check_says_what_an_administrator_can_run_instead(server: ApiServer, configure: Configure) -> None:
    configure(server, service_account="trainer", service_account_token=True)
    server.forbidden.add("create localsubjectaccessreviews")
    can_i, user = "kubectl auth can-i", f"--as={USER} -n jobs"
    assert checked() == (
        WHAT, True, "not checked without the right to create localsubjectaccessreviews.authorization.k8s.io. An "
        f"administrator can run: {can_i} get pods {user} && {can_i} patch pods --subresource=status {user}",
    )  # fmt: skip


def test_an_account_whose_token_pods_do_not_get_is_not_asked_about(server: ApiServer, configure: Configure) -> None:
    configure(server, service_account="trainer")
    assert checked()[0] == "lost machines"
    assert not any("localsubjectaccessreviews" in one for one in server.requests)

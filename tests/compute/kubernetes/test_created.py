"""What is created with a run beside its own objects: volume claims and the user's objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from jobsdk import compute as computes
from jobsdk.client.run import Run
from jobsdk.errors import ComputeError
from tests.compute.kubernetes import server as servers
from tests.compute.kubernetes.conftest import Configure
from tests.compute.kubernetes.pods import NAME, objects
from tests.compute.kubernetes.server import ApiServer

Submit = Callable[..., Run]

POLICY: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "${{name}}-only"},
    "spec": {"podSelector": {"matchLabels": {"jobsdk/job": "${{name}}"}}},
}  # fmt: skip
MORE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "${{name}}-more"}, "data": {"a": "b"}}
FROZEN = {
    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "${{name}}-frozen"}, "immutable": True, "data": {},
}  # fmt: skip
SETTINGS = {
    "volumes": [{"mount": "/scratch", "size": "1Gi"}, {"mount": "/cache", "size": "1Gi", "per_node": True}],
    "objects": [POLICY, MORE, FROZEN],
}


def test_they_are_created_as_they_are_and_go_with_the_job(server: ApiServer, submit: Submit) -> None:
    submit(SETTINGS)
    owned = {
        ("PersistentVolumeClaim", f"{NAME}-volume-0"), ("NetworkPolicy", f"{NAME}-only"), ("ConfigMap", f"{NAME}-more"),
        ("ConfigMap", f"{NAME}-frozen"),
    }  # fmt: skip
    assert owned <= objects(server)
    job = server.store.get("Job", "jobs", NAME)
    for kind, name in owned:
        (owner,) = server.store.get(kind, "jobs", name)["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Job", job["metadata"]["uid"])
    assert server.store.get("ConfigMap", "jobs", f"{NAME}-more")["data"] == {"a": "b"}
    assert not job["spec"]["suspend"]
    server.delete("Job", "jobs", NAME)
    assert objects(server) == set()


@pytest.mark.parametrize(
    ("settings", "kind", "version"),
    [
        ({"gang": "volcano"}, "PodGroup", "1.34"),
        ({"gang": "coscheduling"}, "PodGroup", "1.34"),
        ({"gang": "workload"}, "PodGroup", "1.37"),
        ({"gang": "workload", "gang_api": "v1alpha1"}, "Workload", "1.35"),
    ],
)
def test_the_group_of_a_gang_is_there_before_its_pods(
    settings: dict[str, Any],
    kind: str,
    version: str,
    server: ApiServer,
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "VERSION", version)
    submit(settings)
    assert (kind, NAME) in objects(server)
    sent = [one for one in server.requests if one.startswith(("POST", "PATCH")) and "dryRun" not in one]
    assert sent[0].startswith("POST /apis/batch/v1/namespaces/jobs/jobs")
    assert "/scheduling." in sent[-2]
    assert sent[-1].startswith("PATCH /apis/batch/v1/namespaces/jobs/jobs")


def test_a_kind_that_the_cluster_does_not_have_is_refused(server: ApiServer, submit: Submit) -> None:
    unknown = {**POLICY, "apiVersion": "nowhere.example/v1", "kind": "Thing"}
    with pytest.raises(ComputeError) as caught:
        submit({"objects": [unknown]})
    assert str(caught.value) == (
        "the cluster has no objects of kind Thing (nowhere.example/v1) in namespaces. "
        "Fix: have an administrator install it, or leave out the setting that creates it"
    )
    assert objects(server) == set()


def test_what_the_server_refuses_leaves_nothing_behind(server: ApiServer, submit: Submit) -> None:
    server.fail("POST .*networkpolicies", 403, "Forbidden")
    with pytest.raises(ComputeError, match="the Kubernetes API answers 403"):
        submit(SETTINGS)
    assert objects(server) == set()


def test_compute_check_asks_for_the_rights_that_they_need(server: ApiServer, configure: Configure) -> None:
    configure(server, **SETTINGS)

    def rights() -> str:
        found: str = next(one.found for one in computes.resolve("cluster").check() if one.what.startswith("rights"))
        return found

    assert rights() == "all that is needed"
    server.forbidden |= {"create networkpolicies", "create persistentvolumeclaims"}
    assert rights() == "may not create networkpolicies, create persistentvolumeclaims"
    asked = [json.loads(one) for one in server.reviews]
    assert {"namespace": "jobs", "verb": "create", "group": "networking.k8s.io", "resource": "networkpolicies"} in asked


def test_compute_check_names_a_kind_that_is_not_installed(server: ApiServer, configure: Configure) -> None:
    configure(server, objects=[{**POLICY, "apiVersion": "nowhere.example/v1", "kind": "Thing"}])
    (failed,) = [one for one in computes.resolve("cluster").check() if not one.is_well]
    assert failed.found == "the cluster has no objects of kind Thing (nowhere.example/v1) in namespaces"
    assert failed.fix.startswith("have an administrator install it")

"""Pods that the cluster does not take: answers and events are recordings of Kubernetes 1.36.2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobsdk import compute as computes
from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import admission
from jobsdk.errors import ComputeError
from tests.compute.kubernetes.conftest import Configure
from tests.compute.kubernetes.pods import NAME, Pods, objects
from tests.compute.kubernetes.server import ApiServer, Object

Submit = Callable[..., Run]


def recorded(name: str) -> Any:
    return json.loads((Path(__file__).parent / "recordings" / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("recording", "words", "fix"),
    [
        ("dryrun-locked", 'violates PodSecurity "restricted:latest": ', "set run_as_user of the compute to a number"),
        ("dryrun-quota", "exceeded quota: q, requested: pods=1", "wait for other jobs, ask for fewer"),
        ("dryrun-missing", "error looking up service account research/nobody", "create the ServiceAccount, or correct"),
    ],
)
def test_a_refused_pod_is_told_before_anything_is_created(
    recording: str, words: str, fix: str, server: ApiServer, submit: Submit
) -> None:
    server.admission = recorded(recording)
    with pytest.raises(ComputeError) as caught:
        submit()
    assert str(caught.value).startswith(f"the cluster refuses the pods of this job: {words}")
    assert f". Fix: {fix}" in str(caught.value)
    assert objects(server) == set()


def test_without_the_right_to_create_pods_the_job_is_submitted(server: ApiServer, submit: Submit) -> None:
    server.admission = recorded("dryrun-forbidden")
    submit()
    assert ("Job", NAME) in objects(server)


def test_a_pod_that_is_admitted_leaves_nothing_behind(server: ApiServer, submit: Submit) -> None:
    submit()
    (tried,) = [one for one in server.requests if "/pods" in one]
    assert tried.startswith("POST ")
    assert "dryRun=All" in tried
    assert server.store.list("Pod", "jobs") == []


CLAIM = {"volumes": [{"mount": "/data", "claim": "datasets"}]}
SECRET = {"image_pull_secrets": ["registry"]}
VARIABLE = {"env": {"TOKEN": {"secret": "hub", "key": "token"}}}
VARIABLES = {"env_from": [{"config_map": "modes"}]}


@pytest.mark.parametrize(
    ("settings", "kind", "name"),
    [
        (CLAIM, "PersistentVolumeClaim", "datasets"),
        (SECRET, "Secret", "registry"),
        (VARIABLE, "Secret", "hub"),
        (VARIABLES, "ConfigMap", "modes"),
    ],
)
def test_what_pods_name_must_exist_where_it_can_be_read(
    settings: Object, kind: str, name: str, server: ApiServer, submit: Submit
) -> None:
    with pytest.raises(ComputeError, match=f"the {kind} {name} does not exist in namespace jobs. Fix: create it, or"):
        submit(settings)
    server.forbidden.add(f"get {kind.lower()}s")
    submit(settings)


def test_a_key_that_pods_name_must_exist(server: ApiServer, submit: Submit) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "data": {"user": "bWU="}}
    server.store.create("jobs", secret)
    with pytest.raises(ComputeError) as caught:
        submit(VARIABLE)
    fix = "Fix: add it, or correct the key in the compute's settings: it has user"
    assert str(caught.value) == f"the Secret hub in namespace jobs has no key token. {fix}"
    assert ("Job", NAME) not in objects(server)


def test_a_run_that_waits_says_what_refuses_its_pods(server: ApiServer, submit: Submit, pods: Pods) -> None:
    """The events of a Job in a namespace with Pod Security, which came again and again with other names of pods."""
    server.admission = recorded("dryrun-forbidden")
    run = submit()
    for event in recorded("events-locked")["items"]:
        mine = {**event["involvedObject"], "name": NAME, "namespace": "jobs"}
        server.store.create("jobs", {**event, "involvedObject": mine})
    run.target.refresh(run.folder)
    run.target.refresh(run.folder)
    (queued,) = [one for one in run.folder.events() if one["event"] == "queued"]
    assert queued["message"].startswith('FailedCreate: violates PodSecurity "restricted:latest": allowPrivilegeEsc')
    assert queued["refused"] is True
    assert run.status == "Queued"


def test_a_second_pod_over_the_quota_is_told_while_the_first_runs(
    server: ApiServer, submit: Submit, pods: Pods
) -> None:
    run = submit()
    pods.runs(0)
    for event in recorded("events-quota")["items"]:
        if event["involvedObject"]["kind"] == "Job":
            mine = {**event["involvedObject"], "name": NAME, "namespace": "jobs"}
            server.store.create("jobs", {**event, "involvedObject": mine})
    run.target.refresh(run.folder)
    assert [one["message"] for one in run.folder.events() if one["event"] == "queued"] == [
        "FailedCreate: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"
    ]


def test_a_volume_that_cannot_be_mounted_is_told(server: ApiServer, submit: Submit, pods: Pods) -> None:
    run = submit()
    names = [pods.add(node) for node in (0, 1)]
    event = {
        "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "FailedMount", "metadata": {"name": "e"},
        "message": 'MountVolume.SetUp failed for volume "data": secret "x" not found',
        "involvedObject": {"kind": "Pod", "name": names[1]}, "lastTimestamp": "2026-11-23T01:44:27Z",
    }  # fmt: skip
    server.store.create("jobs", event)
    run.target.refresh(run.folder)
    assert [one["message"] for one in run.folder.events() if one["event"] == "queued"] == [
        f"FailedMount: {event['message']}"
    ]


def test_without_the_right_to_read_events_they_are_asked_for_once(server: ApiServer, submit: Submit) -> None:
    server.forbidden.add("list events")
    run = submit()
    run.target.refresh(run.folder)
    run.target.refresh(run.folder)
    assert sum("/events" in one for one in server.requests) == 1


def test_no_events_are_read_while_all_pods_run(server: ApiServer, submit: Submit, pods: Pods) -> None:
    run = submit()
    pods.runs(0, 1)
    run.target.refresh(run.folder)
    assert not any("/events" in one for one in server.requests)


def test_compute_check_tries_a_pod(server: ApiServer, configure: Configure) -> None:
    configure(server)

    def tried() -> tuple[bool, str, str]:
        *_, check, _, _ = computes.resolve("cluster").check()
        assert check.what == "admission"
        return check.is_well, check.found, check.fix

    assert tried() == (True, "pods of this compute are admitted (a dry run)", "")
    server.admission = recorded("dryrun-forbidden")
    assert tried()[:2] == (True, "not tried without the right to create pods: refusals show when a run waits")
    server.admission = recorded("dryrun-locked")
    is_well, message, fix = tried()
    assert not is_well
    assert message.startswith("the cluster refuses the pods of this job: violates PodSecurity")
    assert fix.startswith("set run_as_user")


def test_every_fix_is_for_some_words() -> None:
    assert admission.fix_of("something else").startswith("see the compute's settings")

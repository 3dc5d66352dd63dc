"""Init containers that keep a job from its start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import run as kubernetes_run
from tests.compute.kubernetes.pods import NAME, Pods, objects
from tests.compute.kubernetes.server import ApiServer, Object

Submit = Callable[..., Run]


def waits(reason: str, **first: Object) -> Object:
    """The status of a pod whose main container waits for the init container."""
    return {
        "initContainerStatuses": [{"name": "warm", "state": first}],
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": reason}}}],
    }


def ended(code: int, **more: str) -> Object:
    return waits("PodInitializing", terminated={"exitCode": code, "reason": "Error", **more})


def said(run: Run) -> list[str]:
    return [one["message"] for one in run.folder.events() if one["event"] == "queued"]


def test_one_that_fails_ends_the_run_though_other_nodes_run(server: ApiServer, submit: Submit, pods: Pods) -> None:
    run = submit(max_restarts=2)
    pods.runs(0)
    pods.add(1, **{**ended(7, message="no such bucket"), "phase": "Failed"})
    assert (run.status, run.exit_code) == ("Failed", 126)
    words = "the init container warm ended with code 7: no such bucket"
    assert run.report["message"] == f"node 1 (pod {NAME}-1-abcde) cannot start: {words}"
    assert ("Job", NAME) not in objects(server)


def test_one_that_fails_on_all_nodes_is_named(submit: Submit, pods: Pods) -> None:
    run = submit()
    for node in (0, 1):
        pods.add(node, **{**ended(7), "phase": "Failed"})
    assert (run.status, run.exit_code) == ("Failed", 126)
    words = "cannot start: the init container warm ended with code 7"
    assert run.report["message"] == f"node 0 (pod {NAME}-0-abcde) {words}"


@pytest.mark.parametrize("status", [ended(7), ended(0), waits("PodInitializing", running={})])
def test_one_that_is_started_again_or_ended_well_is_waited_for(status: Object, submit: Submit, pods: Pods) -> None:
    run = submit()
    pods.add(0, **status)
    pods.add(1, **status)
    assert run.status == "Queued"
    assert said(run) == []


def test_an_image_that_never_comes_ends_the_run(submit: Submit, pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit()
    pods.add(0, **waits("PodInitializing", waiting={"reason": "ErrImagePull", "message": "not found"}))
    assert run.status == "Queued"
    assert said(run) == ["container warm: ErrImagePull: not found"]
    monkeypatch.setattr(kubernetes_run, "_IMAGE_PATIENCE_S", 0.0)
    assert (run.status, run.exit_code) == ("Failed", 126)
    words = "cannot start: container warm: ErrImagePull: not found"
    assert run.report["message"] == f"node 0 (pod {NAME}-0-abcde) {words}"


def test_a_sidecar_that_is_killed_at_the_end_changes_nothing(submit: Submit, pods: Pods) -> None:
    run = submit()
    pods.runs(0, 1)
    pods.finish()
    killed = [{"name": "proxy", "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}]
    for node in (0, 1):
        pods.ends(node, 0, initContainerStatuses=killed)
    assert (run.status, run.exit_code) == ("Completed", 0)

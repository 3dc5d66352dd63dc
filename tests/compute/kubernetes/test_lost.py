"""Which pods are declared failed: those of nodes that fell silent, when node 0 waits for them, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobsdk import MLClient
from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import run as kubernetes_run
from jobsdk.compute.kubernetes.lost import lives
from tests.compute.kubernetes.pods import NAME, Pods
from tests.compute.kubernetes.server import ApiServer

Event = dict[str, Any]
SILENCE = "node 1 (h) is lost: nothing heard for 15 s"


def joined(*nodes: int) -> list[Event]:
    return [{"event": "node_joined", "node": node, "host": "h", "pid": 1} for node in nodes]


def failed(node: int | None, kind: str | None = "node_lost") -> Event:
    return {"event": "failure", "node": node, "rank": None, "exit_code": 125, "message": SILENCE, "class": kind}


STARTED, RESTART, ENDED = {"event": "started"}, {"event": "restart", "restart": 1}, {"event": "ended"}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([*joined(0, 1), STARTED], {}),
        ([*joined(0, 1), STARTED, failed(1)], {}),  # it may end the job
        ([*joined(0, 1), STARTED, failed(1), RESTART], {1: 0}),
        ([*joined(0, 1), STARTED, failed(1, None), RESTART], {}),  # a rank's own failure
        ([*joined(0, 1), STARTED, failed(1, "preempted"), RESTART], {}),  # the cluster replaces it
        ([*joined(0, 1), STARTED, failed(None), RESTART], {}),
        ([*joined(0, 1, 2), STARTED, failed(1), failed(2), RESTART, *joined(1)], {2: 0}),
        ([*joined(0, 1), STARTED, failed(1), RESTART, *joined(1), STARTED, failed(1), RESTART], {1: 1}),
        ([*joined(0, 1), STARTED, failed(1), RESTART, *joined(1), STARTED], {}),
        ([*joined(0, 1), STARTED, failed(1), RESTART, ENDED], {}),
    ],
)
def test_the_lives_that_are_over(events: list[Event], expected: dict[int, int]) -> None:
    assert lives(events) == expected


@pytest.fixture
def waiting(server: ApiServer, submit: Callable[..., Run], pods: Pods) -> Run:
    """Node 1 fell silent, and node 0 waits for it."""
    run = submit(max_restarts=3)
    pods.runs(0, 1)
    for event in [*joined(0, 1), failed(1), RESTART]:
        pods.event({"t": 1.0, **event})
    return run


def phase(server: ApiServer, node: int) -> str:
    return str(server.store.get("Pod", "jobs", f"{NAME}-{node}-abcde")["status"]["phase"])


def test_a_silent_node_s_pod_fails_as_if_the_cluster_had_said_so(waiting: Run, server: ApiServer) -> None:
    waiting.target.refresh(waiting.folder)
    assert [phase(server, node) for node in (0, 1)] == ["Running", "Failed"]
    status = server.store.get("Pod", "jobs", f"{NAME}-1-abcde")["status"]
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("DisruptionTarget", "True", "NodeLost")
    waiting.target.refresh(waiting.folder)
    assert sum("/status" in one for one in server.requests) == 1


def test_a_new_pod_of_the_node_is_left_alone(waiting: Run, server: ApiServer, pods: Pods) -> None:
    waiting.target.refresh(waiting.folder)
    new = pods.add(1, f"{NAME}-1-fghij")
    pods.state(new, {"running": {}}, phase="Running")
    waiting.target.refresh(waiting.folder)
    assert server.store.get("Pod", "jobs", new)["status"]["phase"] == "Running"


def test_a_new_pod_that_does_not_start_on_the_lost_machine_is_replaced_too(
    waiting: Run, server: ApiServer, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting.target.refresh(waiting.folder)
    new = pods.add(1, f"{NAME}-1-fghij")
    server.store.update("Pod", "jobs", new, lambda one: one["spec"].update(nodeName="machine-7"))
    waiting.target.refresh(waiting.folder)
    assert server.store.get("Pod", "jobs", new)["status"]["phase"] == "Pending"  # it may need a moment
    monkeypatch.setattr(kubernetes_run, "_START_S", -1.0)
    waiting.target.refresh(waiting.folder)
    assert server.store.get("Pod", "jobs", new)["status"]["phase"] == "Failed"
    other = pods.add(1, f"{NAME}-1-klmno")
    server.store.update("Pod", "jobs", other, lambda one: one["spec"].update(nodeName="machine-8"))
    waiting.target.refresh(waiting.folder)
    assert server.store.get("Pod", "jobs", other)["status"]["phase"] == "Pending"


def unready(server: ApiServer, node: int, *, is_ready: bool = True) -> None:
    """The control plane calls a pod not ready; its container last said whether it was."""

    def change(one: dict[str, Any]) -> None:
        one["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        one["status"]["containerStatuses"][0]["ready"] = is_ready

    server.store.update("Pod", "jobs", f"{NAME}-{node}-abcde", change)


def test_node_0_is_lost_when_the_control_plane_says_so(
    submit: Callable[..., Run], server: ApiServer, pods: Pods
) -> None:
    run = submit(max_restarts=3)
    pods.runs(0, 1)
    unready(server, 0)
    run.target.refresh(run.folder)
    assert [phase(server, node) for node in (0, 1)] == ["Failed", "Running"]
    said = [one["message"] for one in run.folder.events() if one["event"] == "queued"]
    assert said[-1] == f"node 0 (machine machine-7) does not answer: its pod {NAME}-0-abcde is replaced"


@pytest.mark.parametrize(("is_ready", "restarts"), [(False, 3), (True, 0)], ids=["its own probe", "no restarts"])
def test_a_pod_that_is_not_ready_is_left_alone(
    submit: Callable[..., Run], server: ApiServer, pods: Pods, is_ready: bool, restarts: int
) -> None:
    run = submit(max_restarts=restarts)
    pods.runs(0, 1)
    unready(server, 0, is_ready=is_ready)
    run.target.refresh(run.folder)
    assert phase(server, 0) == "Running"


def test_without_the_right_it_is_said_what_will_happen(waiting: Run, server: ApiServer) -> None:
    server.forbidden.add("patch pods/status")
    waiting.target.refresh(waiting.folder)
    waiting.target.refresh(waiting.folder)
    assert phase(server, 1) == "Running"
    said = [one["message"] for one in waiting.folder.events() if one["event"] == "warning"]
    (warning,) = [one for one in said if "does not answer" in one]
    assert warning == (
        "node 1 (machine machine-7) does not answer, and its pod is not replaced before the cluster gives it up: "
        "no right to patch pods/status"
    )


# -- another run of the job --------------------------------------------------------------------------------------------


def rerun(run: Run, server: ApiServer, **changes: Any) -> tuple[list[str], list[str]]:
    """Submit it again: what is said, and the machines that its pods keep off."""
    said: list[str] = []
    again = MLClient().jobs.rerun(run, changes, warn=said.append)
    name = again.folder.read_json("kubernetes.json")["name"]
    pod = server.store.get("Job", "jobs", name)["spec"]["template"]["spec"]
    required = pod.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = [one for term in required.get("nodeSelectorTerms", ()) for one in term["matchExpressions"]]
    return said, [machine for one in terms for machine in one["values"]]


def moved(server: ApiServer, node: int, machine: str) -> None:
    server.store.update("Pod", "jobs", f"{NAME}-{node}-abcde", lambda one: one["spec"].update(nodeName=machine))


def test_another_run_of_the_job_keeps_off_the_lost_machine(waiting: Run, server: ApiServer) -> None:
    moved(server, 1, "gpu-7")
    waiting.target.refresh(waiting.folder)
    assert rerun(waiting, server) == ([f"avoids gpu-7, which {waiting.name} lost"], ["gpu-7"])
    key = "resources.properties.kubernetes.avoid_machines"
    assert rerun(waiting, server, **{key: ["gpu-1"]})[1] == ["gpu-1"]


def test_without_a_restart_the_lost_machine_is_known_too(
    submit: Callable[..., Run], server: ApiServer, pods: Pods
) -> None:
    """The pod's replacement, on another machine, joined before anybody looked."""
    run = submit({"avoid_machines": ["gpu-0"]})
    pods.runs(0, 1)
    moved(server, 1, "gpu-7")
    new = pods.add(1, f"{NAME}-1-fghij")
    server.store.update("Pod", "jobs", new, lambda one: one["spec"].update(nodeName="gpu-8"))
    for event in [*joined(0, 1), failed(1), *joined(1)]:
        pods.event({"t": 1.0, **event})
    run.target.refresh(run.folder)
    assert rerun(run, server) == ([f"avoids gpu-7, which {run.name} lost"], ["gpu-0", "gpu-7"])


def test_a_machine_whose_node_only_ended_is_not_avoided(
    submit: Callable[..., Run], server: ApiServer, pods: Pods
) -> None:
    run = submit()
    pods.runs(0, 1)
    killed = {**failed(1), "message": "node 1 (h) is lost: connection closed"}
    for event in [*joined(0, 1), killed]:
        pods.event({"t": 1.0, **event})
    run.target.refresh(run.folder)
    assert rerun(run, server) == ([], [])

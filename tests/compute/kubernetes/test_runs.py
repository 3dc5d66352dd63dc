"""Runs as the API server tells of them: pods are what each test says they are, their logs what a relay would write."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobsdk import MLClient, command
from jobsdk.bootstrap.transport import stdout_relay
from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import objects as made
from jobsdk.compute.kubernetes import pods as pod_states
from jobsdk.compute.kubernetes import run as kubernetes_run
from jobsdk.errors import ComputeError
from tests.compute.kubernetes.conftest import Configure
from tests.compute.kubernetes.pods import NAME, Pods, objects
from tests.compute.kubernetes.server import ApiServer

# -- submitting --------------------------------------------------------------------------------------------------------


def test_what_is_submitted_is_what_was_compiled(server: ApiServer, submit: Callable[..., Run], work: Path) -> None:
    (work / "src").mkdir()
    (work / "src/train.py").write_text("print(1)\n")
    run = submit(code="src", environment_variables={"MY_TOKEN": "swordfish-1234"}, command="python train.py $MY_TOKEN")
    spec = run.folder.read_json("native.json")
    stored = {kind: one for (kind, _, _), one in server.store.objects.items()}
    compiled = {one["kind"]: one for one in spec["objects"]}
    assert stored["Job"]["spec"] == {**compiled["Job"]["spec"], "suspend": False}
    assert stored["Service"]["spec"] == compiled["Service"]["spec"]
    secret = {key: base64.b64decode(value).decode() for key, value in stored["Secret"]["data"].items()}
    assert "swordfish-1234" in secret["secrets.json"]
    assert len(secret["token"]) == 64
    assert "swordfish" not in json.dumps(stored["ConfigMap"]) + json.dumps(stored["Job"])
    owner = stored["Job"]["metadata"]["uid"]
    for kind in ("Service", "Secret"):
        assert stored[kind]["metadata"]["ownerReferences"][0]["uid"] == owner
    (plan,) = (one for (kind, _, name), one in server.store.objects.items() if (kind, name) == ("ConfigMap", NAME))
    packed = base64.b64decode(plan["binaryData"]["code.tar.gz"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert archive.getnames() == ["train.py"]
    assert json.loads(plan["data"]["plan.json"]) == run.folder.plan()


def test_the_bootstrap_is_sent_once(server: ApiServer, configure: Configure) -> None:
    configure(server)
    for _ in range(2):
        MLClient().jobs.create_or_update(command(command="hostname", compute="cluster"))
    shared = [name for kind, _, name in server.store.objects if name.startswith("jobsdk-bootstrap-")]
    assert len(shared) == 1


def test_a_bootstrap_that_is_not_ours_is_said(server: ApiServer, submit: Callable[..., Run]) -> None:
    name = made.bootstrap_name()
    server.store.create("jobs", {"kind": "ConfigMap", "metadata": {"name": name}, "immutable": True})
    with pytest.raises(ComputeError, match=f"does not hold.* Fix: kubectl delete configmap {name} --namespace jobs"):
        submit()
    assert objects(server) == set()
    server.forbidden.add("get configmaps")
    submit()


@pytest.mark.parametrize("kind", ["secrets", "services", "configmaps"])
def test_what_fails_half_way_leaves_nothing(kind: str, server: ApiServer, submit: Callable[..., Run]) -> None:
    server.fail(f"^POST .*/{kind}[?]", 500)
    with pytest.raises(ComputeError, match="answers 500"):
        submit()
    assert objects(server) == set()
    assert MLClient().jobs.list() == []


def test_a_name_that_is_taken_is_said(server: ApiServer, submit: Callable[..., Run]) -> None:
    server.store.create("jobs", {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": NAME}, "spec": {}})
    with pytest.raises(ComputeError, match=r'answers 409: jobs "able-acorn-1234567890" already exists\. Fix: give'):
        submit()
    assert ("Job", NAME) in objects(server)


def test_what_the_server_does_not_take_is_said(submit: Callable[..., Run]) -> None:
    with pytest.raises(ComputeError, match=r"answers 422: .*nonsense.* Fix: see the compute's settings, its patches"):
        submit({"patches": [{"kind": "Job", "patch": {"spec": {"nonsense": 1}}}]})


def test_a_queue_starts_the_job_itself(server: ApiServer, submit: Callable[..., Run], pods: Pods) -> None:
    run = submit({"queue": "team"})
    assert server.store.get("Job", "jobs", NAME)["spec"]["suspend"] is True
    assert run.status == "Queued"
    assert [one["message"] for one in run.folder.events() if one["event"] == "queued"] == [
        "waits in the Kueue queue team"
    ]


# -- following ---------------------------------------------------------------------------------------------------------


def test_logs_events_and_report_come_here_once(submit: Callable[..., Run], pods: Pods) -> None:
    run = submit()
    assert run.status == "Queued"
    pods.runs(0, 1)
    pods.writes(0, stdout_relay.EVENTS, b'{"t":1.5,"event":"started"}\n')
    assert run.status == "Running"
    pods.writes(0, "rank-0", b"one\ntwo\r")
    pods.writes(1, "rank-1", b"\xff\n" * 1000)
    assert run.status == run.status == "Running"
    pods.writes(0, "rank-0", b"three\n", 8)
    pods.writes(0, stdout_relay.REPORT, b'{"status":"Completed","exit_code":0,"message":"fine","ended":5.0}\n')
    pods.writes(
        0, stdout_relay.EVENTS, b'{"t":5.0,"event":"ended","status":"Completed","exit_code":0,"message":"fine"}\n', 28
    )
    assert run.status == "Running", "node 1 may have more to say"
    pods.writes(1, "rank-1", b"last\n", 2000)
    pods.ends(0, 0)
    pods.ends(1, 0)
    assert (run.status, run.exit_code, run.report["message"]) == ("Completed", 0, "fine")
    assert (run.folder.logs / "node-0/rank-0.log").read_bytes() == b"one\ntwo\rthree\n"
    assert (run.folder.logs / "node-1/rank-1.log").read_bytes() == b"\xff\n" * 1000 + b"last\n"
    kinds = [one["event"] for one in run.folder.events()]
    assert [kind for kind in kinds if kind in ("allocated", "started", "ended")] == [
        "allocated",
        "allocated",
        "started",
        "ended",
    ]


def test_only_what_is_new_is_asked_for(server: ApiServer, submit: Callable[..., Run], pods: Pods) -> None:
    run = submit(instance_count=1)
    pods.runs(0)
    pods.writes(0, "rank-0", b"line\n" * 300)
    assert run.status == "Queued"
    server.requests.clear()
    assert run.status == "Queued"
    (asked,) = (one for one in server.requests if "/log" in one)
    assert "sinceTime=2026-01-02T03%3A01%3A40Z" in asked


def test_the_end_does_not_wait_for_ever_for_a_node_that_is_silent(
    server: ApiServer, submit: Callable[..., Run], pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit()
    pods.runs(0, 1)
    pods.writes(1, "rank-1", b"so far\n")
    pods.finish()
    assert run.status == "Queued"
    monkeypatch.setattr(kubernetes_run, "_PATIENCE_S", 0.0)
    assert run.status == "Completed"
    assert (run.folder.logs / "node-1/rank-1.log").read_bytes() == b"so far\n"
    assert ("Job", NAME) not in objects(server), "what still runs is ended"


def test_last_lines_that_come_after_the_end_of_their_container_are_read(submit: Callable[..., Run], pods: Pods) -> None:
    run = submit()
    pods.runs(0, 1)
    pods.writes(1, "rank-1", b"one\n")
    late = pods.late(0, 1)
    pods.writes(1, "rank-1", b"two\n", 4)
    pods.finish()
    pods.ends(0, 0)
    pods.ends(1, 0)
    assert run.status == "Queued"
    late()
    assert (run.status, run.report["message"]) == ("Completed", "it has ended")
    assert (run.folder.logs / "node-1/rank-1.log").read_bytes() == b"one\ntwo\n"


def test_the_end_does_not_wait_for_a_container_that_was_killed(
    submit: Callable[..., Run], pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit()
    pods.runs(0, 1)
    pods.ends(0, 137)
    pods.ends(1, 137)
    assert run.status == "Queued", "its last lines may be late"
    monkeypatch.setattr(pod_states, "LATE_S", 0.0)
    assert run.status == "Failed"


def test_the_end_of_containers_that_were_killed_long_ago_is_known_at_once(
    submit: Callable[..., Run], pods: Pods
) -> None:
    run = submit(instance_count=1)
    pods.runs(0)
    ended = {"exitCode": 137, "reason": "Error", "finishedAt": "2026-01-02T03:04:05Z"}
    pods.state(f"{NAME}-0-abcde", {"terminated": ended}, phase="Failed")
    assert run.status == "Failed"


def test_a_log_that_breaks_off_is_taken_up_again(server: ApiServer, submit: Callable[..., Run], pods: Pods) -> None:
    run = submit(instance_count=1)
    pods.runs(0)
    pods.writes(0, "rank-0", b"line\n" * 9)
    server.fail("/log", 0)
    assert run.status == "Queued"
    assert not (run.folder.logs / "node-0").exists()
    assert run.status == "Queued"
    assert (run.folder.logs / "node-0/rank-0.log").read_bytes() == b"line\n" * 9


def test_more_pods_than_fit_in_one_answer(server: ApiServer, submit: Callable[..., Run], pods: Pods) -> None:
    run = submit(instance_count=5)
    server.page = 2
    pods.runs(*range(5))
    for node in range(5):
        pods.writes(node, f"rank-{node}", b"here\n")
    server.fail("continue=", 410, "Expired")
    run.logs()
    assert len(list(run.folder.logs.glob("node-*/rank-*.log"))) == 5


def test_the_secret_goes_when_the_run_has_ended(server: ApiServer, submit: Callable[..., Run], pods: Pods) -> None:
    run = submit(instance_count=1, environment_variables={"MY_TOKEN": "swordfish-1234"})
    assert not (run.folder.path / "secrets.json").exists()
    pods.runs(0)
    pods.finish()
    pods.ends(0, 0)
    assert run.status == "Completed"
    assert ("Secret", NAME) not in objects(server)
    assert ("Job", NAME) in objects(server)


def test_a_run_that_kueue_has_ended_does_not_start_again(
    server: ApiServer, submit: Callable[..., Run], pods: Pods
) -> None:
    run = submit({"queue": "team"}, instance_count=1)
    server.store.update("Job", "jobs", NAME, lambda one: one["spec"].update(suspend=False))
    pods.runs(0)
    assert run.status == "Queued"
    pods.finish("Preempted", 143)
    server.store.update("Job", "jobs", NAME, lambda one: one["spec"].update(suspend=True))
    pods.ends(0, 143)
    assert run.status == "Preempted"
    assert objects(server) == {("Pod", f"{NAME}-0-abcde")}  # the test's own, which nobody owns


def test_a_pod_that_comes_back_has_the_same_node(server: ApiServer, submit: Callable[..., Run], pods: Pods) -> None:
    run = submit(instance_count=1, max_preemptions=1)
    pods.runs(0)
    pods.writes(0, stdout_relay.EVENTS, b'{"t":1.5,"event":"bootstrap_up","life":0}\n')
    assert run.status == "Starting"
    server.store.delete("Pod", "jobs", f"{NAME}-0-abcde")
    assert run.status == "Starting"
    pods.runs(0)
    server.store.delete("Pod", "jobs", f"{NAME}-0-abcde")
    again = pods.add(0, f"{NAME}-0-fghij")
    pods._logs[again] = b'2026-01-02T04:00:00Z stdout F events:0| {"t":2.5,"event":"bootstrap_up","life":1}\n'
    pods.state(again, {"running": {}}, phase="Running")
    assert run.status == "Starting"
    assert [one["life"] for one in run.folder.events() if one["event"] == "bootstrap_up"] == [0, 1]


# -- what only the cluster knows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                             "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}]},
            "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        ),
        (
            {"containerStatuses": [{"name": "main", "state": {"waiting": {
                "reason": "ImagePullBackOff", "message": "Back-off pulling image"}}}]},
            "ImagePullBackOff: Back-off pulling image",
        ),
        (
            {"containerStatuses": [{"name": "main", "state": {"waiting": {
                "reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}}]},
            'CreateContainerConfigError: secret "x" not found',
        ),
    ],
)  # fmt: skip
def test_why_a_pod_does_not_start_is_said_once(
    status: dict[str, Any], message: str, submit: Callable[..., Run], pods: Pods
) -> None:
    run = submit()
    pods.add(0, **status)
    pods.add(1, **status)
    assert run.status == run.status == "Queued"
    said = [(one["message"], one["nodes"]) for one in run.folder.events() if one["event"] == "queued"]
    assert said == [(message, [0, 1])]


def test_an_image_that_never_comes_ends_the_run(
    server: ApiServer, submit: Callable[..., Run], pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit()
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    pods.add(1, containerStatuses=[{"name": "main", "state": {"waiting": waiting}}])
    assert run.status == "Queued"
    monkeypatch.setattr(kubernetes_run, "_IMAGE_PATIENCE_S", 0.0)
    assert (run.status, run.exit_code) == ("Failed", 126)
    assert run.report["message"] == f"node 1 (pod {NAME}-1-abcde) cannot start: ErrImagePull: not found"
    assert objects(server) == {("Pod", f"{NAME}-1-abcde")}


def test_a_name_that_is_no_image_ends_the_run_at_once(submit: Callable[..., Run], pods: Pods) -> None:
    run = submit()
    pods.add(0, containerStatuses=[{"name": "main", "state": {"waiting": {"reason": "InvalidImageName"}}}])
    assert run.status == "Failed"


TAKEN = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempting for x"}


@pytest.mark.parametrize(
    ("reason", "code", "status", "end", "message"),
    [
        (
            "OOMKilled",
            137,
            {},
            ("Failed", 137, "out_of_memory"),
            "was killed: it used more memory than its limit of 8Gi",
        ),
        ("", 137, {"reason": "Evicted", "message": "low on disk"}, ("Preempted", 143, "preempted"), "low on disk"),
        ("", 143, {"conditions": [TAKEN]}, ("Preempted", 143, "preempted"), "was taken away: preempting for x"),
        ("", 143, {"reason": "DeadlineExceeded"}, ("TimedOut", 124, "timeout"), "ended by its activeDeadlineSeconds"),
        ("", 255, {"reason": "NodeLost"}, ("Lost", 125, "node_lost"), "was lost: NodeLost"),
        ("", 127, {}, ("Failed", 127, "bootstrap_error"), "ended with code 127: exec: python3: not found"),
    ],
)
def test_an_end_without_a_word_of_node_0(
    reason: str, code: int, status: dict[str, Any], end: tuple[str, int, str], message: str,
    submit: Callable[..., Run], pods: Pods, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(pod_states, "LATE_S", 0.0)
    run = submit()
    pods.runs(0, 1)
    pods._logs[f"{NAME}-1-abcde"] = b"2026-01-02T03:00:00Z stderr F exec: python3: not found\n"
    pods.ends(0, 125)
    pods.ends(1, code, reason, **status)
    if code == 127:
        pods._logs[f"{NAME}-0-abcde"] = pods._logs[f"{NAME}-1-abcde"]
        pods.ends(0, 127)
    assert (run.status, run.exit_code, run.report["cause"]["class"]) == end
    assert message in run.report["message"]


def test_a_pod_that_is_evicted_before_it_starts(submit: Callable[..., Run], pods: Pods) -> None:
    run = submit()
    pods.runs(0)
    pods.add(1, phase="Failed", reason="Evicted", message="low on memory")
    assert run.status == "Queued", "node 0 has still a say"
    pods.finish("Lost", 125, **{"node": 1, "rank": None, "class": "never_started"})
    pods.ends(0, 125)
    assert (run.status, run.exit_code) == ("Preempted", 143)
    assert run.report["message"] == f"node 1 (pod {NAME}-1-abcde) was taken away: low on memory"


def test_node_0_only_knows_that_a_node_is_lost_and_the_cluster_why(
    submit: Callable[..., Run], pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_states, "LATE_S", 0.0)
    run = submit()
    pods.runs(0, 1)
    pods.finish("Lost", 125, **{"node": 1, "rank": None, "class": "node_lost"})
    pods.ends(0, 125)
    pods.ends(1, 137, "OOMKilled")
    assert (run.status, run.exit_code, run.report["cause"]["class"]) == ("Failed", 137, "out_of_memory")
    assert "node 1" in run.report["message"]


def test_a_failure_of_the_ranks_own_stays_what_it_is(submit: Callable[..., Run], pods: Pods) -> None:
    run = submit()
    pods.runs(0, 1)
    pods.finish("Failed", 7, **{"node": 1, "rank": 1, "class": "exit_code"})
    pods.ends(0, 7)
    pods.ends(1, 7, "OOMKilled")
    assert (run.status, run.exit_code, run.report["message"]) == ("Failed", 7, "it has ended")


def test_a_job_that_somebody_deleted_is_lost(server: ApiServer, submit: Callable[..., Run]) -> None:
    run = submit()
    server.store.delete("Job", "jobs", NAME)
    assert (run.status, run.exit_code) == ("Lost", 125)
    assert f"the Job {NAME} is gone: somebody deleted it" in run.report["message"]


def test_cancel_deletes_the_job_and_all_that_it_owns(server: ApiServer, submit: Callable[..., Run], pods: Pods) -> None:
    run = submit()
    pods.runs(0, 1)
    pods.writes(0, "rank-0", b"so far\n")
    run.cancel()
    assert not {kind for kind, _ in objects(server)} - {"Pod"}
    assert (run.folder.logs / "node-0/rank-0.log").read_text() == "so far\n"
    pods.finish("Preempted", 143, **{"node": 0, "rank": None, "class": "preempted"})
    pods.ends(0, 143)
    pods.ends(1, 143)
    assert (run.status, run.exit_code, run.report["cause"]) == ("Canceled", 130, None)
    run.cancel()
    assert run.status == "Canceled"


def test_cancel_of_a_job_that_waits(submit: Callable[..., Run]) -> None:
    assert submit({"queue": "team"}).cancel().status == "Canceled"


@pytest.mark.parametrize("reason", ["BackoffLimitExceeded", "DeadlineExceeded"])
def test_a_job_that_failed_without_pods(
    reason: str, server: ApiServer, submit: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_run, "_PATIENCE_S", 0.0)
    run = submit()
    failed = {"type": "Failed", "status": "True", "reason": reason, "message": "why"}
    server.store.update("Job", "jobs", NAME, lambda one: one.update(status={"conditions": [failed]}))
    assert run.status == "Queued"
    assert run.status == ("TimedOut" if reason == "DeadlineExceeded" else "Failed")
    assert run.report["message"] == f"the Job failed: {reason}: why"


# -- a server that cannot be asked -------------------------------------------------------------------------------------


def test_a_run_is_as_it_was_while_the_server_cannot_be_asked(server: ApiServer, submit: Callable[..., Run]) -> None:
    run = submit()
    server.fail("^GET", 503, "ServiceUnavailable", times=1)
    assert run.status == "Queued"
    server.fail("^GET", 0, times=1)
    with pytest.raises(ComputeError, match=f"the Kubernetes API at {server.url} cannot be reached: .* Fix: see that"):
        run.logs()


def test_a_busy_server_is_asked_again(server: ApiServer, submit: Callable[..., Run]) -> None:
    server.fail("^POST .*/jobs[?]", 429, "TooManyRequests", times=1)
    run = submit()
    server.requests.clear()
    server.fail(f"^GET .*/jobs/{NAME}", 429, "TooManyRequests", times=1)
    run.target.refresh(run.folder)
    assert sum(f"/jobs/{NAME}" in one for one in server.requests) == 2


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda server, configure, home: configure(server, token="wrong"), "answers 401: Unauthorized. Fix: log in"),
        (lambda server, configure, home: server.forbidden.add("create jobs"),
         'User "tester" cannot create resource "jobs" in the namespace "jobs". Fix: have'),
        (lambda server, configure, home: configure(server, context="other"), "Context 'other' not found. Fix: set"),
        (lambda server, configure, home: (home / "kubeconfig").unlink(), "Configuration file"),
        (lambda server, configure, home: (home / "kubeconfig").write_text("{"), "no usable Kubernetes configuration"),
        (lambda server, configure, home: (home / "kubeconfig").write_text(""), "no usable Kubernetes configuration"),
    ],
    ids=["401", "403", "context", "no-file", "nonsense", "empty"],
)  # fmt: skip
def test_why_nothing_can_be_submitted(
    break_it: Callable[..., Any], message: str, server: ApiServer, configure: Configure, home: Path
) -> None:
    configure(server)
    break_it(server, configure, home)
    with pytest.raises(ComputeError) as caught:
        MLClient().jobs.create_or_update(command(command="hostname", compute="cluster"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert MLClient().jobs.list() == []


def test_several_kubeconfigs_are_refused_with_a_way_out(
    server: ApiServer, configure: Configure, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(server)
    monkeypatch.setenv("KUBECONFIG", f"{home / 'kubeconfig'}:{home / 'other'}")
    with pytest.raises(ComputeError, match="names several files, of which `kubectl config view --flatten` makes one"):
        MLClient().jobs.create_or_update(command(command="hostname", compute="cluster"))


def test_check_names_the_rights_that_are_missing(server: ApiServer, configure: Configure) -> None:
    from jobsdk import compute as computes

    configure(server)
    assert [one.is_well for one in computes.resolve("cluster").check()] == [True] * 5
    server.forbidden |= {"create secrets", "get pods/log"}
    _, rights, *_ = computes.resolve("cluster").check()
    assert (rights.is_well, rights.found) == (False, "may not create secrets, get pods/log")
    server.missing.add("jobs")
    _, namespace = computes.resolve("cluster").check()
    assert (namespace.is_well, namespace.what) == (False, "namespace jobs")
    configure(server, token="wrong")
    (reached,) = computes.resolve("cluster").check()
    assert (reached.is_well, reached.fix[:12]) == (False, "log in again")

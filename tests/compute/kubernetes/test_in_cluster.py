"""jobsdk in a pod: the ServiceAccount's token and CA, over TLS, without a kubeconfig."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from jobsdk import MLClient, command
from jobsdk import compute as computes
from jobsdk.bootstrap.agent.lost_pods import LostPods
from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import api, following, watches
from jobsdk.compute.kubernetes.compute import KubernetesCompute
from jobsdk.errors import ComputeError
from jobsdk.runs.logs import View
from jobsdk.runs.refresh import Pace
from tests import engines
from tests.bootstrap.runs import events_in, wait_for
from tests.compute.kubernetes.conftest import write_computes
from tests.compute.kubernetes.pods import NAME, RUN, Pods, objects
from tests.compute.kubernetes.server import ApiServer


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(ca: trustme.CA) -> Iterator[ApiServer]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(tls)
    with ApiServer(tls) as one:
        yield one


@pytest.fixture
def account(secure: ApiServer, ca: trustme.CA, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that a kubelet puts into a pod; the variables as well."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text(ApiServer.TOKEN)
    (folder / "namespace").write_text("jobs")
    ca.cert_pem.write_to_path(str(folder / "ca.crt"))
    monkeypatch.setattr(api, "_SERVICE_ACCOUNT", folder)
    monkeypatch.setattr(KubernetesCompute, "pace", Pace(0.05, 0.2))
    monkeypatch.setattr(watches, "_SHORTEST_S", 0.05)
    monkeypatch.setattr(following, "_AGAIN_S", 0.05)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    _, _, address = secure.url.partition("://")
    host, port = address.split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    write_computes(home, {"type": "kubernetes", "image": engines.IMAGE})
    return folder


def submit() -> Run:
    return MLClient().jobs.create_or_update(command(command="hostname", compute="cluster"), name=RUN)


def test_a_job_is_submitted_and_followed_with_the_pod_s_own_token(account: Path, secure: ApiServer) -> None:
    pods, run = Pods(secure), submit()
    assert run.folder.read_json("kubernetes.json") | {"name": "", "kind": ""} == {
        "context": None, "namespace": "jobs", "server": secure.url, "name": "", "kind": "",
    }  # fmt: skip
    pods.runs(0)
    with run.target.following(run.folder, View()):
        pods.writes(0, "rank-0", b"one\n")
        wait_for((run.folder.logs / "node-0/rank-0.log").exists)
        pods.finish()
        pods.ends(0, 0)
        wait_for(lambda: run.folder.recorded_state().is_terminal)
    assert run.status == "Completed"


def test_a_token_that_rotates_is_read_again(account: Path, secure: ApiServer) -> None:
    pods, run = Pods(secure), submit()
    pods.runs(0)
    with run.target.following(run.folder, View()) as check:
        pods.writes(0, "rank-0", b"one\n")
        log = run.folder.logs / "node-0/rank-0.log"
        wait_for(log.exists)
        (account / "token").write_text("the-next")
        secure.token = "the-next"
        secure.hang_up()
        pods.writes(0, "rank-0", b"two\n", 4)
        wait_for(lambda: log.read_bytes() == b"one\ntwo\n")
        check()
    run.cancel()
    assert ("Job", "able-acorn-1234567890") not in objects(secure)


def test_a_server_that_the_ca_does_not_know_is_refused(account: Path, secure: ApiServer) -> None:
    trustme.CA().cert_pem.write_to_path(str(account / "ca.crt"))
    with pytest.raises(ComputeError, match=r"cannot be reached: .*certificate verify failed"):
        submit()


def test_a_pod_without_a_token_gets_the_fix(account: Path) -> None:
    (account / "token").unlink()
    with pytest.raises(ComputeError, match=r"Configuration file .* Fix: .*in a pod, mount its ServiceAccount's token"):
        submit()


@pytest.fixture
def lost(account: Path, secure: ApiServer, tmp_path: Path) -> LostPods:
    """What node 0 has in its pod; node 1 ran in the first pod of its index."""
    pods = Pods(secure)
    pods.runs(0, 1)
    return LostPods(str(tmp_path), {1: f"{NAME}-1-abcde", 2: "gone"}.get, str(account))


def status(server: ApiServer) -> dict[str, Any]:
    found: dict[str, Any] = server.store.get("Pod", "jobs", f"{NAME}-1-abcde")["status"]
    return found


def test_node_0_declares_a_lost_pod_failed_by_itself(lost: LostPods, secure: ApiServer, tmp_path: Path) -> None:
    ready = {"type": "Ready", "status": "False"}
    secure.store.update("Pod", "jobs", f"{NAME}-1-abcde", lambda one: one["status"].update(conditions=[ready]))
    lost.replace(1)
    wait_for(lambda: events_in(tmp_path))
    kept, added = status(secure)["conditions"]
    assert (status(secure)["phase"], kept, added["type"]) == ("Failed", ready, "DisruptionTarget")
    (event,) = events_in(tmp_path)
    assert event["message"] == f"node 1 does not answer: its pod {NAME}-1-abcde is replaced"


@pytest.mark.parametrize("change", [{"metadata": {"deletionTimestamp": "t"}}, {"status": {"phase": "Succeeded"}}])
def test_a_pod_that_ends_by_itself_is_left_alone(
    lost: LostPods, secure: ApiServer, tmp_path: Path, change: dict[str, dict[str, str]]
) -> None:
    for part, fields in change.items():
        secure.store.update("Pod", "jobs", f"{NAME}-1-abcde", lambda one, p=part, f=fields: one[p].update(f))
    lost.declare(1, f"{NAME}-1-abcde")
    lost.declare(2, "gone")
    lost.replace(3)  # has never joined
    assert "conditions" not in status(secure)
    assert events_in(tmp_path) == []


def test_what_keeps_node_0_from_it_is_a_warning(lost: LostPods, secure: ApiServer, tmp_path: Path) -> None:
    secure.forbidden.add("patch pods/status")
    lost.declare(1, f"{NAME}-1-abcde")
    (event,) = events_in(tmp_path)
    assert event["event"] == "warning"
    assert event["message"].startswith(f"node 1 does not answer, and its pod {NAME}-1-abcde is not replaced: pods is f")


def test_a_pod_has_its_name_where_it_may_need_it(account: Path, secure: ApiServer, home: Path) -> None:
    write_computes(home, {"type": "kubernetes", "image": engines.IMAGE, "service_account_token": True})
    for restarts, expected in ((1, "metadata.name"), (0, None)):
        job = command(command="true", compute="cluster", instance_count=2, max_restarts=restarts)
        (pod,) = [one for one in MLClient().jobs.compile(job).spec["objects"] if one["kind"] == "Job"]
        env = {one["name"]: one for one in pod["spec"]["template"]["spec"]["containers"][0]["env"]}
        found = env.get("JOBSDK_POD", {}).get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        assert found == expected


def test_check_asks_with_that_token(account: Path, secure: ApiServer) -> None:
    found = computes.resolve("cluster").check()
    assert [one.is_well for one in found] == [True] * 5
    assert found[0].found.startswith(secure.url)

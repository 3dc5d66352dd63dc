"""jobsdk in a pod: the ServiceAccount's token and CA, over TLS, without a kubeconfig."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from jobsdk import MLClient, command
from jobsdk import compute as computes
from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import api, following, watches
from jobsdk.compute.kubernetes.compute import KubernetesCompute
from jobsdk.errors import ComputeError
from jobsdk.runs.logs import View
from jobsdk.runs.refresh import Pace
from tests import engines
from tests.bootstrap.runs import wait_for
from tests.compute.kubernetes.conftest import write_computes
from tests.compute.kubernetes.pods import RUN, Pods, objects
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


def test_check_asks_with_that_token(account: Path, secure: ApiServer) -> None:
    found = computes.resolve("cluster").check()
    assert [one.is_well for one in found] == [True] * 5
    assert found[0].found.startswith(secure.url)

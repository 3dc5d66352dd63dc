from __future__ import annotations

import socket

import pytest

from jobsdk.bootstrap.detect import kubernetes, place, registry
from jobsdk.bootstrap.detect.place import NodeIdentity

CONTROL = "job-0.job 29871,29872"


def test_a_pod_of_an_indexed_job() -> None:
    environment = {"JOB_COMPLETION_INDEX": "3", "JOBSDK_CONTROL": CONTROL}
    assert registry.detect(environment) == NodeIdentity(3, ["job-0.job"], [29871, 29872])


@pytest.mark.parametrize(
    ("own", "index", "first"),
    [
        ("job-3", "3", "job-0"),
        ("job-12.job.jobs.svc.cluster.local", "12", "job-0.job.jobs.svc.cluster.local"),
        ("set-node-0-1.set.jobs.svc.cluster.local", "1", "set-node-0-0.set.jobs.svc.cluster.local"),
        ("job-13", "3", None),
        ("machine", "3", None),
    ],
)
def test_node_0_by_the_pods_own_name(own: str, index: str, first: str | None) -> None:
    assert kubernetes.node_0(own, index) == first


def test_without_a_word_of_where_node_0_is_the_names_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "job-7.job.jobs.svc")
    assert registry.detect({"JOB_COMPLETION_INDEX": "7"}) == NodeIdentity(
        7, ["job-0.job.jobs.svc"], list(kubernetes.PORTS)
    )
    with pytest.raises(place.NotDetected, match="does not end with its index 8; give the pods a subdomain"):
        registry.detect({"JOB_COMPLETION_INDEX": "8"})


@pytest.mark.parametrize(
    "environment",
    [{"JOB_COMPLETION_INDEX": "x"}, {"JOB_COMPLETION_INDEX": "1", "JOBSDK_CONTROL": "nonsense"}],
)
def test_nonsense_is_said(environment: dict[str, str]) -> None:
    with pytest.raises(place.NotDetected, match=list(environment)[-1]):
        registry.detect(environment)

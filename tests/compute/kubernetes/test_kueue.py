"""Why Kueue lets a job wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobsdk.client.run import Run
from tests.compute.kubernetes.pods import NAME
from tests.compute.kubernetes.server import ApiServer

Submit = Callable[..., Run]

#: As Kueue words them.
NO_QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default, 3 more needed"
PREEMPTED = "Preempted to accommodate a workload (UID: 7, JobUID: 8) due to prioritization in the ClusterQueue"


def condition(kind: str, status: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "Pending", "message": message}


@pytest.fixture
def run(submit: Submit) -> Run:
    return submit({"queue": "team"})


def said(run: Run) -> list[str]:
    run.target.refresh(run.folder)
    return [one["message"] for one in run.folder.events() if one["event"] == "queued"]


def workload(server: ApiServer, uid: str, *conditions: dict[str, str]) -> None:
    labels = {"kueue.x-k8s.io/job-uid": uid}
    one = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": uid, "labels": labels}}
    server.store.create("jobs", {**one, "status": {"conditions": list(conditions)}})


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([], "waits in the Kueue queue team"),
        ([condition("QuotaReserved", "False", NO_QUOTA)], f"waits in the Kueue queue team: {NO_QUOTA}"),
        (
            [
                condition("QuotaReserved", "True", "Quota reserved"),
                condition("Admitted", "False", "checks are pending"),
            ],
            "waits in the Kueue queue team: checks are pending",
        ),
        (
            [condition("QuotaReserved", "False", NO_QUOTA), condition("Evicted", "True", PREEMPTED)],
            f"waits in the Kueue queue team: {PREEMPTED}; {NO_QUOTA}",
        ),
        (
            [condition("QuotaReserved", "False", PREEMPTED), condition("Evicted", "True", PREEMPTED)],
            f"waits in the Kueue queue team: {PREEMPTED}",
        ),
        (
            [condition("QuotaReserved", "False", NO_QUOTA), condition("Evicted", "False", "Previously: x")],
            f"waits in the Kueue queue team: {NO_QUOTA}",
        ),
    ],
)
def test_its_words_are_the_message(conditions: list[dict[str, str]], message: str, run: Run, server: ApiServer) -> None:
    workload(server, server.store.get("Job", "jobs", NAME)["metadata"]["uid"], *conditions)
    workload(server, "another", condition("QuotaReserved", "False", "of another job"))
    assert said(run) == [message]
    assert said(run) == [message]


def test_without_the_right_to_read_them_it_waits(run: Run, server: ApiServer) -> None:
    server.forbidden.add("list workloads")
    assert said(run) == ["waits in the Kueue queue team"]

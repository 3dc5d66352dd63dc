"""The Role in docs/kubernetes.md is the smallest, and so is what its table adds for each setting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from jobsdk import MLClient, command
from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import run as kubernetes_run
from jobsdk.runs.logs import View
from tests.bootstrap.runs import wait_for
from tests.compute.kubernetes import server as servers
from tests.compute.kubernetes.pods import NAME, Pods
from tests.compute.kubernetes.server import ApiServer
from tests.compute.kubernetes.test_lost import RESTART, failed, joined
from tests.compute.kubernetes.test_settings import CASES
from tests.docs.snippets import ROOT

Right = tuple[str, str, str]  # (verb, API group, resource)
PAGE = (ROOT / "docs/kubernetes.md").read_text().partition("\n## Rights\n")[2].partition("\n## ")[0]

#: What pods name in some settings.
NAMED: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "data": {"token": "eA=="}},
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "modes"}, "data": {"mode": "x"}},
    {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "datasets"}},
]
#: case of test_settings -> row of the table
ROWS = {
    "gang-coscheduling": "gang: coscheduling",
    "gang-volcano": "gang: volcano",
    "gang-workload": "gang: workload",
    "gang-workload-1.35": "gang_api: v1alpha1",
    "gang-workload-1.36": "gang: workload",
    "kueue": "queue",
    "kueue-slices": "queue",
    "volumes": "volumes",
}


def rights(rules: list[dict[str, list[str]]]) -> set[Right]:
    return {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def role() -> set[Right]:
    """What the Role has."""
    found = re.search("```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return rights(yaml.safe_load(found[1])["rules"])


def table() -> Iterator[tuple[str, set[Right]]]:
    """(setting, what it needs beyond the Role)"""
    for setting, rule in re.findall(r"^\| `([^`]+)`[^|]*\| `(\{.*?\})`", PAGE, re.MULTILINE):
        yield setting, rights([yaml.safe_load(rule)])


@pytest.fixture
def live(
    server: ApiServer, submit: Callable[..., Run], pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Any]], set[Right]]:
    """Go through all that happens to runs with such settings: what was asked for."""

    def run(settings: dict[str, Any]) -> set[Right]:
        kind = "JobSet" if settings.get("jobset") else "Job"
        for one in NAMED:
            server.store.create("jobs", one)
        first = submit(settings, max_restarts=3)
        first.target.refresh(first.folder)  # while it waits in a queue, if it has one
        server.store.update(kind, "jobs", NAME, lambda one: one["spec"].update(suspend=False))  # as Kueue does
        first.target.refresh(first.folder)  # without pods
        pods.runs(0, 1)
        for event in [*joined(0, 1), failed(1), RESTART]:
            pods.event({"t": 1.0, **event})
        first.target.refresh(first.folder)  # with a lost machine
        with first.target.following(first.folder, View()):
            wait_for(lambda: sum(verb == "watch" for verb, _, _ in server.used) == 2)
        monkeypatch.setattr(kubernetes_run, "_PATIENCE_S", 0.0)
        pods.event({"t": 5.0, "event": "ended", "status": "Completed", "exit_code": 0, "message": "it has ended"})
        pods.finish()
        first.target.refresh(first.folder)
        first.target.refresh(first.folder)
        assert first.status == "Completed"
        job = command(compute="cluster", command="hostname", instance_count=2)
        MLClient().jobs.create_or_update(job, name="second").cancel()
        return server.used

    return run


def test_runs_need_all_of_the_role_and_no_more(live: Callable[[dict[str, Any]], set[Right]]) -> None:
    used = live({"env_from": [{"secret": "hub"}], "volumes": [{"mount": "/data", "claim": "datasets"}]})
    assert used == {right for right in role() if right[2] != "jobsets"}


def test_a_jobset_needs_its_own_rights_instead(live: Callable[[dict[str, Any]], set[Right]]) -> None:
    unneeded = {("get", "", "secrets"), ("get", "", "persistentvolumeclaims")}  # only where pods name some
    assert live({"jobset": True}) == {right for right in role() if right[2] not in ("jobs", "services")} - unneeded


@pytest.mark.parametrize("name", CASES)
def test_a_setting_needs_what_its_row_lists(
    name: str, live: Callable[[dict[str, Any]], set[Right]], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    monkeypatch.setattr(servers, "VERSION", case.versions[-1])
    further = live(case.settings) - role()
    if name == "objects":
        assert further == {("create", "networking.k8s.io", "networkpolicies")}
    else:
        assert further == (dict(table())[ROWS[name]] if name in ROWS else set())


def test_every_row_is_tested() -> None:
    assert {setting for setting, _ in table()} == set(ROWS.values())

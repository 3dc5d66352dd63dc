"""Machines that pods keep off."""

from __future__ import annotations

from typing import Any

import pytest

from jobsdk.compute.kubernetes import placing

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def terms(affinity: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return found


def test_every_alternative_avoids_a_machine() -> None:
    fast, large = ({"key": key, "operator": "Exists"} for key in ("fast", "large"))
    either = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [one]} for one in (fast, large)]}}}
    found = placing.avoid({**either, "podAffinity": {"x": []}}, ["n2", "n1", "n2"])
    avoided = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
    assert terms(found) == [{"matchExpressions": [fast, avoided]}, {"matchExpressions": [large, avoided]}]
    assert found["podAffinity"] == {"x": []}
    assert terms(either) == [{"matchExpressions": [fast]}, {"matchExpressions": [large]}]


def test_an_affinity_without_machines_to_avoid_stays_as_it_is() -> None:
    assert placing.avoid({}, []) == {}
    assert terms(placing.avoid({}, ["n1"]))[0]["matchExpressions"][0]["values"] == ["n1"]


def test_a_large_exclusive_job_is_spread_also_as_its_settings_ask() -> None:
    found = placing.rules({"exclusive": True, "spread": [{"topology": "zone"}]}, {"a": "b"}, 501)
    assert [one["topologyKey"] for one in found["topologySpreadConstraints"]] == ["zone", "kubernetes.io/hostname"]
    assert "affinity" not in found


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topology": "rack"}, ["topology"]),
        ({"preferred_topology": "rack"}, ["preferred_topology"]),
        ({"topology": "rack", "jobset": True}, []),
        ({"preferred_topology": "rack", "queue": "q"}, []),
    ],
)
def test_a_large_job_says_which_topology_it_leaves_out(settings: dict[str, Any], said: list[str]) -> None:
    found = [one.message.partition(" is not used")[0] for one in placing.findings("cluster", settings, 501)]
    assert found == said
    assert "podAffinity" not in placing.rules(settings, {"a": "b"}, 501).get("affinity", {})

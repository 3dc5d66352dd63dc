"""Bandwidth between nodes: measured on hosts with networks of their own, and judged from what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.preflight import bandwidth
from jobsdk.bootstrap.preflight import run as preflight
from jobsdk.bootstrap.preflight.finding import OK, WARNING, Finding
from tests.bootstrap.namespaces import Hosts
from tests.bootstrap.preflight.test_run import TOKEN, on_hosts, result, the_plan
from tests.bootstrap.runs import LocalRun

MEASURED = {"preflight": {"token": TOKEN, "gpus": 0, "bandwidth": True}}


def said(found: dict[str, Any]) -> list[Finding]:
    return [Finding(**one) for one in found["findings"] if one["subject"] == "bandwidth"]


# -- measured ----------------------------------------------------------------------------------------------------


def test_nodes_of_one_machine_are_measured_over_loopback_and_without_torch(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", {**the_plan(3), **MEASURED})
    assert run.wait() == 0, run.log(0)
    measured = result(run.folder)["bandwidth"]
    assert [(link["from"], link["to"]) for link in measured["links"]] == [(0, 1), (1, 2), (2, 0)]
    assert all(link["gbps"] > 0 for link in measured["links"])
    assert "all_reduce" not in measured
    lines = run.log(0).splitlines()
    findings, summary = preflight.of_text(lines) or ([], "")
    assert summary == result(run.folder)["summary"] == lines[-1]
    rings = [one.text for one in findings if "TCP between" in one.text]
    assert [one.text for one in said(result(run.folder))] == rings


def test_one_node_alone_is_not_measured(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", {**the_plan(1), **MEASURED})
    assert run.wait() == 0, run.log(0)
    assert result(run.folder)["bandwidth"] is None


@pytest.mark.framework("torch")
@pytest.mark.engine("network")
def test_a_slow_host_is_named_beside_what_torch_reaches(tmp_path: Path) -> None:
    with Hosts(tmp_path, 2) as hosts:
        hosts.slow(1, "40mbit")
        found = on_hosts(hosts, tmp_path / "r", 2, **MEASURED)
    rates = {(link["from"], link["to"]): link["gbps"] for link in found["bandwidth"]["links"]}
    assert 0.01 < rates[(1, 0)] < 0.06
    assert rates[(0, 1)] > 10 * rates[(1, 0)]
    slow, ring, reduced = said(found)
    assert re.fullmatch(r"node 1 \(h1\) sends to node 0 \(h0\) at only \d+ Mbit/s; usual here is .*", slow.text)
    assert slow.level == WARNING
    # A veth says that it has 10 Gbit/s.
    assert re.fullmatch(r"TCP between 2 nodes: \d+ Mbit/s of 10 Gbit/s \(eth0\): far less than .*", ring.text)
    assert 0 < found["bandwidth"]["all_reduce"]["gbps"] < 0.1
    assert re.fullmatch(r"torch's all-reduce \(gloo, .*\) between 2 nodes: \d+ Mbit/s of 10 Gbit/s .*", reduced.text)


@pytest.mark.engine("network")
def test_a_pair_that_does_not_connect_is_not_measured(tmp_path: Path) -> None:
    with Hosts(tmp_path, 3) as hosts:
        hosts.ip(1, "route", "add", "blackhole", hosts.address(2))
        found = on_hosts(hosts, tmp_path / "r", 3, **MEASURED)
    assert found["bandwidth"] is None
    assert "connect matrix 4/6 ok" in found["summary"]


# -- judged ------------------------------------------------------------------------------------------------------


def reports(count: int, speed: int | None = 10_000, **facts: Any) -> dict[int, dict[str, Any]]:
    own = {"interfaces": [{"name": "eth0", "speed": speed}], "packages": {"torch": "2"}, **facts}
    return {node: {"interface": "eth0", "facts": own} for node in range(count)}


def ring(*rates: float) -> dict[str, Any]:
    links = [{"from": node, "to": (node + 1) % len(rates), "gbps": rate} for node, rate in enumerate(rates)]
    return {"links": links}


def judged(measured: dict[str, Any], of: dict[int, dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one.level, one.text) for one in bandwidth.findings(measured, of, "node {}".format)]


@pytest.mark.parametrize(
    ("rate", "level", "words"),
    [
        (9.4, OK, "9.4 of 10 Gbit/s (eth0): as much as can be expected"),
        (3.1, OK, "3.1 of 10 Gbit/s (eth0): less than can be expected"),
        (0.94, WARNING, "940 Mbit/s of 10 Gbit/s (eth0): far less than can be expected"),
    ],
)
def test_a_rate_stands_beside_the_nominal_one(rate: float, level: str, words: str) -> None:
    assert judged(ring(rate, rate), reports(2)) == [(level, f"TCP between 2 nodes: {words}")]


def test_without_a_nominal_rate_there_is_no_verdict() -> None:
    text = "TCP between 2 nodes: 0.5 Mbit/s (eth0; the link's own rate is not known)"
    assert judged(ring(0.0005, 0.0005), reports(2, None)) == [(OK, text)]


def test_the_slow_pairs_are_named_and_the_whole_is_not_blamed_twice() -> None:
    found = judged(ring(9.0, 0.5, 9.1, 9.2), reports(4))
    assert found == [
        (WARNING, "node 1 sends to node 2 at only 500 Mbit/s; usual here is 9.1 Gbit/s"),
        (OK, "TCP between 4 nodes: 500 Mbit/s of 10 Gbit/s (eth0): far less than can be expected"),
    ]


def test_a_link_that_carried_nothing_and_torch_that_failed() -> None:
    measured = {"links": [{"from": 1, "to": 0, "error": "refused"}], "all_reduce": {"backend": "gloo", "error": "x"}}
    assert judged(measured, reports(2)) == [
        (WARNING, "nothing came from node 1 to node 0: refused"),
        (WARNING, "torch's all-reduce (gloo) could not be measured: x"),
    ]


def test_nccl_is_held_against_infiniband() -> None:
    ports = [{"device": "mlx5_0", "port": "1", "state": "ACTIVE", "rate": "400 Gb/sec", "link_layer": "InfiniBand"}]
    measured = {"links": [], "all_reduce": {"backend": "nccl", "gbps": 372.0, "bytes": 1 << 20}}
    assert judged(measured, reports(2, infiniband=ports)) == [
        (
            OK,
            "torch's all-reduce (nccl, 1 MiB) between 2 nodes: 372 of 400 Gbit/s (eth0): as much as can be expected",
        ),
    ]


def test_torch_is_used_where_all_have_it_and_nccl_where_all_have_gpus() -> None:
    from jobsdk.bootstrap.preflight.allreduce import backend_for

    bare = {"packages": {"torch": "2", "cuda": "12.4"}, "visible_gpus": []}
    full = {**bare, "visible_gpus": ["0"]}
    assert backend_for({0: full, 1: full}) == "nccl"
    assert backend_for({0: full, 1: bare}) == "gloo"
    assert backend_for({0: full, 1: {"packages": {}}}) is None


@pytest.mark.engine("network")
def test_an_mtu_below_that_of_the_compute_is_told(tmp_path: Path) -> None:
    with Hosts(tmp_path, 2) as hosts:
        found = on_hosts(hosts, tmp_path / "r", 2, network={"mtu": 9000})
    (text,) = [one["text"] for one in found["findings"] if one["subject"] == "network"]
    assert text == "the compute's network.mtu is 9000, and the MTU towards node 0 is 1500 on all nodes"
    assert json.loads((tmp_path / "r/plan.json").read_text())["network"] == {"mtu": 9000}

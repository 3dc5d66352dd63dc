"""What can be placed on a cluster, and which nodes a job gets by that."""

from __future__ import annotations

import pytest

from jobsdk.compute.ray import placing as ray_placing
from jobsdk.compute.ray.placing import Node, NodeBundle

NODES = [{"CPU": 2.0}, {"CPU": 8.0, "GPU": 4.0, "accelerator_type:A100": 1.0}, {"CPU": 8.0, "GPU": 2.0}]


@pytest.mark.parametrize(
    ("bundle", "count", "strategy", "why"),
    [
        ({"GPU": 4}, 1, "PACK", None),
        ({"GPU": 1}, 6, "PACK", None),
        ({"GPU": 0.1}, 60, "SPREAD", None),
        ({"CPU": 0.001}, 18000, "PACK", None),
        ({"GPU": 1}, 7, "PACK", "7 x {GPU: 1} do not fit: the cluster's 3 node(s) have room for 6"),
        ({"GPU": 2, "CPU": 1}, 4, "SPREAD", "4 x {CPU: 1, GPU: 2} do not fit: the cluster's 3 node(s) have room for 3"),
        ({"GPU": 8}, 1, "PACK", "no node of the cluster has GPU: 8; the most is 4"),
        ({"GPU": 1}, 4, "STRICT_PACK", None),
        (
            {"GPU": 1}, 5, "STRICT_PACK",
            "STRICT_PACK of 5 x {GPU: 1} needs one node for all, and the largest has room for 4",
        ),
        ({"GPU": 1}, 2, "STRICT_SPREAD", None),
        ({"GPU": 1}, 3, "STRICT_SPREAD", "STRICT_SPREAD of 3 x {GPU: 1} needs 3 nodes, and 2 of the cluster's 3 fit"),
        (
            {"GPU": 1, "accelerator_type:H100": 0.001}, 1, "PACK",
            "no node of the cluster has accelerator_type:H100; there are accelerator_type:A100",
        ),
        ({"TPU": 1}, 1, "PACK", "no node of the cluster has TPU: 1; there are CPU, GPU, accelerator_type:A100"),
    ],
)  # fmt: skip
def test_what_can_never_be(bundle: dict[str, float], count: int, strategy: str, why: str | None) -> None:
    assert ray_placing.why_never(bundle, count, strategy, NODES) == why


def test_an_empty_cluster() -> None:
    assert (
        ray_placing.why_never({"CPU": 1}, 1, "PACK", []) == "no node of the cluster has CPU: 1; there are none like it"
    )


def test_what_is_waited_for() -> None:
    free, total = {"CPU": 16.0, "GPU": 1.5}, {"CPU": 18.0, "GPU": 6.0}
    assert ray_placing.missing({"CPU": 1, "GPU": 1}, 3, free, total) == "GPU: 3 asked for, 1.5 of 6 free"
    assert ray_placing.missing({"GPU": 1}, 1, free, total) == "enough is free in all, but not on single nodes"


def places(*found: tuple[str, list[str]]) -> list[NodeBundle]:
    return [NodeBundle(node, f"10.0.0.{node}", f"host-{node}", gpus) for node, gpus in found]


@pytest.mark.parametrize(
    ("found", "nodes"),
    [
        ([("1", []), ("1", []), ("2", [])], [Node([0, 1], []), Node([2], [])]),
        ([("2", []), ("1", []), ("2", [])], [Node([0, 2], []), Node([1], [])]),
        # Ranks of a node go by their lowest GPU, as a number.
        ([("1", ["10"]), ("1", ["9"]), ("1", ["2"])], [Node([2, 1, 0], ["2", "9", "10"])]),
        ([("1", ["0", "2"]), ("1", ["1", "3"])], [Node([0, 1], ["0", "2", "1", "3"])]),
        ([("1", ["0"]), ("1", ["0"]), ("1", ["1"])], [Node([0, 1, 2], ["0", "1"])]),
        ([("1", ["GPU-b"]), ("1", ["GPU-a"])], [Node([1, 0], ["GPU-a", "GPU-b"])]),
    ],
)
def test_nodes_of_ranks(found: list[tuple[str, list[str]]], nodes: list[Node]) -> None:
    assert ray_placing.nodes_of(places(*found)) == nodes


def test_machines_of_one_name_are_told_by_their_addresses() -> None:
    assert ray_placing.host_names(places(("1", []), ("2", []))) == ["host-1", "host-2"]
    assert ray_placing.host_names(places(("1", []), ("1", []))) == ["host-1", "host-1"]
    same = [NodeBundle("1", "10.0.0.1", "vm", []), NodeBundle("2", "10.0.0.2", "vm", [])]
    assert ray_placing.host_names(same) == ["10.0.0.1", "10.0.0.2"]

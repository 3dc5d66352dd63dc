"""What is said of machines and nodes, from what was read there: the cases that no machine of a test has."""

from __future__ import annotations

from typing import Any

from jobsdk.bootstrap.preflight import diagnosis
from jobsdk.bootstrap.preflight.diagnosis import Nodes
from jobsdk.bootstrap.preflight.finding import OK, PROBLEM, WARNING, Finding

GIB = 1 << 30
GOOD: dict[str, Any] = {
    "host": "h0", "machine": "m0", "python": "3.11.2", "executable": "/usr/bin/python", "venv": False,
    "packages": {"torch": "2.6.0", "cuda": "12.4", "nccl": "2.21.5"}, "driver": "550.54.15",
    "gpus": [{"bus": f"0000:{bus}:00.0", "model": "H100"} for bus in range(2)], "visible_gpus": ["0", "1"],
    "interfaces": [], "infiniband": [{"device": "mlx5_0", "port": "1", "state": "ACTIVE", "rate": "400 Gb/sec",
                                      "link_layer": "InfiniBand"}],
    "limits": {"nofile": 65536, "memlock": None, "nproc": None}, "cores": 8, "memory": 64 * GIB, "memory_limit": None,
    "shm": {"path": "/dev/shm", "size": 32 * GIB, "free": 32 * GIB},
    "disks": [{"path": "/tmp", "size": 100 * GIB, "free": 50 * GIB}], "clock_synchronised": True,
}  # fmt: skip


def of_one(**changes: Any) -> list[Finding]:
    """What is not right with a machine that is good but for `changes`."""
    return [one for one in diagnosis.of_machine({**GOOD, **changes}) if one.level != OK]


def reports(count: int, **changes: Any) -> dict[int, dict[str, Any]]:
    """What `count` good nodes, each on a machine of its own, report; `changes` are those of the last one's facts."""
    said = {}
    for node in range(count):
        facts = {**GOOD, "host": f"h{node}", "machine": f"m{node}", **(changes if node == count - 1 else {})}
        links = [{"to": other, "at": f"10.0.0.{other}:4", "ms": 0.1} for other in range(count) if other != node]
        clock = {"offset": 0.0, "rtt": 0.0002}
        said[node] = {"facts": facts, "mtu": 1500, "reached": links, "names": {}, "clock": clock}
    return said


def cut(said: dict[int, dict[str, Any]], first: int, second: int, error: str = "connection refused") -> None:
    (link,) = [one for one in said[first]["reached"] if one["to"] == second]
    del link["ms"]
    link.update(error=error, stage="connect")


def texts(said: dict[int, dict[str, Any]], gpus: int = 0) -> list[tuple[str, str]]:
    findings = Nodes(said, {}, {"nodes": len(said), "gpus": gpus}).findings()
    return [(one.level, one.text) for one in findings]


def test_nothing_is_wrong_with_a_good_machine() -> None:
    assert of_one() == []


def test_a_machine_that_has_little() -> None:
    found = of_one(
        limits={"nofile": 1024, "memlock": 64 << 10, "nproc": None},
        shm={"path": "/dev/shm", "size": 64 << 20, "free": 60 << 20},
        disks=[{"path": "/tmp", "size": GIB, "free": 10 << 20}],
        clock_synchronised=False,
        packages={"torch": "2.6.0+cpu", "cuda": "none"},
    )
    assert [(one.level, one.text) for one in found] == [
        (WARNING, "built without CUDA, and there are GPUs"),
        (WARNING, "locked memory is limited to 64 KiB, and RDMA must lock its buffers"),
        (WARNING, "only 1024 open files are allowed"),
        (WARNING, "/dev/shm has 64 MiB, 60 MiB free: DataLoader workers and NCCL share memory there"),
        (PROBLEM, "/tmp: 10 MiB free of 1 GiB"),
        (WARNING, "the kernel says that nothing synchronises the clock"),
    ]
    assert all(one.fix for one in found)


def test_a_driver_without_gpus_and_a_link_that_is_down() -> None:
    down = {**GOOD["infiniband"][0], "state": "DOWN"}
    assert [(one.level, one.text) for one in of_one(gpus=[], infiniband=[down])] == [
        (PROBLEM, "the NVIDIA driver 550.54.15 shows no GPU"),
        (WARNING, "mlx5_0 port 1 is DOWN"),
    ]


def test_facts_that_could_not_be_read_are_no_problem() -> None:
    assert [one.level for one in diagnosis.of_machine({"python": "3.8.1"})] == [OK] * 4


def test_good_nodes() -> None:
    nodes = Nodes(reports(8), {}, {"nodes": 8, "gpus": 2})
    assert nodes.findings() == []
    assert nodes.summary() == (
        "8 nodes: connect matrix 56/56 ok (slowest 0.1 ms), clocks within 0 ms, python 3.11.2, torch 2.6.0, "
        "nccl 2.21.5, 2 GPUs each"
    )


def test_one_direction_of_a_pair() -> None:
    said = reports(6)
    cut(said, 2, 5, "timed out after 2 s")
    assert texts(said) == [
        (PROBLEM, "node 2 (h2) cannot connect to node 5 (h5) at 10.0.0.5:4: timed out after 2 s; the way back works")
    ]


def test_a_node_that_nobody_reaches_is_one_line() -> None:
    said = reports(5)
    for node in range(4):
        cut(said, node, 4)
    assert texts(said) == [(PROBLEM, "no node can connect to node 4 (h4) at 10.0.0.4:4: connection refused")]


def test_many_bad_pairs_are_counted() -> None:
    said = reports(12)
    for node in range(6):
        for other in range(6, 12):
            if (node + other) % 5:
                cut(said, node, other)
    found = texts(said)
    assert len(found) == 21
    assert found[-1] == (
        PROBLEM,
        f"{sum((a + b) % 5 > 0 for a in range(6) for b in range(6, 12)) - 20} more pairs cannot connect",
    )


def test_versions_that_differ() -> None:
    packages = {"torch": "2.5.1", "cuda": "12.4"}
    assert texts(reports(4, packages=packages, driver="535.1.1")) == [
        (PROBLEM, "nccl is not the same on all nodes: 2.21.5 on nodes 0-2, none on node 3 (h3)"),
        (PROBLEM, "torch is not the same on all nodes: 2.6.0 on nodes 0-2, 2.5.1 on node 3 (h3)"),
        (WARNING, "the NVIDIA driver is not the same on all nodes: 550.54.15 on nodes 0-2, 535.1.1 on node 3 (h3)"),
    ]


def test_gpus_that_are_missing_or_differ_or_are_shared() -> None:
    one = {"gpus": GOOD["gpus"][:1], "visible_gpus": ["0"]}
    assert texts(reports(3, **one), gpus=2) == [(PROBLEM, "the job takes 2 GPUs of a node, and node 2 (h2) has 1")]
    assert texts(reports(3, **one), gpus=1) == [
        (WARNING, "the number of GPUs differs: 2 on nodes 0-1, 1 on node 2 (h2)")
    ]
    bare = {"gpus": [], "visible_gpus": None, "driver": None}
    assert (PROBLEM, "the job takes 1 GPU of a node, and node 2 (h2) has no NVIDIA driver") in texts(
        reports(3, **bare), gpus=1
    )
    assert texts(reports(3, machine="m0"), gpus=2) == [(PROBLEM, "nodes 0, 2 share 2 GPUs, and the job takes 4")]


def test_what_is_wrong_on_all_nodes_is_said_once() -> None:
    said = reports(3)
    for report in said.values():
        report["facts"]["shm"] = {"path": "/dev/shm", "size": 64 << 20, "free": 64 << 20}
    ((level, text),) = texts(said)
    assert (level, text.partition(":")[0]) == (WARNING, "all nodes")


def test_a_clock_counts_only_as_far_as_it_could_be_measured() -> None:
    said = reports(3)
    said[1]["clock"] = {"offset": 0.3, "rtt": 0.5}
    said[2]["clock"] = {"offset": -6.0, "rtt": 0.5}
    assert texts(said) == [(PROBLEM, "the clock of node 2 (h2) is 6 s behind that of node 0")]

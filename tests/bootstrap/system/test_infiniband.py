"""InfiniBand as a node finds it, and as all nodes agree on it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.archive import command
from jobsdk.bootstrap.system import infiniband
from jobsdk.bootstrap.system import network as addresses
from tests.bootstrap.namespaces import Hosts
from tests.bootstrap.runs import PYTORCH, plan

#: Puts a folder in the place of /sys/class, and one with a uverbs device in that of /dev, for one process tree.
_ENTER = """
mkdir -p $0/devices/infiniband
for device in null zero random urandom; do cp -a /dev/$device $0/devices/; done
touch $0/devices/infiniband/uverbs0
mount --bind $0/sys/class /sys/class && mount --bind $0/devices /dev && exec "$@"
"""


def device(root: Path, name: str, state: str = "4: ACTIVE", layer: str = "InfiniBand", verbs: bool = True) -> Path:
    """A machine with one more device."""
    port = root / f"sys/class/infiniband/{name}/ports/1"
    port.mkdir(parents=True)
    for file, text in (("state", state), ("rate", "400 Gb/sec (4X NDR)"), ("link_layer", layer)):
        (port / file).write_text(text + "\n")
    if verbs:
        (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
        (root / "dev/infiniband/uverbs0").touch()
    return root


# -- one node ----------------------------------------------------------------------------------------------------


def test_ports_as_the_kernel_shows_them(tmp_path: Path) -> None:
    device(tmp_path, "mlx5_1", "1: DOWN")
    device(tmp_path, "mlx5_0")
    assert infiniband.ports(str(tmp_path)) == [
        infiniband.Port("mlx5_0", "1", "ACTIVE", 400.0, "InfiniBand"),
        infiniband.Port("mlx5_1", "1", "DOWN", 400.0, "InfiniBand"),
    ]


def test_only_active_ports_count_and_only_named_ones(tmp_path: Path) -> None:
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN"), ("mlx5_2", "4: ACTIVE")):
        device(tmp_path, name, state)
    assert infiniband.usable({}, str(tmp_path)) == ["mlx5_0", "mlx5_2"]
    assert infiniband.usable({"ib_devices": ["mlx5_1", "mlx5_2"]}, str(tmp_path)) == ["mlx5_2"]
    assert infiniband.usable({"infiniband": False}, str(tmp_path)) == []


def test_roce_counts_unless_infiniband_is_what_is_expected(tmp_path: Path) -> None:
    device(tmp_path, "mlx5_an0", layer="Ethernet")
    assert infiniband.usable({}, str(tmp_path)) == ["mlx5_an0"]
    assert infiniband.usable({"infiniband": True}, str(tmp_path)) == []
    assert infiniband.usable({"ib_devices": ["mlx5_an0"]}, str(tmp_path)) == ["mlx5_an0"]


def test_a_container_that_sees_its_hosts_devices_and_was_not_given_them(tmp_path: Path) -> None:
    assert infiniband.usable({}, str(tmp_path)) is None
    assert infiniband.usable({}, str(device(tmp_path, "mlx5_0", verbs=False))) == []


# -- all nodes ---------------------------------------------------------------------------------------------------

OFF = "InfiniBand is off, and TCP takes its place: "


@pytest.mark.parametrize(
    ("network", "nodes", "devices", "warning"),
    [
        ({}, [None, None], None, None),  # nobody speaks of it, and nothing is there
        ({}, [["a"]], None, None),  # one node alone
        ({}, [["a"], ["b"]], None, None),  # the libraries may choose
        ({}, [[], None], [], None),  # devices that nobody may use, and nobody speaks of
        ({}, [["a"], None], [], OFF + "n1 has no InfiniBand device with an active port"),
        ({"infiniband": True}, [None, []], [], OFF + "all nodes have no InfiniBand device with an active port"),
        ({"infiniband": True}, [["a"], ["a"]], None, None),
        ({"ib_devices": ["a", "b"]}, [["a", "b"], ["b", "a"]], ["a", "b"], None),
        ({"ib_devices": ["a", "b"]}, [["a"], []], [], OFF + "n1 has no active port of a, b"),
        (
            {"ib_devices": ["a", "b"]}, [["a", "b"], ["b"]], ["b"],
            "not active on all nodes, and used on none: a of network.ib_devices",
        ),
        ({"ib_devices": ["a", "b"]}, [["a"], ["b"]], [], OFF + "none of a, b is active on all nodes"),
    ],
)  # fmt: skip
def test_what_one_lacks_is_off_for_all(network: Any, nodes: Any, devices: Any, warning: str | None) -> None:
    names = [f"n{number}" for number in range(len(nodes))]
    assert infiniband.agree(network, nodes, names) == (devices, warning)


def test_of_many_nodes_few_are_named() -> None:
    agreement = infiniband.agree({}, [None] * 20 + [["a"]], [f"n{number}" for number in range(21)])
    assert agreement.warning == OFF + "n0, n1, n2, n3, n4 and 15 more have no InfiniBand device with an active port"


# -- what ranks are told -----------------------------------------------------------------------------------------


def test_variables_where_it_is_on() -> None:
    network = {"interface": "ib0", "gdr": True, "mtu": 2048, "variables": {"NCCL_IB_TIMEOUT": "22"}}
    assert infiniband.variables(network, "pytorch", "eth0", ["mlx5_0", "mlx5_1"]) == {
        "NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "ib0", "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1", "NCCL_NET_GDR_LEVEL": "SYS", "UCX_IB_PATH_MTU": "2048",
        "NCCL_IB_TIMEOUT": "22",
    }  # fmt: skip


def test_variables_where_nothing_is_known() -> None:
    assert infiniband.variables({}, "mpi", None, None) == {}
    assert infiniband.variables({"mtu": 9000}, "mpi", None, None) == {}, "an interface's MTU is not for ranks to set"


def test_before_the_nodes_have_met_both_are_shown() -> None:
    shown = infiniband.variables({"ib_devices": ["mlx5_0"]}, "pytorch", "eth0", infiniband.UNKNOWN)
    assert shown == {
        "NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_IB_HCA": "<=mlx5_0 if all nodes have InfiniBand, else unset>",
        "UCX_NET_DEVICES": "<mlx5_0:1 if all nodes have InfiniBand, else unset>",
        "NCCL_IB_DISABLE": "<unset if all nodes have InfiniBand, else 1>",
        "UCX_TLS": "<unset if all nodes have InfiniBand, else ^ib>",
    }  # fmt: skip


# -- real nodes --------------------------------------------------------------------------------------------------


def on_two_hosts(folder: Path, machines: list[Path | None], network: dict[str, Any]) -> tuple[list[str], list[str]]:
    """A job on hosts of which some show InfiniBand: NCCL's variables of each rank, and the warnings."""
    (folder / "logs").mkdir(parents=True)
    distribution = {**PYTORCH, "processes": 1}
    job = plan("echo $NCCL_IB_DISABLE $NCCL_IB_HCA", 2, distribution, network=network)
    (folder / "plan.json").write_text(json.dumps(job))
    (port,) = addresses.free_ports(1)
    with Hosts(folder, 2) as hosts:
        started = []
        for node, machine in enumerate(machines):
            env = {**os.environ, "JOBSDK_NODE_RANK": str(node), "JOBSDK_TOKEN": "ab" * 32}
            env.update(JOBSDK_RUN_DIR=str(folder), JOBSDK_CONTROL=f"{hosts.address(0)} {port}")
            enter = ["/bin/sh", "-ec", _ENTER, str(machine)] if machine is not None else []
            argv = hosts.argv(node, [*enter, *command("node", str(folder))])
            started.append(subprocess.Popen(argv, env=env, cwd=folder))
        assert [process.wait(timeout=200) for process in started] == [0, 0]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    said = [(folder / f"logs/node-{node}/rank-{node}.log").read_text().strip() for node in range(2)]
    return said, [event["message"] for event in events if event["event"] == "warning"]


@pytest.mark.engine("network")
def test_a_node_without_infiniband_turns_it_off_on_the_one_that_has_it(tmp_path: Path) -> None:
    machine = device(tmp_path / "m", "mlx5_0")
    said, warnings = on_two_hosts(tmp_path / "r", [machine, None], {"infiniband": True})
    assert said == ["1", "1"]
    assert warnings == [OFF + "node 1 (h1) has no InfiniBand device with an active port"]


@pytest.mark.engine("network")
def test_devices_that_all_nodes_have_are_used_by_all(tmp_path: Path) -> None:
    machines: list[Path | None] = [device(tmp_path / name, "mlx5_0") for name in ("a", "b")]
    said, warnings = on_two_hosts(tmp_path / "r", machines, {"ib_devices": ["mlx5_0"]})
    assert said == ["=mlx5_0", "=mlx5_0"]
    assert warnings == []

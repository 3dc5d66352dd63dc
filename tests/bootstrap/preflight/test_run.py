"""The preflight on real nodes: on this machine, and on hosts with networks of their own in which something is wrong."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.archive import command
from jobsdk.bootstrap.system import network
from tests.bootstrap.namespaces import Hosts
from tests.bootstrap.runs import LocalRun, plan
from tests.clocks import off_by

ALONE = {"type": "none", "processes": 1, "launcher": "direct"}
TOKEN = "ab" * 32


def the_plan(nodes: int, gpus: int = 0, **more: Any) -> dict[str, Any]:
    wanted = {"token": TOKEN, "gpus": gpus}
    return plan("exit 9", nodes=nodes, distribution=ALONE, **{"preflight": wanted, **more})


def result(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "outputs/default/preflight.json").read_text())
    return content


def problems(folder: Path) -> list[str]:
    return [finding["text"] for finding in result(folder)["findings"] if finding["level"] == "problem"]


def on_hosts(hosts: Hosts, folder: Path, nodes: int, environ: dict[int, dict[str, str]] | None = None,
             **more: Any) -> dict[str, Any]:  # fmt: skip
    """A preflight with a node on each host, with a run folder that all share; its result."""
    (folder / "logs").mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(the_plan(nodes, **more)))
    (port,) = network.free_ports(1)
    started = []
    for node in range(nodes):
        env = {**os.environ, "JOBSDK_NODE_RANK": str(node), "JOBSDK_TOKEN": TOKEN, "JOBSDK_RUN_DIR": str(folder)}
        env.update({"JOBSDK_CONTROL": f"{hosts.address(0)} {port}"}, **(environ or {}).get(node, {}))
        argv = hosts.argv(node, command("node", str(folder)))
        started.append(subprocess.Popen(argv, env=env, cwd=folder))
    codes = {process.wait(timeout=200) for process in started}
    found = result(folder)
    is_bad = any(finding["level"] == "problem" for finding in found["findings"])
    assert codes == {1 if is_bad else 0}
    return found


# -- on this machine ---------------------------------------------------------------------------------------------


def test_eight_nodes_that_have_no_problem_among_themselves(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", the_plan(8))
    assert run.wait() == 0, run.log(0)
    found = result(run.folder)
    assert "8 nodes: connect matrix 56/56 ok (slowest " in found["summary"]
    assert run.log(0).splitlines()[-1] == found["summary"]
    assert sorted(found["nodes"]) == [str(node) for node in range(8)]
    for node, said in found["nodes"].items():
        assert [link["to"] for link in said["reached"]] == [other for other in range(8) if other != int(node)]
        # One clock: no further off than the way there and back can tell.
        assert abs(said["clock"]["offset"]) <= said["clock"]["rtt"]
    facts = found["nodes"]["3"]["facts"]
    assert facts["packages"]["torch"] == subprocess.run(
        [sys.executable, "-c", "from importlib.metadata import version; print(version('torch'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert facts["host"] == socket.gethostname()


def test_one_node_alone(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", the_plan(1))
    assert run.wait() == 0, run.log(0)
    assert result(run.folder)["summary"].startswith("1 node: python ")


def test_gpus_that_are_not_there(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", the_plan(2, gpus=4), CUDA_VISIBLE_DEVICES="0")
    assert run.wait() == 1
    assert problems(run.folder) == ["the job takes 4 GPUs of a node, and all nodes have 1"]
    assert run.report()["cause"]["rank"] == 0


def test_a_master_port_that_is_taken_and_by_whom(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", network.free_ports(1)[0]))
        taken.listen()
        port = taken.getsockname()[1]
        run = LocalRun(tmp_path / "r", the_plan(3, environment={"MASTER_PORT": str(port)}))
        assert run.wait() == 1
    (problem,) = problems(run.folder)
    own = Path("/proc/self/comm").read_text().strip()
    assert problem == f"MASTER_PORT {port} cannot be bound on node 0: pid {os.getpid()} ({own}) listens on it"
    assert "connect matrix 6/6 ok" in result(run.folder)["summary"], "the rest was looked at all the same"


def test_an_interpreter_that_differs_on_one_node(tmp_path: Path) -> None:
    """Each node takes `python` from the PATH that its ranks have."""
    (tmp_path / "bin").mkdir()
    bad = tmp_path / "bin/python"
    bad.write_text("#!/bin/sh\nexit 1\n")
    bad.chmod(0o755)
    run = LocalRun(tmp_path / "r", the_plan(2), PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert run.wait() == 1
    assert problems(run.folder) == ["all nodes: no python that starts is on PATH"]


def test_outside_a_job_it_says_what_is_missing(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "NODE_RANK": "0"}
    done = subprocess.run(command("preflight"), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert done.stderr == "preflight: this is no node of a job: 'NODE_COUNT' is missing or no number\n"


# -- on hosts of their own ---------------------------------------------------------------------------------------


@pytest.mark.engine("network")
def test_hosts_that_reach_each_other(tmp_path: Path) -> None:
    with Hosts(tmp_path, 3) as hosts:
        found = on_hosts(hosts, tmp_path / "r", 3)
    assert [finding for finding in found["findings"] if finding["subject"] in ("connect", "names", "network")] == []
    assert "connect matrix 6/6 ok" in found["summary"]
    assert [said["interface"] for said in found["nodes"].values()] == ["eth0"] * 3
    assert found["nodes"]["2"]["facts"]["host"] == "h2"


@pytest.mark.engine("network")
def test_a_pair_without_a_way_is_named_with_the_reason_at_both_ends(tmp_path: Path) -> None:
    with Hosts(tmp_path, 3) as hosts:
        hosts.ip(1, "route", "add", "blackhole", hosts.address(2))
        found = on_hosts(hosts, tmp_path / "r", 3)
        port = found["nodes"]["2"]["port"]
    (problem,) = problems(tmp_path / "r")
    assert problem == (
        f"node 1 (h1) cannot connect to node 2 (h2) at {hosts.address(2)}:{port}: its route is a black hole; "
        "nor the other way: timed out after 2 s"
    )
    assert "connect matrix 4/6 ok" in found["summary"]


@pytest.mark.engine("network")
def test_large_packets_that_are_lost_and_an_mtu_that_differs(tmp_path: Path) -> None:
    """Host 2 sends packets that the way to it does not carry: connections come about, and then nothing arrives."""
    with Hosts(tmp_path, 3) as hosts:
        for host in (0, 2):  # segment by segment: a large bundle of them would pass the bridge
            hosts.ip(host, "link", "set", "eth0", "mtu", "9000", "gso_max_segs", "1")
        found = on_hosts(hosts, tmp_path / "r", 3)
    mtus = [one["text"] for one in found["findings"] if one["subject"] == "network"]
    assert mtus == ["the MTU towards node 0 is not the same on all nodes: 9000 on nodes 0, 2, 1500 on node 1 (h1)"]
    lost = [problem for problem in problems(tmp_path / "r") if "cannot receive from" in problem]
    assert any("node 0 (h0)" in problem and "node 2 (h2)" in problem for problem in lost)
    assert all("node 1 (h1)" not in problem for problem in lost)


@pytest.mark.engine("faketime")
@pytest.mark.engine("network")
def test_a_clock_that_is_off(tmp_path: Path) -> None:
    with Hosts(tmp_path, 3) as hosts:
        found = on_hosts(hosts, tmp_path / "r", 3, {1: off_by("-7.5"), 2: off_by("+0.5")})
    clocks = [(one["level"], one["text"]) for one in found["findings"] if one["subject"] == "clock"]
    assert clocks == [
        ("problem", "the clock of node 1 (h1) is 7.5 s behind that of node 0"),
        ("warning", "the clock of node 2 (h2) is 500 ms ahead of that of node 0"),
    ]


@pytest.mark.engine("network")
def test_a_name_that_leads_elsewhere(tmp_path: Path) -> None:
    with Hosts(tmp_path, 2) as hosts:
        file = tmp_path / "hosts"
        file.write_text(file.read_text().replace(f"{hosts.address(1)} h1", "127.0.1.1 h1"))
        found = on_hosts(hosts, tmp_path / "r", 2)
    names = {one["text"] for one in found["findings"] if one["subject"] == "names"}
    leads = f"(h1) leads to 127.0.1.1, and the node has {hosts.address(1)}"
    assert names == {
        f"on node 0 (h0) the name of node 1 (h1) {leads}",
        f"on node 1 (h1) its own name {leads}",
    }


@pytest.mark.engine("network")
def test_an_address_that_leads_back_to_another_name(tmp_path: Path) -> None:
    with Hosts(tmp_path, 2) as hosts:
        file = tmp_path / "hosts"
        file.write_text(f"{hosts.address(1)} h0\n{file.read_text()}")
        found = on_hosts(hosts, tmp_path / "r", 2)
    back = f"(h1) leads to {hosts.address(1)}, and that address back to h0"
    assert {one["text"] for one in found["findings"] if one["subject"] == "names"} == {
        f"on node 0 (h0) the name of node 1 (h1) {back}",
        f"on node 1 (h1) its own name {back}",
    }


@pytest.mark.engine("network")
def test_hosts_with_ipv6_alone(tmp_path: Path) -> None:
    class Hosts6(Hosts):
        def address(self, host: int) -> str:
            return f"fd77::{host + 1}"

    with Hosts6(tmp_path, 3) as hosts:
        hosts.ip(1, "route", "add", "blackhole", hosts.address(2))
        found = on_hosts(hosts, tmp_path / "r", 3)
        port = found["nodes"]["2"]["port"]
    (problem,) = problems(tmp_path / "r")
    assert f"node 1 (h1) cannot connect to node 2 (h2) at [fd77::3]:{port}" in problem


@pytest.mark.slow
def test_nodes_that_never_answer_are_named_with_what_they_said(tmp_path: Path) -> None:
    """MASTER_ADDR leads nodes 1 and 2 to where nobody is; node 2 does not share the run's folder either."""
    (port,) = network.free_ports(1)
    started = []
    for node, name in enumerate(("shared", "shared", "other")):
        folder = tmp_path / name
        for below in (f"logs/node-{node}", "outputs/default"):
            (folder / below).mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(the_plan(3)))
        env = {**os.environ, "JOBSDK_RUN_DIR": str(folder), "NODE_RANK": str(node), "NODE_COUNT": "3"}
        env.update(MASTER_ADDR="127.0.0.9" if node else "127.0.0.1", MASTER_PORT=str(port))
        env["AZ_BATCH_HOST_LIST"] = "127.0.0.1,127.0.0.1,127.0.0.1"
        started.append(subprocess.Popen(command("preflight"), env=env, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=200)[0] for process in started]
    assert [process.returncode for process in started] == [1, 0, 0]
    assert outputs[2].startswith("preflight: node 2: it cannot reach node 0: 127.0.0.9:")
    first, second = problems(tmp_path / "shared")
    assert first.startswith(f"node 1 never answered: (127.0.0.1) it cannot reach node 0: 127.0.0.9:{port}")
    assert (
        second == f"node 2 never answered: its bootstrap joined from 127.0.0.1, but nothing came to MASTER_PORT {port}"
    )
    assert result(tmp_path / "shared")["summary"].startswith("3 nodes: 1 of 3 nodes answered, connect matrix 0/6 ok")

"""Nodes started one by one, as on a cluster: each with a folder of its own, found by explicit variables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.archive import command
from jobsdk.bootstrap.system import network
from tests.bootstrap.runs import events_in, plan, wait_for


def start(
    folder: Path,
    the_plan: dict[str, Any],
    rank: int,
    port: int | str,
    token: str = "ab" * 32,
    address: str = "127.0.0.1",
    inside: str = "",
    verb: str = "node",
    **more: str,
) -> subprocess.Popen[str]:
    (folder / "logs").mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(the_plan))
    env = {**os.environ, "JOBSDK_NODE_RANK": str(rank), "JOBSDK_CONTROL": f"{address} {port}", "JOBSDK_TOKEN": token}
    env.update(more, JOBSDK_RUN_DIR=str(folder))
    argv = [*inside.split(), *command(verb, str(folder))]
    return subprocess.Popen(argv, env=env, cwd=folder, stderr=subprocess.PIPE, text=True)


def has_joined(folder: Path) -> bool:
    """Whether the node has: a node 0 has its control port by then."""
    return any(event["event"] == "node_joined" for event in events_in(folder))


def test_two_nodes_without_a_common_folder(tmp_path: Path) -> None:
    the_plan = plan("echo $RANK of $WORLD_SIZE; echo [$JOBSDK_TOKEN$JOBSDK_CONTROL]")
    (port,) = network.free_ports(1)
    nodes = [start(tmp_path / str(rank), the_plan, rank, port) for rank in (1, 0)]
    assert [node.wait(timeout=200) for node in nodes] == [0, 0]
    assert (tmp_path / "1/logs/node-1/rank-3.log").read_text() == "3 of 4\n[]\n", "the token is not for user code"
    assert json.loads((tmp_path / "0/report.json").read_text())["status"] == "Completed"


def test_every_node_ends_with_the_culprits_code(tmp_path: Path) -> None:
    (port,) = network.free_ports(1)
    the_plan = plan("[ $RANK = 3 ] && exit 9; exec sleep 600")
    nodes = [start(tmp_path / str(rank), the_plan, rank, port) for rank in (0, 1)]
    assert [node.wait(timeout=200) for node in nodes] == [9, 9]


def test_when_node_0_dies_the_others_end(tmp_path: Path) -> None:
    (port,) = network.free_ports(1)
    first, second = (start(tmp_path / str(rank), plan("exec sleep 600"), rank, port) for rank in (0, 1))
    log = tmp_path / "1/logs/node-1/rank-2.log"
    wait_for(log.exists)
    first.send_signal(signal.SIGKILL)
    assert second.wait(timeout=200) == 125
    assert "lost the control port" in second.stderr.read()  # type: ignore[union-attr]
    orphans = [pid for pid in os.listdir("/proc") if pid.isdigit() and _belongs(pid, tmp_path / "0")]
    for pid in orphans:  # node 0's ranks lost their subreaper with it; a scheduler ends them on a real node
        os.kill(int(pid), signal.SIGKILL)


def _belongs(pid: str, folder: Path) -> bool:
    try:
        return f"JOBSDK_RUN_DIR={folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.mark.slow
def test_a_missing_node_is_named_and_its_host_where_that_is_known(tmp_path: Path) -> None:
    (port,) = network.free_ports(1)
    the_plan = plan("true", nodes=3, rendezvous_timeout_s=4.0)
    node = start(tmp_path / "0", the_plan, 0, port, JOBSDK_HOSTS="gpu-a,gpu-b,")
    assert node.wait(timeout=200) == 125
    message = json.loads((tmp_path / "0/report.json").read_text())["message"]
    assert message.startswith("1 of 3 nodes joined within ")
    assert message.endswith("missing: node 1 (gpu-b), node 2")


@pytest.mark.slow
def test_a_node_with_another_runs_token_is_not_let_in(tmp_path: Path) -> None:
    (port,) = network.free_ports(1)
    first = start(tmp_path / "0", plan("true"), 0, port)
    wait_for(lambda: has_joined(tmp_path / "0"))
    # It gives up while node 0 is still there: what it found last is what it tells.
    second = start(tmp_path / "1", plan("true", rendezvous_timeout_s=4.0), 1, port, token="cd" * 32)
    assert second.wait(timeout=200) == 125
    assert f"127.0.0.1:{port} answered, but is not this job" in second.stderr.read()  # type: ignore[union-attr]
    assert first.poll() is None
    first.terminate()
    assert first.wait(timeout=200) == 143


def test_a_second_node_0_is_refused_its_control_port(tmp_path: Path) -> None:
    (port,) = network.free_ports(1)
    first = start(tmp_path / "a", plan("true"), 0, port)
    wait_for(lambda: has_joined(tmp_path / "a"))
    second = start(tmp_path / "b", plan("true"), 0, port)
    assert second.wait(timeout=200) == 126
    words = second.stderr.read()  # type: ignore[union-attr]
    assert f"node 0 cannot start: [Errno 98] Address already in use: port {port}" in words
    assert first.poll() is None
    first.kill()
    first.wait()


def test_a_port_in_use_is_passed_over_by_node_0_and_by_those_who_look_for_it(tmp_path: Path) -> None:
    """The first port belongs to another job, the second to some service; and one of the names is wrong."""
    ports = network.free_ports(3)
    other = start(tmp_path / "other", plan("true", rendezvous_timeout_s=60.0), 0, ports[0], token="cd" * 32)
    wait_for(lambda: has_joined(tmp_path / "other"))
    with network.listener("", ports[1]):
        given = {"port": ",".join(map(str, ports)), "address": "no-such-name.invalid,localhost"}
        nodes = [start(tmp_path / str(rank), plan("true"), rank, **given) for rank in (1, 0)]
        assert [node.wait(timeout=200) for node in nodes] == [0, 0]
    other.terminate()
    other.wait(timeout=200)


_ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print(os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"], one.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.framework("torch")
def test_torch_meets_over_ipv6(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_ALL_REDUCE)
    one_each = {"type": "pytorch", "processes": 1, "launcher": "direct"}
    the_plan = plan(f"exec {sys.executable} {tmp_path}/train.py", distribution=one_each)
    (port,) = network.free_ports(1)
    nodes = [start(tmp_path / str(rank), the_plan, rank, port, address="::1") for rank in (0, 1)]
    assert [node.wait(timeout=200) for node in nodes] == [0, 0]
    assert (tmp_path / "1/logs/node-1/rank-1.log").read_text().splitlines()[-1] == "::1 lo 2.0"


def _namespace(inside: str = "") -> tuple[subprocess.Popen[bytes], str]:
    """A network of its own, and the command that runs something in it, up to the program."""
    argv = ["unshare", "--net", *([] if inside else ["--map-root-user"]), "sh", "-c", "echo made; exec sleep 600"]
    holder = subprocess.Popen([*inside.split(), *argv], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"made\n"
    return holder, f"nsenter --target {holder.pid} --net --user --preserve-credentials"


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """Two networks with a cable between them: how to run something in each. Nobody else's network is touched."""
    holder, first = _namespace()
    other, second = _namespace(first)
    for line in (
        f"{first} ip link add cable0 type veth peer name cable1 netns {other.pid}",
        f"{first} ip addr add 10.77.0.1/24 dev cable0",
        f"{second} ip addr add 10.77.0.2/24 dev cable1",
        *(f"{inside} ip link set {name} up" for inside, name in ((first, "cable0"), (second, "cable1"))),
        *(f"{inside} ip link set lo up" for inside in (first, second)),
    ):
        subprocess.run(line.split(), check=True)
    yield [first, second]
    for process in (holder, other):
        process.kill()
        process.wait()


@pytest.mark.engine("network")
@pytest.mark.parametrize(("verb", "relay"), [("fetch", ""), ("node", ""), ("node", "1")])
def test_sigterm_ends_the_first_process_of_a_container_while_it_fetches(tmp_path: Path, verb: str, relay: str) -> None:
    """The kernel gives such a process no signal that it does not handle."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text(f"#!/bin/sh\necho begun > {tmp_path}/begun\nexec sleep 600\n")
    (tmp_path / "bin/python").chmod(0o755)
    data = {"type": "uri_folder", "mode": None, "uri": f"local://{tmp_path}"}
    (port,) = network.free_ports(1)
    node = start(
        tmp_path / "0", plan("x", nodes=1, inputs={"data": data}), 0, port, verb=verb, JOBSDK_RELAY=relay,
        inside="unshare --pid --fork --kill-child --mount-proc --map-root-user",
        PATH=f"{tmp_path}/bin:{os.environ['PATH']}",
    )  # fmt: skip
    with node:
        try:
            wait_for((tmp_path / "begun").exists)
            (first,) = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
            os.kill(int(first), signal.SIGTERM)
            assert node.wait(timeout=60) == 143
        finally:
            node.kill()


@pytest.mark.engine("network")
def test_a_node_whose_network_is_cut_is_found_lost_and_ends_by_itself(tmp_path: Path, machines: list[str]) -> None:
    one_each = {"type": "pytorch", "processes": 1, "launcher": "direct"}
    text = "echo $MASTER_ADDR $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME; exec sleep 600"
    the_plan = plan(text, distribution=one_each, heartbeat_s=6.0)
    nodes = [
        start(tmp_path / str(rank), the_plan, rank, "7000,7001", address="10.9.9.9,10.77.0.1", inside=machines[rank])
        for rank in (0, 1)
    ]
    logs = [tmp_path / f"{rank}/logs/node-{rank}/rank-{rank}.log" for rank in (0, 1)]
    wait_for(lambda: all(log.exists() and log.read_text() for log in logs))
    assert [log.read_text() for log in logs] == ["10.77.0.1 cable0 cable0\n", "10.77.0.1 cable1 cable1\n"]
    subprocess.run(f"{machines[1]} ip link set cable1 down".split(), check=True)
    assert [node.wait(timeout=200) for node in nodes] == [125, 125]
    report = json.loads((tmp_path / "0/report.json").read_text())
    assert report["status"] == "Lost"
    assert report["cause"]["node"] == 1
    assert "is lost: nothing heard for " in report["message"]
    assert "lost the control port: node 0 was silent for " in nodes[1].stderr.read()  # type: ignore[union-attr]


def _parcel(folder: Path, the_plan: dict[str, Any], source: Path) -> dict[str, str]:
    """What a compute brings with it, in a folder that is only read; and the variables that speak of it."""
    (folder / "parcel").mkdir(parents=True)
    (folder / "parcel/plan.json").write_text(json.dumps({**the_plan, "sealed": ["environment"]}))
    (folder / "parcel/secrets.json").write_text(json.dumps({"environment": {"KEY": "s3cr3t-value"}}))
    (folder / "parcel/token").write_text("ab" * 32)
    return {"JOBSDK_PARCEL": str(folder / "parcel"), "JOBSDK_CODE": str(source)}


@pytest.mark.parametrize("shared", [True, False], ids=["one-folder", "a-folder-each"])
def test_nodes_unpack_what_the_compute_brings(tmp_path: Path, shared: bool) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.sh").write_text(
        "mkdir -p outputs; echo $RANK ${KEY%-*} > outputs/$RANK; env | grep -c JOBSDK_CODE"
    )
    (tmp_path / "data.txt").write_text("data")
    data = {"type": "uri_file", "mode": None, "uri": str(tmp_path / "data.txt")}
    kept = {"type": "uri_folder", "mode": None, "uri": str(tmp_path / "kept")}
    the_plan = plan("sh train.sh; cat $AZURE_ML_INPUT_data", inputs={"data": data}, outputs={"kept": kept})
    (port,) = network.free_ports(1)
    variables = _parcel(tmp_path, the_plan, source)
    runs = [tmp_path / ("run" if shared else f"run-{rank}") for rank in (0, 1)]
    nodes = []
    for rank in (1, 0):
        environ = {**os.environ, **variables, "JOBSDK_NODE_RANK": str(rank), "JOBSDK_CONTROL": f"127.0.0.1 {port}"}
        nodes.append(subprocess.Popen(command("node", str(runs[rank])), env=environ, cwd=tmp_path))
    assert [node.wait(timeout=200) for node in nodes] == [0, 0]
    assert (runs[1] / "logs/node-1/rank-3.log").read_text() == "0\ndata"
    assert (runs[1] / "outputs/default/3").read_text() == "3 s3cr3t\n"
    assert (runs[0] / "code/outputs").resolve() == runs[0] / "outputs/default"
    assert list(source.iterdir()) == [source / "train.sh"], "the code's own folder stays as it is"
    assert not [name for name in ("secrets.json", "token") if (runs[0] / name).exists()]


def test_a_node_whose_code_is_missing_says_so_in_the_report(tmp_path: Path) -> None:
    variables = _parcel(tmp_path, plan("true", nodes=1), tmp_path / "gone.tar.gz")
    (port,) = network.free_ports(1)
    environ = {**os.environ, **variables, "JOBSDK_NODE_RANK": "0", "JOBSDK_CONTROL": f"127.0.0.1 {port}"}
    done = subprocess.run(command("node", str(tmp_path / "run")), env=environ, cwd=tmp_path, check=False, timeout=200)
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert (done.returncode, report["status"]) == (126, "Failed")
    assert report["message"].startswith(f"node 0: the code at {tmp_path}/gone.tar.gz cannot be brought here: ")


def test_a_cancel_mark_makes_a_sigterm_the_users_own(tmp_path: Path) -> None:
    (port,) = network.free_ports(1)
    node = start(tmp_path / "0", plan("exec sleep 600", nodes=1), 0, port)
    wait_for((tmp_path / "0/logs/node-0/rank-1.log").exists)
    (tmp_path / "0/cancelled").touch()
    node.terminate()
    assert node.wait(timeout=200) == 130
    assert json.loads((tmp_path / "0/report.json").read_text())["status"] == "Canceled"


def test_requests_are_files_in_the_runs_folder(tmp_path: Path) -> None:
    (port,) = network.free_ports(1)
    # On one line: whoever has said that it is up is there.
    (tmp_path / "wait.py").write_text("import time\nprint('up', flush=True), time.sleep(600)\n")
    node = start(tmp_path / "0", plan(f"exec {sys.executable} {tmp_path}/wait.py", nodes=1), 0, port)
    logs = [tmp_path / f"0/logs/node-0/rank-{rank}.log" for rank in (0, 1)]
    wait_for(lambda: all(log.exists() and log.read_text() for log in logs))
    (tmp_path / "0/requests").mkdir()
    (tmp_path / "0/requests/stacks-abc").touch()
    wait_for((tmp_path / "0/stacks-abc.json").exists)
    (line,) = json.loads((tmp_path / "0/stacks-abc.json").read_text())["groups"]
    assert line == "2 ranks at wait.py:2 (ranks 0-1)"
    (tmp_path / "0/requests/cancel").touch()
    assert node.wait(timeout=200) == 130
    assert json.loads((tmp_path / "0/report.json").read_text())["status"] == "Canceled"

"""Nodes started one by one, as on a cluster: each with a folder of its own, found by explicit variables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap import detect, network
from jobsdk.bootstrap.archive import command
from tests.bootstrap.runs import plan, wait_for


def start(
    folder: Path, the_plan: dict[str, Any], rank: int, port: int, token: str = "ab" * 32
) -> subprocess.Popen[str]:
    (folder / "logs").mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(the_plan))
    env = {**os.environ, "JOBSDK_NODE_RANK": str(rank), "JOBSDK_CONTROL": f"127.0.0.1 {port}", "JOBSDK_TOKEN": token}
    env["JOBSDK_RUN_DIR"] = str(folder)
    return subprocess.Popen(command("node", str(folder)), env=env, cwd=folder, stderr=subprocess.PIPE, text=True)


def test_two_nodes_without_a_common_folder(tmp_path: Path) -> None:
    the_plan = plan("echo $RANK of $WORLD_SIZE; echo [$JOBSDK_TOKEN$JOBSDK_CONTROL]")
    (port,) = network.free_ports(1)
    nodes = [start(tmp_path / str(rank), the_plan, rank, port) for rank in (1, 0)]
    assert [node.wait(timeout=30) for node in nodes] == [0, 0]
    assert (tmp_path / "1/logs/node-1/rank-3.log").read_text() == "3 of 4\n[]\n", "the token is not for user code"
    assert json.loads((tmp_path / "0/report.json").read_text())["status"] == "Completed"


def test_every_node_ends_with_the_culprits_code(tmp_path: Path) -> None:
    (port,) = network.free_ports(1)
    the_plan = plan("[ $RANK = 3 ] && exit 9; exec sleep 600")
    nodes = [start(tmp_path / str(rank), the_plan, rank, port) for rank in (0, 1)]
    assert [node.wait(timeout=30) for node in nodes] == [9, 9]


def test_when_node_0_dies_the_others_end(tmp_path: Path) -> None:
    (port,) = network.free_ports(1)
    first, second = (start(tmp_path / str(rank), plan("exec sleep 600"), rank, port) for rank in (0, 1))
    log = tmp_path / "1/logs/node-1/rank-2.log"
    wait_for(log.exists)
    first.send_signal(signal.SIGKILL)
    assert second.wait(timeout=30) == 125
    assert "lost the control port" in second.stderr.read()  # type: ignore[union-attr]
    orphans = [pid for pid in os.listdir("/proc") if pid.isdigit() and _belongs(pid, tmp_path / "0")]
    for pid in orphans:  # node 0's ranks lost their subreaper with it; a scheduler ends them on a real node
        os.kill(int(pid), signal.SIGKILL)


def _belongs(pid: str, folder: Path) -> bool:
    try:
        return f"JOBSDK_RUN_DIR={folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def test_a_missing_node_is_named(tmp_path: Path) -> None:
    (port,) = network.free_ports(1)
    node = start(tmp_path / "0", plan("true", nodes=3, rendezvous_timeout_s=0.5), 0, port)
    assert node.wait(timeout=30) == 125
    message = json.loads((tmp_path / "0/report.json").read_text())["message"]
    assert message.startswith("1 of 3 nodes joined within ")
    assert message.endswith("missing: node 1, node 2")


def test_a_node_with_another_runs_token_is_not_let_in(tmp_path: Path) -> None:
    (port,) = network.free_ports(1)
    the_plan = plan("true", rendezvous_timeout_s=2.0)
    first = start(tmp_path / "0", the_plan, 0, port)
    second = start(tmp_path / "1", the_plan, 1, port, token="cd" * 32)
    assert second.wait(timeout=30) == 125
    assert first.wait(timeout=30) == 125
    assert "missing: node 1" in json.loads((tmp_path / "0/report.json").read_text())["message"]


def test_a_second_node_0_is_refused_its_control_port(tmp_path: Path) -> None:
    (port,) = network.free_ports(1)
    first = start(tmp_path / "a", plan("true", rendezvous_timeout_s=5.0), 0, port)
    wait_for(lambda: (tmp_path / "a/events.jsonl").exists())  # node 0 has joined itself
    second = start(tmp_path / "b", plan("true"), 0, port)
    assert second.wait(timeout=30) == 126
    assert "node 0 cannot start: " in second.stderr.read()  # type: ignore[union-attr]
    assert first.wait(timeout=30) == 125


@pytest.mark.parametrize("environment", [{"JOBSDK_NODE_RANK": "1"}, {"JOBSDK_NODE_RANK": "x", "JOBSDK_CONTROL": "a 1"}])
def test_half_told_is_an_error_that_says_what_is_needed(environment: dict[str, str]) -> None:
    with pytest.raises(detect.NotDetected, match="JOBSDK_CONTROL"):
        detect.detect(environment)


def test_explicit_variables() -> None:
    place = detect.detect({"JOBSDK_NODE_RANK": "2", "JOBSDK_CONTROL": "fd00::1 7000"})
    assert place == detect.Place(2, "fd00::1", 7000)

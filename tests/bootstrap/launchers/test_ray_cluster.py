"""A Ray cluster over a job's nodes: real Ray, each node a raylet of its own on this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.control.loop import Loop
from jobsdk.bootstrap.distributions import contract
from jobsdk.bootstrap.distributions import ray as ray_
from jobsdk.bootstrap.launchers import ray_cluster
from jobsdk.bootstrap.spec import paths
from tests.bootstrap.distributions.test_contract import facts
from tests.bootstrap.runs import LocalRun, plan, processes_of

SCRIPTS = Path(__file__).parents[1] / "scripts"


def ray(**fields: Any) -> dict[str, Any]:
    return {"type": "ray", "processes": 1, "launcher": "direct", **fields}


@pytest.fixture
def files(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where Ray's files go. Its sockets want a short path. Nothing may be left in it."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="jr", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)
        assert os.listdir(folder) == []


@pytest.fixture
def real(files: Path) -> str:
    return os.path.join(os.path.dirname(sys.executable), "ray")


def started(tmp_path: Path, name: str, script: str, nodes: int, **more: Any) -> LocalRun:
    text = f"exec python {SCRIPTS / script}"
    env = {name.upper(): str(value) for name, value in more.pop("env", {}).items()}
    return LocalRun(tmp_path / name, plan(text, nodes, ray(**more.pop("ray", {})), **more), **env)


# -- with Ray --------------------------------------------------------------------------------------------------------


@pytest.mark.framework("ray")
def test_two_jobs_at_once_each_with_a_cluster_of_its_own(real: str, tmp_path: Path, files: Path) -> None:
    one = started(tmp_path, "one", "ray_all_nodes.py", 2, env={"code": 7}, ray={"include_dashboard": False})
    other = started(tmp_path, "other", "ray_all_nodes.py", 1, env={"code": 0, "until": tmp_path / "one/report.json"})
    assert one.wait() == 7
    assert other.wait() == 0
    assert one.report()["message"] == "rank 0 on node 0 exited with code 7"
    for run, nodes in ((one, 2), (other, 1)):
        assert f"{nodes} nodes, tasks on {nodes}, cpus {nodes * max(1, (os.cpu_count() or 1) // nodes)}" in run.log(0)
        assert "Ray runtime started" in Path(paths.ray_log(str(run.folder), nodes - 1)).read_text()
        assert processes_of(run.folder) == []
    assert "Ray runtime started" not in one.log(0)


@pytest.mark.framework("ray")
def test_a_raylet_that_dies_is_told_and_a_restart_has_a_new_cluster(real: str, tmp_path: Path, files: Path) -> None:
    run = started(tmp_path, "run", "ray_killed.py", 2, restarts={**plan("")["restarts"], "max": 1})
    assert run.wait() == 0
    (failure,) = (event["message"] for event in run.events("failure") if event["rank"] is None)
    assert failure == "Ray on node 1 ended while the job ran: its raylet was killed by SIGKILL"
    (restart,) = run.events("restart")
    assert restart["summary"]["class"] == "ray_ended"
    assert "2 nodes" in (run.folder / "logs/node-0/rank-0.restart-1.log").read_text()
    assert processes_of(run.folder) == []


@pytest.mark.framework("ray")
def test_the_command_has_its_cluster_until_it_has_ended(real: str, tmp_path: Path, files: Path) -> None:
    run = started(tmp_path, "run", "ray_cancelled.py", 1, grace_s=120.0)
    run.until(lambda: run.events("first_output") and "waiting" in run.log(0))
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 130
    assert "saved by a task" in run.log(0)
    assert processes_of(run.folder) == []


@pytest.mark.framework("ray")
def test_ray_that_cannot_start_is_told(real: str, tmp_path: Path, files: Path) -> None:
    run = LocalRun(tmp_path / "run", plan("true", 1, ray(head_node_additional_args="--no-such-option")))
    assert run.wait() == 2
    message = run.report()["message"]
    assert message.startswith("Ray on node 0 could not be started: ")
    assert "--no-such-option" in message
    assert run.events("rank_started") == []


# -- without -------------------------------------------------------------------------------------------------------


def test_a_node_without_ray_is_named_at_once(tmp_path: Path, files: Path) -> None:
    run = LocalRun(tmp_path / "run", plan("true", 1, ray()), PATH="/bin:/usr/bin")
    assert run.wait() == 126
    message = run.report()["message"]
    assert message.startswith("node 0 cannot start its processes: no ray on PATH. Fix: pip install")
    assert len(message) <= 400


def test_sockets_want_a_short_path(tmp_path: Path, files: Path) -> None:
    (tmp_path / "ray").write_text("#!/bin/sh\n")
    (tmp_path / "ray").chmod(0o755)
    long = "/tmp/" + "x" * 60
    run = LocalRun(tmp_path / "run", plan("true", 1, ray(), environment={"RAY_TMPDIR": long, "PATH": str(tmp_path)}))
    assert run.wait() == 126
    assert f"RAY_TMPDIR is too long for Ray's sockets, by 43 characters: {long}" in run.report()["message"]
    assert not os.path.exists(long)


def test_who_does_not_join_is_named() -> None:
    loop, told, words = Loop(), [], []
    the_plan = plan("x", 3, ray(), rendezvous_timeout_s=0.05)

    def failed(why: ray_cluster.ClusterFailure, missing: list[int]) -> None:
        words.append((*why, missing))
        loop.stop()

    assembly = ray_cluster.Assembly(
        loop, the_plan, {1: "here", 2: "there"}, lambda node, message: told.append((node, message["what"])),
        lambda text, missing: None, failed,
    )  # fmt: skip
    assembly.joined(0)
    assembly.joined(1)
    loop.run()
    assert told == [(None, "join")]
    ((kind, text, missing),) = words
    assert kind == "ray_missing"
    assert text.startswith("no Ray cluster: 2 of 3 nodes joined within ")
    assert text.endswith(" s; missing: node 2 (there); see logs/node-2/ray.log")
    assert missing == [2]
    loop.close()


def test_the_command_is_started_when_all_have_joined() -> None:
    loop, told = Loop(), []
    assembly = ray_cluster.Assembly(
        loop, plan("x", 2, ray()), {}, lambda node, message: told.append((node, message["what"])),
        lambda text, missing: None, lambda text, missing: None,
    )  # fmt: skip
    assembly.joined(0)
    assert told == [(None, "join")]
    assembly.joined(1)
    assert told == [(None, "join"), (0, "run")]
    loop.close()


def environment(the_plan: dict[str, Any], **known: Any) -> dict[str, str]:
    rules = contract.Contract(the_plan, facts(the_plan, ray="/tmp/ray-1", **known))
    (process,) = distributions.of(the_plan).processes()
    assert (process.node_rank, distributions.of(the_plan).world_size()) == (0, 1)
    return rules.environment(process)


def test_where_the_command_finds_the_cluster() -> None:
    found = environment(plan("x", 3, ray()))
    assert found["RAY_ADDRESS"] == "10.0.0.0:20001"
    assert (found["RAY_AUTH_MODE"], found["RAY_AUTH_TOKEN_PATH"]) == ("token", "/tmp/ray-1/token")
    assert found["RAY_USAGE_STATS_ENABLED"] == "0"
    assert (found["WORLD_SIZE"], found["RANK"], found["NODE_COUNT"]) == ("1", "0", "3")
    assert environment(plan("x", 3, ray(port=6379)))["RAY_ADDRESS"] == "10.0.0.0:6379"
    here = environment(plan("x", 2, ray()), addresses=["127.0.0.1"] * 2)
    assert here["RAY_ADDRESS"] == "127.0.1.1:20001", "Ray takes 127.0.0.1 for a name of the outward address"
    six = environment(plan("x", 2, ray()), addresses=["fd00::1", "fd00::2"])
    assert six["RAY_ADDRESS"] == "[fd00::1]:20001"


def test_a_cluster_that_is_there_is_only_pointed_to() -> None:
    the_plan = plan("x", 2, ray(address="10.9.9.9:6379"))
    assert not distributions.of(the_plan).has_cluster
    found = environment(the_plan)
    assert found["RAY_ADDRESS"] == "10.9.9.9:6379"
    assert "RAY_AUTH_MODE" not in found, "its own ways of letting somebody in count"


def test_every_node_has_its_share_of_one_machine(tmp_path: Path) -> None:
    the_plan = plan("x", 2, ray(worker_node_additional_args="--resources '{\"a b\": 1}'", dashboard_port=8265))
    known = facts(
        the_plan, addresses=["127.0.0.1"] * 2, gpus=["GPU-a", "GPU-b", "GPU-c", "GPU-d"], cores=1, run_dir="/run"
    )
    head, worker = (ray_cluster.Member(the_plan, node, known, 2, b"token") for node in range(2))
    assert head.facts.ray == worker.facts.ray
    one, other = head._argv(), worker._argv()
    assert {"--head", "--port=20001", "--include-dashboard=false", "--dashboard-port=8265"} <= set(one)
    assert {"--node-ip-address=127.0.1.1", "--num-cpus=1", "--num-gpus=2"} <= set(one)
    assert {"--address=127.0.1.1:20001", "--node-ip-address=127.0.1.2", "--num-gpus=2"} <= set(other)
    assert other[-2:] == ["--resources", '{"a b": 1}']
    assert head._environment()["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert worker._environment()["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-d"
    assert "OMP_NUM_THREADS" not in worker._environment(), "Ray sets it for each task"
    assert "WORLD_SIZE" not in worker._environment()
    assert any(word.startswith("--object-store-memory=") for word in one)
    alone = ray_cluster.Member(the_plan, 1, known, 0, b"token")._argv()
    assert not any(word.startswith("--object-store-memory=") for word in alone)
    assert "--num-gpus=4" in alone


def test_the_folder_is_known_to_the_nodes_alone(tmp_path: Path) -> None:
    the_plan = plan("x", 1, ray(), environment={"RAY_TMPDIR": str(tmp_path)})
    here = ray_.folder(the_plan, b"token", {"RAY_TMPDIR": "/elsewhere"})
    assert here.startswith(f"{tmp_path}/ray-")
    assert here != ray_.folder(the_plan, b"another", {})
    assert ray_.folder(plan("x", 1, ray()), b"token", {}).startswith("/tmp/ray-")


def test_the_last_of_a_machine_s_nodes_takes_the_folder_away(tmp_path: Path) -> None:
    for node in range(2):
        (tmp_path / f"ray-1/n{node}/session").mkdir(parents=True)
    (tmp_path / "ray-1/token").touch()
    ray_.remove(str(tmp_path / "ray-1"), 0)
    assert (tmp_path / "ray-1/token").exists()
    ray_.remove(str(tmp_path / "ray-1"), 1)
    assert os.listdir(tmp_path) == []


def test_what_ray_said_of_its_end(tmp_path: Path) -> None:
    the_plan = plan("x", 1, ray())
    member = ray_cluster.Member(the_plan, 0, facts(the_plan, run_dir=str(tmp_path)), 0, b"token")
    Path(member.log).parent.mkdir(parents=True)
    assert member.last_words() == ""
    cases = {
        "2026-01-01 10:00:00,000\tERR scripts.py:1 -- \n  raylet [exit code=-9]\n": "its raylet was killed by SIGKILL",
        "gcs_server [exit code=1]\nlots\nof\nmore\n": "its gcs_server exited with code 1",
        'Traceback (most recent call last):\n  File "x"\nRuntimeError: Version mismatch\n': "RuntimeError: Version "
        "mismatch",
        "2026-01-01\tINFO scripts.py:1 -- Usage\nError: No such option: --x\n": "Error: No such option: --x",
    }
    for said, words in cases.items():
        Path(member.log).write_text(said)
        assert member.last_words() == words

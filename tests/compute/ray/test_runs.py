"""Jobs on a real cluster of Ray: within a session, by a driver process, by the job submission API."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobsdk import ComputeError, MLClient, PyTorchDistribution, ScalingConfig, TorchConfig, command
from jobsdk import compute as configured
from jobsdk.client.run import Run
from tests.bootstrap.runs import wait_for
from tests.compute.collectives import check, job
from tests.compute.ray.cluster import FIRST, HEAD, THIRD, RayCluster

pytestmark = [pytest.mark.framework("ray"), pytest.mark.usefixtures("computes")]

LONG = 200.0  # seconds that nothing takes, but for a machine that stands still now and then
#: What the scripts of Ray's users look at.
SHOW = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK on $NODE_RANK: $CUDA_VISIBLE_DEVICES"


@pytest.fixture
def session(cluster: RayCluster) -> None:
    """This process has a session open."""
    import ray

    if not ray.is_initialized():
        ray.init(address=cluster.address, _node_ip_address=HEAD, log_to_driver=False, logging_level="ERROR")


def submit(text: str, compute: str, **fields: Any) -> Run:
    return MLClient().jobs.create_or_update(command(command=text, compute=compute, **fields))


def two(text: str, compute: str, **fields: Any) -> Run:
    return submit(text, compute, instance_count=2, distribution=PyTorchDistribution(), **fields)


def lines(run: Run) -> list[str]:
    """What each rank has written, in the order of ranks."""
    logs = {int(path.stem.rpartition("-")[2]): path for path in run.folder.logs.glob("node-*/rank-*.log")}
    return [logs[rank].read_text().strip() for rank in sorted(logs)]


def message(run: Run) -> str:
    text: str = run.report["message"]
    return text


def left_behind(cluster: RayCluster, run: Run) -> list[Path]:
    return list(cluster.temporary.glob(f"jobsdk-{run.name}-*"))


# -- within a session --------------------------------------------------------------------------------------------------


def test_a_collective_runs(session: None) -> None:
    run = check(job("sockets", 2, "session"))
    hosts = [event["host"] for event in run.folder.events() if event["event"] == "allocated"]
    assert len(set(hosts)) == 2


def test_eight_workers(session: None) -> None:
    run = submit("echo $RANK of $WORLD_SIZE, $OMP_NUM_THREADS", "session", scaling=ScalingConfig(num_workers=8))
    run.result(LONG)
    assert lines(run) == [f"{rank} of 8, 1" for rank in range(8)]


def test_workers_of_a_node_see_the_gpus_of_all(session: None) -> None:
    scaling = ScalingConfig(num_workers=3, use_gpu=True, resources_per_worker={"GPU": 2})
    text = f"{SHOW} $JOBSDK_GPUS_PER_PROCESS $NCCL_SOCKET_IFNAME"
    run = submit(text, "session", scaling=scaling, environment_variables={"NCCL_SOCKET_IFNAME": "eth7"})
    run.result(LONG)
    own = "0,1,2,3 2 eth7"
    assert lines(run) == [f"0 of 3, 0 on 0: {own}", f"1 of 3, 1 on 0: {own}", "2 of 3, 0 on 1: 0,1 2 eth7"]
    assert run.folder.plan()["distribution"]["per_node"] == [2, 1]
    assert Run(run.folder).nodes == 2


def test_one_worker_with_two_gpus(session: None) -> None:
    scaling = ScalingConfig(num_workers=1, use_gpu=True, resources_per_worker={"GPU": 2})
    run = submit(SHOW, "session", scaling=scaling).result(LONG)
    assert lines(run) == ["0 of 1, 0 on 0: 0,1"]


def test_two_workers_share_a_gpu_of_a_kind(session: None, cluster: RayCluster) -> None:
    scaling = ScalingConfig(
        num_workers=2, use_gpu=True, resources_per_worker={"GPU": 0.5, "special": 1}, accelerator_type="A100"
    )
    run = submit(SHOW, "session", scaling=scaling).result(LONG)
    assert lines(run) == ["0 of 2, 0 on 0: 0", "1 of 2, 1 on 0: 0"]


def test_torch_config_and_runtime_env(session: None) -> None:
    text = 'echo $JOBSDK_TORCH_BACKEND $NCCL_SOCKET_IFNAME; python -c "import ray; print(ray.__version__)"'
    own = {"ray": {"runtime_env": {"env_vars": {"NCCL_SOCKET_IFNAME": "ens5"}}}}
    job = command(
        command=text, compute="session", scaling=ScalingConfig(num_workers=1), torch_config=TorchConfig(backend="gloo")
    )
    job.resources.properties = own
    run = MLClient().jobs.create_or_update(job).result(LONG)
    import ray

    assert lines(run) == [f"gloo ens5\n{ray.__version__}"]


@pytest.mark.parametrize(
    ("scaling", "why"),
    [
        (ScalingConfig(num_workers=5, use_gpu=True, placement_strategy="STRICT_SPREAD"), "needs 5 nodes, and 2 of"),
        (ScalingConfig(num_workers=9, use_gpu=True), "have room for 8"),
        (ScalingConfig(num_workers=1, use_gpu=True, accelerator_type="H100"), "there are accelerator_type:A100"),
    ],
)
def test_what_can_never_be_is_told_at_once(scaling: ScalingConfig, why: str, session: None) -> None:
    run = submit(SHOW, "session", scaling=scaling).wait(LONG)
    assert (run.status, run.exit_code) == ("Failed", 126)
    assert why in message(run)
    assert "Fix: " in message(run)


def test_who_waits_says_for_what(session: None) -> None:
    whole = {"GPU": 4}
    scaling = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker=whole)
    first = submit("exec sleep 600", "session", scaling=scaling)
    wait_for(lambda: first.status == "Running")
    second = submit(SHOW, "session", scaling=ScalingConfig(use_gpu=True, resources_per_worker=whole))
    lacks = "waits for Ray: GPU: 4 asked for, 0 of 8 free"  # once Ray has counted what the first has just taken
    wait_for(lambda: lacks in [event.get("message") for event in second.folder.events() if event["event"] == "queued"])
    first.cancel()
    second.result(LONG)
    assert first.wait(LONG).status == "Canceled"


def test_a_cluster_that_grows_is_waited_for(session: None) -> None:
    job = command(command=SHOW, compute="session", scaling=ScalingConfig(num_workers=9, use_gpu=True))
    job.resources.properties = {"ray": {"autoscaling": True, "placement_timeout": 0}}
    run = MLClient().jobs.create_or_update(job).wait(LONG)
    assert "no place for it within 0 s" in message(run)


# -- with a driver process ---------------------------------------------------------------------------------------------


@pytest.fixture
def no_session() -> None:
    import ray

    ray.shutdown()


def test_a_ray_of_the_runs_own(no_session: None, tmp_path: Path) -> None:
    said = tmp_path / "said"
    scaling = ScalingConfig(num_workers=4, use_gpu=True, resources_per_worker={"GPU": 0.5, "CPU": 1})
    text = f"{SHOW}; [ $RANK != 0 ] || touch {said}; [ $RANK = 2 ] || exec sleep 600"
    run = submit(f"{text}; until [ -e {said} ]; do sleep 0.05; done; exit 7", "own", scaling=scaling)
    run.wait(LONG)
    assert (run.status, run.exit_code) == ("Failed", 7)
    assert lines(run)[0] == "0 of 4, 0 on 0: 0,1"


def test_a_run_is_cancelled_by_another_process(no_session: None, cluster: RayCluster) -> None:
    run = two("exec sleep 600", "driver")
    wait_for(lambda: run.status == "Running")
    assert len(left_behind(cluster, run)) == 2
    subprocess.run([sys.executable, "-m", "jobsdk", "job", "cancel", run.name], check=True, capture_output=True)
    run.wait(LONG)
    assert (run.status, run.exit_code) == ("Canceled", 130)
    assert not left_behind(cluster, run)


def test_a_killed_driver_takes_its_nodes_with_it(no_session: None, cluster: RayCluster) -> None:
    run = two("exec sleep 600", "driver")
    wait_for(lambda: run.status == "Running")
    owner = run.folder.living_owner()
    assert owner is not None
    os.kill(owner, signal.SIGKILL)
    assert run.wait(LONG).status == "Lost"
    wait_for(lambda: not left_behind(cluster, run))


# -- by the job submission API -----------------------------------------------------------------------------------------


def test_a_submitted_run(no_session: None) -> None:
    check(job("sockets", 2, "jobs"))


def test_a_submitted_run_is_followed_by_another_process() -> None:
    text = 'echo "begins $RANK"; echo $RANK > outputs/$RANK.txt; until [ -e "$GATE" ]; do sleep 0.1; done; echo goes on'
    gate = Path.cwd() / "gate"
    run = two(text, "jobs", environment_variables={"GATE": str(gate)})
    argv = [sys.executable, "-m", "jobsdk", "job", "stream", run.name]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        begun = [follower.stdout.readline() for _ in range(2)]
        assert sorted(line.split()[-1] for line in begun) == ["0", "1"]
        wait_for(lambda: run.status == "Running")  # a log may come before the event
        assert len(run.stacks(LONG)["groups"]) > 0
        gate.touch()
        assert sum("goes on" in line for line in follower.stdout) == 2
    assert follower.returncode == 0
    assert run.status == "Completed"
    assert (run.folder.path / "outputs/default/1.txt").read_text() == "1\n"


def test_a_submitted_run_is_cancelled_and_leaves_nothing(cluster: RayCluster) -> None:
    run = two("trap 'echo stopped; exit' TERM; echo up; while true; do sleep 0.1; done", "jobs")
    wait_for(lambda: run.status == "Running" and lines(run) == ["up"] * 2)
    run.cancel().wait(LONG)
    assert (run.status, run.exit_code) == ("Canceled", 130)
    assert [line.splitlines()[-1] for line in lines(run)] == ["stopped"] * 2
    wait_for(lambda: not left_behind(cluster, run))


def test_outputs_that_are_too_much_stay_there() -> None:
    job = command(command="head -c 20000 /dev/zero > outputs/big; exit 3", compute="jobs")
    job.resources.properties = {"ray": {"outputs_limit": 10_000}}
    run = MLClient().jobs.create_or_update(job).wait(LONG)
    assert run.exit_code == 3
    with pytest.raises(ComputeError, match="outputs_limit"):
        MLClient().jobs.download(run)


def test_checks(cluster: RayCluster) -> None:
    for compute in ("driver", "jobs"):
        found = configured.resolve(compute).check()
        assert all(one.is_well for one in found), found
        assert "3 nodes, in all {CPU: 18, GPU: 8, accelerator_type:A100: 1" in found[-1].found
    assert not configured.resolve("gone").check()[-1].is_well
    with pytest.raises(ComputeError, match=r"no Ray cluster answers at \S+ \(Connection refused\)\. Fix: start it"):
        submit("echo", "gone")


@pytest.mark.parametrize(
    ("compute", "own", "words"),
    [
        (
            "driver",
            {"runtime_env": {"working_dir": "/nowhere"}},
            "runtime_env cannot be set up: /nowhere is not a valid path",
        ),
        ("jobs", {"runtime_env": {"conda": "nobody"}}, "runtime_env cannot be set up: "),
        ("jobs", {"python": "/no/python"}, "/no/python: not found. Fix: set python of the compute"),
    ],
)
def test_what_cannot_be_set_up_there(compute: str, own: dict[str, Any], words: str) -> None:
    job = command(command="true", compute=compute)
    job.resources.properties = {"ray": own}
    run = MLClient().jobs.create_or_update(job).wait(LONG)
    assert (run.status, run.exit_code) == ("Failed", 126)
    assert words in message(run)
    assert "Fix: " in message(run)
    assert "Traceback" not in message(run)


def test_a_node_that_ray_ends_for_want_of_memory(cluster: RayCluster) -> None:
    few = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100"}
    cluster.add(THIRD, "--num-cpus=1", "--resources", '{"full": 1}', **few)
    cluster.await_node(THIRD)
    job = command(command="exec sleep 600", compute="driver")
    job.resources.properties = {"ray": {"resources_per_node": {"full": 1}}}
    run = MLClient().jobs.create_or_update(job).wait(LONG)
    assert (run.status, run.exit_code) == ("Failed", 137)
    assert run.report["cause"]["class"] == "out_of_memory"


@pytest.mark.parametrize("with_it", [False, True])
def test_a_node_that_nobody_replaces_is_not_waited_for(with_it: bool) -> None:
    """Its actor is killed, or the bootstrap with it, as where the machine is lost."""
    # The driver would wait as long as the grace period: longer than this test.
    budgets = {"max_restarts": 2, "max_preemptions": 2, "restart_delay": 1}
    run = two("echo up; exec sleep 600", "driver", grace_period=LONG, **budgets)
    wait_for(lambda: run.status == "Running" and lines(run) == ["up"] * 2)
    bootstrap = {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if is_node(path, run, 1)}
    (actor,) = {
        int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in bootstrap
    } - bootstrap
    for signum in (signal.SIGSTOP, signal.SIGKILL):  # none of them is to see that another one is gone
        for pid in [actor, *(bootstrap if with_it else ())]:
            with contextlib.suppress(ProcessLookupError):  # Ray kills an actor's child itself
                os.kill(pid, signum)
    assert run.wait(LONG).status == "Lost"
    assert "node 1 (" in message(run)


def is_node(environ: Path, run: Run, rank: int) -> bool:
    """Whether a process is of the bootstrap of a node of a run."""
    try:
        arguments = (environ.parent / "cmdline").read_bytes().split(b"\0")
        return (
            any(f"jobsdk-{run.name}-".encode() in one for one in arguments)
            and arguments[-3:-2] == [b"node"]
            and f"JOBSDK_NODE_RANK={rank}".encode() in environ.read_bytes().split(b"\0")
        )
    except OSError:
        return False


def test_a_lost_node_is_told(cluster: RayCluster) -> None:
    job = command(command="exec sleep 600", compute="jobs", distribution=PyTorchDistribution(), instance_count=2)
    job.resources.properties = {"ray": {"gpus_per_node": 1}}
    run = MLClient().jobs.create_or_update(job)
    wait_for(lambda: run.status == "Running")
    hosts = {event["node"]: event["host"] for event in run.folder.events() if event["event"] == "allocated"}
    (lost,) = (node for node, host in hosts.items() if host == FIRST)
    cluster.kill(FIRST)
    run.wait(LONG)
    assert run.status == "Lost"
    assert f"node {lost} (" in message(run)
    wait_for(lambda: not left_behind(cluster, run))  # nobody waits for what the lost node takes away itself

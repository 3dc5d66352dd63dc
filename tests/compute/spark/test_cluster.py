"""Jobs on a standalone cluster, whose executors have no jobsdk: in this process's session, and in one of their own."""

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

from jobsdk import JobFailed, MLClient, PyTorchDistribution, command
from jobsdk import compute as computes
from jobsdk.bootstrap.system import processes
from jobsdk.client.run import Run
from tests.bootstrap.runs import wait_for
from tests.compute.collectives import check, job
from tests.compute.spark.cluster import GPUS, Cluster, opened

pytestmark = [pytest.mark.engine("java"), pytest.mark.framework("spark")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("spark"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def session(cluster: Cluster) -> Iterator[Any]:
    """Two executors with two cores each; a task has one GPU."""
    conf = cluster.conf(4, **{"spark.task.resource.gpu.amount": 1, "spark.executor.cores": 2})
    with opened(cluster.master, conf, str(cluster.python)) as made:
        yield made


@pytest.fixture(autouse=True)
def _configured(work: Path, home: Path, cluster: Cluster) -> Iterator[None]:
    """The computes; and no run of a test that failed keeps the slots that the next one needs."""
    entry = {"type": "spark", "master": cluster.master}
    own = cluster.conf(2, **{"spark.executor.cores": 1})
    away = {**entry, "host": "nowhere.invalid"}
    more = {"wide": {**entry, "cpus_per_node": 2}, "wider": {**entry, "cpus_per_node": 99}}
    text = json.dumps({"computes": {"lake": entry, "own": {**entry, "conf": own}, "away": away, **more}})
    (work / "computes.yml").write_text(text)
    yield
    for run in MLClient().jobs.list():
        if run.exit_code is None:
            run.cancel().wait(200)


def submit(text: str, nodes: int = 2, compute: str = "lake", **fields: Any) -> Run:
    distribution = PyTorchDistribution(process_count_per_instance=2)
    one = command(command=text, compute=compute, instance_count=nodes, distribution=distribution, **fields)
    return MLClient().jobs.create_or_update(one)


def logs(run: Run) -> dict[int, str]:
    return {
        int(path.stem.removeprefix("rank-")): path.read_text() for path in run.folder.logs.glob("node-*/rank-*.log")
    }


def left_behind(cluster: Cluster, run: Run) -> list[Path]:
    return list(cluster.temporary.glob(f"jobsdk-{run.name}-*"))


@pytest.mark.usefixtures("session")
def test_a_collective_runs(cluster: Cluster) -> None:
    run = check(job("sockets", 2, "lake"))
    (allocated,) = (event for event in run.folder.events() if event["event"] == "allocated")
    assert allocated["nodes"] == 2
    assert not left_behind(cluster, run)


@pytest.mark.usefixtures("session")
def test_lines_come_while_the_job_runs_and_the_culprit_is_named(tmp_path: Path) -> None:
    go = tmp_path / "go"
    text = f'echo "here is $RANK"; [ "$RANK" = 2 ] || exec sleep 600; until [ -e {go} ]; do sleep 0.05; done; exit 7'
    run = submit(text)
    wait_for(lambda: logs(run) == {rank: f"here is {rank}\n" for rank in range(4)})
    wait_for(lambda: run.status == "Running")  # a log may come before the event
    go.touch()
    with pytest.raises(JobFailed, match="rank 2 on node 1"):
        run.result(200)
    assert (run.status, run.exit_code) == ("Failed", 7)


@pytest.mark.usefixtures("session")
def test_ranks_are_without_jobsdk_and_have_what_was_added_to_the_session(session: Any, tmp_path: Path) -> None:
    module = tmp_path / "added_module.py"
    module.write_text("word = 'added'\n")
    session.sparkContext.addPyFile(str(module))
    script = "import added_module, importlib.util as u; print(added_module.word, u.find_spec('jobsdk.client'))"
    run = submit(f'python -c "{script}"; echo "$OMP_NUM_THREADS"; echo "$RANK" > outputs/$RANK.txt')
    run.result(200)
    assert logs(run) == dict.fromkeys(range(4), "added None\n1\n")
    assert {path.name for path in (run.folder.path / "outputs/default").iterdir()} == {f"{n}.txt" for n in range(4)}


@pytest.mark.usefixtures("session")
def test_it_is_cancelled_from_another_process(cluster: Cluster) -> None:
    run = submit("exec sleep 600")
    wait_for(lambda: run.status == "Running")
    assert len(left_behind(cluster, run)) == 2
    subprocess.run([sys.executable, "-m", "jobsdk", "job", "cancel", run.name], check=True)
    run.wait(200)
    assert (run.status, run.folder.recorded_state().exit_code) == ("Canceled", 130)
    wait_for(lambda: not left_behind(cluster, run))


@pytest.mark.usefixtures("session")
def test_it_waits_for_room_and_says_so() -> None:
    run = submit("true", nodes=5)
    lacks = "Spark can run 4 tasks at once, and the job has 5 nodes"
    wait_for(lambda: lacks in (run.folder.recorded_state().message or ""))
    run.cancel().wait(200)
    assert run.status == "Canceled"
    run = submit("true", nodes=5, rendezvous_timeout=1)
    with pytest.raises(JobFailed, match=lacks):
        run.result(200)
    assert run.exit_code == 126


@pytest.mark.usefixtures("session")
def test_a_run_waits_for_the_slots_of_another() -> None:
    first = submit("exec sleep 600", nodes=3)
    wait_for(lambda: first.status == "Running")
    second = submit("true")
    wait_for(lambda: "waits until Spark starts" in (second.folder.recorded_state().message or ""))
    first.cancel().wait(200)
    second.result(200)


@pytest.mark.usefixtures("session")
def test_tasks_get_as_many_gpus_as_a_node_takes() -> None:
    """More than the session gives its tasks: the stage asks for them."""
    run = submit('echo "$CUDA_VISIBLE_DEVICES"', gpus_per_process=1)
    run.result(200)
    assert sorted(logs(run).values()) == sorted(f"{name}\n" for name in GPUS[:2] * 2)
    run = submit('echo "$CUDA_VISIBLE_DEVICES"', gpus_per_process=0.5)
    run.result(200)
    of_node = [set(list(logs(run).values())[first : first + 2]) for first in (0, 2)]
    assert [len(each) for each in of_node] == [1, 1]
    run = submit("true", gpus_per_process=2)
    with pytest.raises(JobFailed, match="a node takes 4 of gpu, and an executor of the session has 2"):
        run.result(200)


@pytest.mark.usefixtures("session")
def test_more_cores_than_tasks_of_the_session_have_are_counted_or_told_to_be_too_many() -> None:
    run = submit("true", nodes=3, compute="wide")
    wait_for(lambda: "Spark can run 2 tasks at once" in (run.folder.recorded_state().message or ""))
    run.cancel().wait(200)
    submit("true", compute="wide").result(200)
    with pytest.raises(JobFailed, match=r"a node takes 99 cores, and an executor of the session has 2\. Fix: "):
        submit("true", compute="wider").result(200)


@pytest.mark.usefixtures("session")
def test_executors_that_cannot_reach_the_driver_are_told() -> None:
    run = submit("true", compute="away")
    with pytest.raises(JobFailed, match=r"the driver cannot be reached from .*: nowhere\.invalid port \d+: "):
        run.result(200)
    (found,) = (one for one in computes.resolve("away").check() if not one.is_well)
    assert found.what == "way back to this machine"


@pytest.mark.usefixtures("session")
def test_the_check_says_what_there_is() -> None:
    found = {one.what: one for one in computes.resolve("lake").check()}
    assert all(one.is_well for one in found.values())
    assert found["session"].found.startswith("open in this process: Spark ")
    assert found["task slots"].found.startswith("4 ")
    assert found["GPUs of a task"].found.split(" ")[0] in GPUS


def test_a_run_of_a_process_without_a_session_makes_its_own(work: Path, home: Path, cluster: Cluster) -> None:
    said = work / "said"  # who fails first must not end the others before they have said anything
    said.mkdir()
    all_said = f"touch {said}/$RANK; until [ $(ls {said} | wc -l) = 4 ]; do sleep 0.05; done"
    (work / "job.yml").write_text(
        f"command: echo $CUDA_VISIBLE_DEVICES; {all_said}; [ $RANK = 0 ] || exit 9\ncompute: own\n"
        "distribution: {type: pytorch, process_count_per_instance: 2}\n"
        "resources: {instance_count: 2, gpus_per_process: 1}\n"
    )
    argv = [sys.executable, "-m", "jobsdk", "job", "create", "-f", "job.yml", "--stream", "--name", "detached"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200)
    assert done.returncode == 9, done.stdout + done.stderr
    (run,) = MLClient().jobs.list()
    masks = logs(run)
    for first, second in ((0, 1), (2, 3)):
        assert masks[first] != masks[second]
        assert {masks[first].strip(), masks[second].strip()} <= set(GPUS)
    assert "rank" in str(run.folder.recorded_state().message)


def test_a_lost_executor_ends_the_run(cluster: Cluster, session: Any) -> None:
    """That of node 0: how another one was lost node 0 may tell by what it has seen itself, before Spark says it."""
    run = submit("exec sleep 600", nodes=4)
    wait_for(lambda: run.status == "Running")
    executors = cluster.executors(session.sparkContext.applicationId)
    (executor,) = (pid for pid in executors if any(is_of_node_0(each, run) for each in processes.descendants(pid)))
    os.kill(executor, signal.SIGKILL)
    run.wait(200)
    assert run.status == "Lost"
    assert "its executor was lost" in str(run.folder.recorded_state().message)
    wait_for(lambda: not left_behind(cluster, run))


def is_of_node_0(pid: int, run: Run) -> bool:
    """Whether a process is of the bootstrap of node 0 of a run, or of its ranks."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return b"JOBSDK_NODE_RANK=0\0" in environ and f"/jobsdk-{run.name}-".encode() in environ

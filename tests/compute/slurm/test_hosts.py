"""Machines that die, on a real Slurm whose nodes have networks and names of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsdk.client.run import Run
from jobsdk.compute.slurm.compute import SlurmCompute
from jobsdk.runs.refresh import Pace
from tests.bootstrap.namespaces import Hosts
from tests.bootstrap.runs import wait_for
from tests.compute import collectives
from tests.compute.slurm.cluster import SlurmCluster
from tests.compute.slurm.test_runs import kinds, number, start, until_running

pytestmark = [pytest.mark.engine("slurm"), pytest.mark.engine("network")]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    folder = tmp_path_factory.mktemp("hosts")
    with Hosts(folder, 4) as hosts, SlurmCluster(folder, 3, hosts) as cluster:
        yield cluster


@pytest.fixture
def cluster(slurm: SlurmCluster, work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    (work / "computes.yml").write_text("computes: {cluster: {type: slurm}}")
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(SlurmCompute, "pace", Pace(0.1, 0.3))
    yield slurm
    slurm.end_all_jobs()
    slurm.bring_up()


def start_on(cluster: SlurmCluster, nodes: str, *budgets: int) -> list[Run]:
    """A job with each of these `max_restarts` on the named nodes. Started again they may have others."""
    others = ",".join(set(cluster.nodes) - set(nodes.split(",")))
    cluster.client("scontrol", "update", f"NodeName={others}", "State=drain", "Reason=test")
    runs = [start(max_restarts=budget, restart_delay=0) for budget in budgets]
    for run in runs:
        until_running(run)
    cluster.client("scontrol", "update", f"NodeName={others}", "State=resume")
    return runs


@pytest.mark.framework("mpi")
def test_mpirun_reaches_the_ranks_of_all_machines(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # inherited, which `explain` does not know of a cluster
    run = collectives.check(collectives.job("mpi", 2, "cluster"))
    joined = {event["host"] for event in run.folder.events() if event["event"] == "node_joined"}
    assert joined == {"h1", "h2"}


def test_a_machine_dies(cluster: SlurmCluster) -> None:
    """It is node 1 of two jobs and node 0 of two others; of each two one may be started again."""
    second, second_again = start_on(cluster, "h1,h2", 0, 1)
    first, first_again = start_on(cluster, "h2,h3", 0, 1)
    cluster.kill_host("h2")

    second.wait(200)  # its node 0 is still there to tell
    assert (second.status, second.exit_code, second.report["cause"]["node"]) == ("Lost", 125, 1)
    assert second.report["message"].startswith("node 1 (h2) is lost: ")

    # What Slurm would find out by itself after a while, as far as pings go.
    cluster.client("scontrol", "update", "NodeName=h2", "State=down", "Reason=died")
    first.wait(200)
    assert (first.status, first.exit_code, first.report["cause"]["class"]) == ("Lost", 125, "node_lost")
    assert first.report["message"].startswith(f"Slurm ended job {number(first)} as NODE_FAIL")

    for run in (second_again, first_again):
        wait_for(lambda run=run: run.status == "Queued")  # type: ignore[misc]
        cluster.start_now(number(run))
    for run in (second_again, first_again):
        run.result(200)
        (earlier,) = run.report["restarts"]
        assert (earlier["class"], earlier["round"]) == ("node_lost", 0)
        joined = [event["host"] for event in run.folder.events() if event["event"] == "node_joined"]
        assert sorted(joined[-2:]) == ["h1", "h3"]
        assert kinds(run).count("ended") == 1


def test_a_spare_machine_takes_the_place_of_one_that_dies(cluster: SlurmCluster) -> None:
    run = start(max_restarts=1, restart_delay=0, slurm={"spare": 1})
    until_running(run)
    before = {event["node"]: event["host"] for event in run.folder.events() if event["event"] == "node_joined"}
    assert before == {0: "h1", 1: "h2"}
    cluster.kill_host("h2")
    wait_for(lambda: "restart" in kinds(run))
    cluster.client("scontrol", "update", "NodeName=h2", "State=down", "Reason=died")
    run.result(200)
    (earlier,) = run.report["restarts"]
    assert (earlier["class"], earlier["node"], earlier["decision"]) == ("node_lost", 1, "restarted at once (1 of 1)")
    joined = [(event["node"], event["host"]) for event in run.folder.events() if event["event"] == "node_joined"]
    assert joined[-1] == (1, "h3")
    assert [record["node"] for record in run.report["ranks"]] == [0, 1]
    assert (run.folder.logs / "node-1/rank-1.restart-1.log").read_text() == "up 1\n"
    wait_for(lambda: number(run) not in cluster.client("squeue", "--noheader", "--format=%i"))

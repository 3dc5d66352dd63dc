"""A Ray cluster inside of a job's nodes: what computes say of it, and a real one under a real Slurm."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk import MLClient, RayDistribution, command
from jobsdk.client.explain import explain
from jobsdk.compute import job_rules
from jobsdk.compute.slurm.compute import SlurmCompute
from jobsdk.job.command import CommandJob
from jobsdk.runs.refresh import Pace
from tests.bootstrap.runs import processes_of, wait_for
from tests.compute.slurm.cluster import SlurmCluster

SCRIPT = Path(__file__).parents[1] / "bootstrap/scripts/ray_all_nodes.py"


def job(nodes: int = 2, variables: dict[str, Any] | None = None, **fields: Any) -> CommandJob:
    return command(
        command="echo",
        distribution=RayDistribution(**fields),
        instance_count=nodes,
        environment_variables=variables or {},
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (job(), []),
        (job(head_node_additional_args="--num-cpus 4 --resources='{\"a\": 1}'"), []),
        (
            job(variables={"RAY_ADDRESS": "auto"}),
            ["error: environment_variables.RAY_ADDRESS: is set for the job's own Ray cluster. Fix: remove it, or set "
             "distribution.address"],
        ),
        (
            job(head_node_additional_args="--temp-dir=/scratch --block", worker_node_additional_args='"'),
            ["error: distribution.head_node_additional_args: --temp-dir is set by jobsdk. Fix: set RAY_TMPDIR in "
             "environment_variables",
             "error: distribution.head_node_additional_args: --block is set by jobsdk. Fix: remove it",
             "error: distribution.worker_node_additional_args: cannot be split into arguments: No closing quotation. "
             "Fix: quote it as for a shell"],
        ),
        (job(1, address="10.0.0.1:6379"), []),
        (
            job(3, address="10.0.0.1:6379", port=6380),
            ["warning: distribution.port: has no effect: with an address no cluster is started. Fix: remove it, or "
             "remove distribution.address",
             "warning: resources.instance_count: only the first of the 3 nodes has anything to do on here: with an "
             "address no cluster is started. Fix: set it to 1, or remove distribution.address"],
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_it(given: CommandJob, words: list[str]) -> None:
    assert [str(finding) for finding in job_rules.of_ray_cluster("here", given)] == words
    assert all(len(line) <= 400 for line in words)


def test_none_is_started_inside_of_a_ray_cluster() -> None:
    (finding,) = job_rules.ray_within_ray("shared", job())
    assert str(finding) == (
        "error: distribution: the compute shared is a Ray cluster itself, and none is started inside of one. "
        "Fix: remove the distribution and call ray.init() in the script, or set distribution.address"
    )
    assert not list(job_rules.ray_within_ray("shared", job(address="auto")))


def test_the_local_compute_looks_for_ray() -> None:
    found = job()
    found.compute = "local"
    assert MLClient().jobs.validate(found).passed
    found.environment_variables = {"PATH": "/bin:/usr/bin"}
    (error,) = [one for one in MLClient().jobs.validate(found).findings if one.is_error]
    assert str(error) == "error: distribution: there is no ray on PATH. Fix: pip install 'ray[default]'"


def test_it_is_explained(work: Path) -> None:
    found = explain(job(), compute="local")
    assert len(found) == 1
    assert found[0].environment["RAY_ADDRESS"] == "<address of node 0>:<free port 1 on node 0>"
    assert found[0].environment["RAY_AUTH_TOKEN_PATH"] == "<folder of Ray's files>/token"
    assert "1 process on 2 nodes (ray), compute local" in found.to_text()


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), 2) as cluster:
        for name, value in cluster.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(SlurmCompute, "pace", Pace(0.1, 0.3))
        yield cluster
        cluster.end_all_jobs()


@pytest.mark.framework("ray")
@pytest.mark.engine("slurm")
def test_the_nodes_of_slurm_form_one(slurm: SlurmCluster, work: Path) -> None:
    (work / "computes.yml").write_text("computes: {cluster: {type: slurm}}")
    with tempfile.TemporaryDirectory(prefix="jr", dir="/tmp") as files:  # Ray's sockets want a short path
        one = command(
            command=f"exec python {SCRIPT}",
            distribution=RayDistribution(),
            instance_count=2,
            compute="cluster",
            environment_variables={"CODE": "7", "RAY_TMPDIR": files},
        )
        run = MLClient().jobs.create_or_update(one).wait(200)
        assert (run.status, run.exit_code) == ("Failed", 7)
        assert "2 nodes, tasks on 2" in (run.folder.logs / "node-0/rank-0.log").read_text()
        assert "Ray runtime started" in (run.folder.logs / "node-1/ray.log").read_text()
        wait_for(lambda: not os.listdir(files))
        wait_for(lambda: not processes_of(run.folder.path))

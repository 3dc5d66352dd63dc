"""The doctor on the nodes of clusters: the same preflight on every compute, and its result brought back."""

from __future__ import annotations

import pytest

from jobsdk import doctor
from jobsdk.bootstrap.preflight.finding import OK
from tests.compute.slurm.cluster import SlurmCluster
from tests.compute.slurm.test_runs import cluster, slurm  # noqa: F401  (fixtures)
from tests.compute.ssh.test_ssh import Configure, lab, machines  # noqa: F401


def looked_at(compute: str) -> doctor.Preflight:
    compiled = doctor.plan_preflight(doctor.job_of(2), compute=compute, bandwidth=True)
    return doctor.run_preflight(compiled, lambda text: None)


@pytest.mark.engine("slurm")
def test_nodes_of_a_slurm_cluster(cluster: SlurmCluster) -> None:  # noqa: F811
    found = looked_at("cluster")
    assert not doctor.has_problem(found.findings), found.findings
    assert "2 nodes: connect matrix 2/2 ok" in found.summary
    assert sorted(found.nodes) == ["0", "1"]
    assert [one.level for one in found.findings if one.text.startswith("TCP between 2 nodes: ")] == [OK]


@pytest.mark.engine("ssh")
@pytest.mark.engine("network")
def test_plain_machines_with_a_network_of_their_own(lab: Configure) -> None:  # noqa: F811
    found = looked_at("lab")
    assert not doctor.has_problem(found.findings), found.findings
    assert found.nodes["1"]["facts"]["host"] == "h1"
    measured = [one.text for one in found.findings if one.subject == "bandwidth"]
    assert any("of 10 Gbit/s (eth0)" in text for text in measured), measured
    assert any(text.startswith("torch's all-reduce (gloo, ") for text in measured), measured

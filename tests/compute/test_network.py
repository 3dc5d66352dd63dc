"""A compute's `network`: what is wrong in it, and its way into plan, explain and ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from jobsdk import MLClient, MpiDistribution, PyTorchDistribution, command
from jobsdk import compute as computes
from jobsdk.bootstrap.distributions import open_mpi
from jobsdk.compute import network
from jobsdk.job.machines import known
from jobsdk.planning.plan import make_plan
from tests.bootstrap.runs import LocalRun
from tests.client.test_explain import as_pattern
from tests.conftest import Mpi

WHOLE = {
    "interface": "lo", "ib_devices": ["mlx5_0", "mlx5_1"], "gdr": False, "mtu": 4096,
    "variables": {"NCCL_IB_TIMEOUT": 22, "UCX_LOG_LEVEL": "error"},
}  # fmt: skip


def project(**settings: Any) -> None:
    Path("computes.yml").write_text(json.dumps({"computes": {"twin": {"type": "local", **settings}}}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "network must be a mapping with interface, ib_devices"),
        ({"interfce": "eth0"}, "network has no 'interfce': did you mean 'interface'?"),
        ({"interface": "eth 0"}, "network.interface must be a name as eth0"),
        ({"interface": 0}, "network.interface must be a name"),
        ({"ib_devices": "mlx5_0"}, "network.ib_devices must be a list of names"),
        ({"ib_devices": []}, "network.ib_devices must be a list of names"),
        ({"gdr": "yes"}, "network.gdr must be true or false"),
        ({"mtu": 100}, "network.mtu must be a number of bytes from 256 to 65536"),
        ({"mtu": True}, "network.mtu must be a number of bytes"),
        ({"variables": ["A=b"]}, "network.variables must be a mapping"),
        ({"variables": {"A B": "c"}}, "network.variables: 'A B' is no name"),
        ({"variables": {"RANK": 3}}, "network.variables: RANK is set for each process"),
        ({"variables": {"A": True}}, "network.variables.A must be a text or a number"),
        ({"infiniband": False, "ib_devices": ["a"]}, "network.infiniband is false, and there are ib_devices"),
    ],
)
def test_what_is_wrong_in_it(given: Any, message: str) -> None:
    (mistake,) = network.mistakes(given)
    assert mistake.startswith(message)


def test_all_settings_together_are_right() -> None:
    assert list(network.mistakes({**WHOLE, "interface": "eth0,eth1"})) == []


def test_what_goes_into_the_plan() -> None:
    assert network.planned(WHOLE, None) == {**WHOLE, "variables": {"NCCL_IB_TIMEOUT": "22", "UCX_LOG_LEVEL": "error"}}
    assert network.planned(None, known().find("NC24rs_v3")) == {"infiniband": True}
    assert network.planned({"gdr": True}, known().find("NC24r")) == {"gdr": True, "infiniband": False}
    assert network.planned({"infiniband": False}, known().find("NC24rs_v3")) == {"infiniband": False}


def test_a_compute_that_says_nothing_of_it_leaves_the_plan_as_it_is() -> None:
    assert "network" not in MLClient().jobs.compile(command(command="x", instance_count=2)).plan


def test_a_job_that_names_its_machine_has_it_in_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    from jobsdk.compute.base import Compute
    from jobsdk.compute.local import LocalCompute

    monkeypatch.setattr(LocalCompute, "machine", Compute.machine)  # as types other than local have it
    project(instance_type="Standard_ND96asr_v4")
    job = command(command="x", instance_count=2, compute="twin")

    def planned() -> dict[str, Any]:
        target = computes.resolve("twin")
        return target.plan(job, target.place(job), name="r")

    assert planned()["network"] == {"infiniband": True}
    job.resources.instance_type = "nc24s_v3"
    assert planned()["network"] == {"infiniband": False}
    job.resources.instance_type = "of-this-site"
    assert "network" not in planned()


@pytest.mark.parametrize("distribution", [PyTorchDistribution(), MpiDistribution(launcher="direct")])
def test_ranks_get_what_explain_shows_and_the_user_hears_that_infiniband_is_off(
    distribution: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    project(network=WHOLE)
    job = command(command="env -0", instance_count=2, compute="twin", distribution=distribution)
    job.environment_variables["UCX_LOG_LEVEL"] = "info"
    shown = job.explain()[1].environment
    run = MLClient().jobs.create_or_update(job, warn=lambda text: None).wait()
    assert run.status == "Completed", run.report
    lines = next(run.folder.logs.glob("node-1/rank-1.log")).read_bytes().decode().split("\0")
    actual = dict(line.split("=", 1) for line in lines if "=" in line)
    for name, value in shown.items():
        if "else unset" not in value or name in actual:
            assert as_pattern(value).fullmatch(actual.get(name, "")), f"{name}: {actual.get(name)!r}, shown {value!r}"
    told = {name for name in actual if name.startswith(("NCCL_", "UCX_", "GLOO_", "OMPI_MCA_"))}
    assert told <= set(shown)
    expected = {
        "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "UCX_TLS": "^ib",
        "NCCL_NET_GDR_LEVEL": "LOC", "UCX_IB_GPU_DIRECT_RDMA": "no", "UCX_IB_PATH_MTU": "4096",
        "NCCL_IB_TIMEOUT": "22", "UCX_LOG_LEVEL": "info",
    }  # fmt: skip
    if distribution.type == "mpi":
        expected |= {
            "OMPI_MCA_btl": "^openib",
            "OMPI_MCA_btl_tcp_if_include": "lo",
            "OMPI_MCA_oob_tcp_if_include": "lo",
        }
        told = {
            name for name in told if name in expected or not name.startswith("OMPI_MCA_")
        }  # how daemons are started
    assert {name: actual[name] for name in told} == expected
    (warning,) = [event["message"] for event in run.folder.events() if event["event"] == "warning"]
    assert warning == ("InfiniBand is off, and TCP takes its place: all nodes have no active port of mlx5_0, mlx5_1")


def test_open_mpi_and_its_daemons_take_the_interface() -> None:
    addresses = ["10.0.0.1", "10.0.0.2"]
    chosen = open_mpi.settings(addresses, {"OMPI_MCA_btl_tcp_if_include": "eth9"}, "ib0")
    assert {name: value for name, value in chosen.items() if "include" in name} == {
        "OMPI_MCA_oob_tcp_if_include": "ib0", "PRTE_MCA_prte_if_include": "ib0",
    }  # fmt: skip


def test_every_mpi_communicates_where_infiniband_is_turned_off(mpi: Mpi, tmp_path: Path) -> None:
    """The variables that turn it off are understood, also by libraries that know no InfiniBand."""
    program = "from mpi4py import MPI; import os; print(MPI.COMM_WORLD.allreduce(1), os.environ['UCX_TLS'])"
    job = command(
        command=f'{mpi.python} -c "{program}"', instance_count=2, environment_variables=mpi.variables,
        distribution=MpiDistribution(launcher=mpi.launcher, process_count_per_instance=2),
    )  # fmt: skip
    plan = {**make_plan(job, name="r"), "network": {"infiniband": True, "interface": "lo"}}
    run = LocalRun(tmp_path / "run", plan, PATH=f"{mpi.folder}:{os.environ['PATH']}")
    assert run.wait() == 0, run.report()["message"]
    assert {run.log(rank) for rank in range(4)} == {"4 ^ib\n"}

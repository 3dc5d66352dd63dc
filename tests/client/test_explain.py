"""What explain says, and that real processes get exactly that."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, reject, settings
from hypothesis import strategies as st

from jobsdk import (
    DeepSpeedDistribution,
    Input,
    MLClient,
    MpiDistribution,
    Output,
    PyTorchDistribution,
    RayDistribution,
    ScalingConfig,
    TensorFlowDistribution,
    TorchConfig,
    command,
)
from jobsdk import compute as computes
from jobsdk.bootstrap import distributions as distributions_
from jobsdk.bootstrap.agent.facts import facts_of
from jobsdk.bootstrap.distributions import contract, ray
from jobsdk.bootstrap.spec import paths, plan_file
from jobsdk.bootstrap.system import infiniband, processes
from jobsdk.compute.environ import for_ranks
from jobsdk.errors import ValidationError
from jobsdk.job.command import CommandJob
from jobsdk.planning.plan import make_plan
from tests.bootstrap.runs import LocalRun

#: Variables that a shell, or mpirun and deepspeed themselves, add.
NOT_OURS = re.compile(
    r"PWD|OLDPWD|SHLVL|_|LC_CTYPE|(OMPI|OPAL|ORTE|PMIX|PRTE|HYDI?|PMI|MPI)_.*|IPATH_NO_BACKTRACE|FI_TCP_IFACE"
    r"|HFI_NO_BACKTRACE|CUDA_VISIBLE_DEVICES|PATH|PYTHONPATH|(DY)?LD_LIBRARY_PATH|PYTORCH_NVML_BASED_CUDA_CHECK"
)
DISTRIBUTIONS: dict[str, Any] = {
    "none": None,
    "pytorch": PyTorchDistribution(process_count_per_instance=2),
    "tensorflow": TensorFlowDistribution(parameter_server_count=1, chief=True),
    "mpi-direct": MpiDistribution(process_count_per_instance=2, launcher="direct"),
    "mpi-mpirun": MpiDistribution(process_count_per_instance=2),
    "deepspeed-direct": DeepSpeedDistribution(process_count_per_instance=2, config={"train_batch_size": 8}),
    "deepspeed-launcher": DeepSpeedDistribution(process_count_per_instance=2, launcher="deepspeed"),
}


def make_job(distribution: Any, nodes: int, data: Path) -> CommandJob:
    return command(
        command="env -0 > ${{outputs.env}}/$RANK; cat ${{inputs.data}} > /dev/null; sleep 0.2",
        inputs={"data": Input(type="uri_file", path=str(data)), "rate": 0.5},
        outputs={"env": Output()},
        environment_variables={"MINE": "a b $HOME 'c'", "OMP_NUM_THREADS": "7"},
        distribution=distribution,
        instance_count=nodes,
    )


def as_pattern(shown: str) -> re.Pattern[str]:
    """What is in angle brackets is known only at run time, and secrets are stars; all else must be as it was shown."""
    return re.compile(".+".join(re.escape(text) for text in re.split(r"<[^<>]*>|\*\*\*", shown)), re.DOTALL)


_MARKS: dict[str, Any] = {
    "mpi-mpirun": [pytest.mark.framework("mpi")],
    "deepspeed-launcher": [pytest.mark.framework("deepspeed"), pytest.mark.engine("compiler")],
}


@pytest.mark.parametrize(
    ("kind", "nodes"),
    [
        # DeepSpeed is slow to import: on two nodes its launcher shows all that it does on one.
        pytest.param(kind, nodes, marks=[*_MARKS.get(kind, []), *([pytest.mark.parity] if is_slow else [])])
        for kind in DISTRIBUTIONS
        for nodes in (1, 2)
        for is_slow in [(kind, nodes) == ("deepspeed-launcher", 1)]
    ],
)
def test_each_process_has_the_environment_that_explain_showed(
    kind: str, nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # inherited: neither shown nor changed
    data = tmp_path / "data.txt"
    data.write_text("x")
    job = make_job(DISTRIBUTIONS[kind], nodes, data)
    shown = job.explain(compute="local")
    run = LocalRun(tmp_path / "run", make_plan(job, name="run"))
    assert run.wait() == 0, run.report()["message"]

    inherited = {**os.environ, "JOBSDK_RUN_DIR": str(run.folder)}
    for process in shown:
        lines = (run.folder / f"outputs/env/{process.rank}").read_bytes().decode().split("\0")
        actual = dict(line.split("=", 1) for line in lines if line)
        for name, value in process.environment.items():
            assert as_pattern(value).fullmatch(actual.get(name, "")), f"{name}: {actual.get(name)!r}, shown {value!r}"
        changed = {name for name, value in actual.items() if inherited.get(name) != value}
        unexplained = {name for name in changed - set(process.environment) if not NOT_OURS.fullmatch(name)}
        assert not unexplained
        if kind == "deepspeed-direct":
            config = json.loads(Path(actual["JOBSDK_DEEPSPEED_CONFIG"]).read_text())
            assert config == {"train_batch_size": 8}
        assert actual["MINE"] == "a b $HOME 'c'"
        assert "GLOO_SOCKET_IFNAME" not in process.environment


def test_by_rank_and_in_order() -> None:
    job = command(command="x", instance_count=3, distribution=TensorFlowDistribution(parameter_server_count=2))
    shown = job.explain(compute="local")
    assert [process.rank for process in shown] == list(range(5)) == [shown[rank].rank for rank in range(5)]
    assert [process.role for process in shown] == ["worker", "ps", "worker", "ps", "worker"]
    with pytest.raises(IndexError, match="ranks 0 to 4"):
        shown[5]


def test_elsewhere_what_only_the_node_knows_is_a_placeholder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # of this machine, not of that cluster
    job = command(command="x", compute="cluster", distribution=PyTorchDistribution(process_count_per_instance=4))
    environment = job.explain()[0].environment
    assert environment["OMP_NUM_THREADS"] == "<cores of the node / 4>"
    assert environment["MASTER_ADDR"] == "<address of node 0>"


def test_gpus_are_shown_by_their_place_in_the_nodes_list() -> None:
    job = command(command="x", gpus_per_process=2, distribution=PyTorchDistribution(process_count_per_instance=2))
    shown = job.explain(compute="local")
    assert shown[1].environment["CUDA_VISIBLE_DEVICES"] == "<GPU 2 of the node's list>,<GPU 3 of the node's list>"


def test_an_invalid_job_is_not_explained() -> None:
    with pytest.raises(ValidationError, match="nope"):
        command(command="echo ${{inputs.nope}}").explain()


def test_text_says_what_is_shared_once_and_folds_many_ranks() -> None:
    job = command(command="x", instance_count=64, distribution=PyTorchDistribution(process_count_per_instance=8))
    text = job.explain(compute="local").to_text()
    assert text.startswith("512 processes on 64 nodes (pytorch), compute local\ncommand: x\nevery process:\n")
    assert text.count("WORLD_SIZE=512") == 2, "WORLD_SIZE and ROLE_WORLD_SIZE, once each"
    assert text.endswith("... and ranks 16 to 511 likewise (--rank N shows one)")
    one = job.explain(compute="local").to_text([300])
    assert "rank 300: node 37, local rank 4\n" in one
    assert "  RANK=300\n" in one


def test_a_thousand_ranks_are_no_work() -> None:
    job = command(command="x", instance_count=128, distribution=PyTorchDistribution(process_count_per_instance=8))
    began = time.process_time()
    shown = job.explain(compute="local").to_dict()
    spent = time.process_time() - began
    assert len(shown["processes"]) == 1024
    assert len({process["environment"]["RANK"] for process in shown["processes"]}) == 1024
    print(f"1,024 ranks explained in {1000 * spent:.0f} ms of CPU time")


def test_inherited_variables_that_are_dropped_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "SLURM_CONF"):
        monkeypatch.setenv(name, "of another job")
    shown = command(command="x").explain(compute="local")
    assert shown.to_dict()["dropped"] == ["OMPI_COMM_WORLD_RANK", "SLURM_PROCID"]
    assert "inherited variables that are dropped: OMPI_COMM_WORLD_RANK, SLURM_PROCID\n" in shown.to_text()
    assert "of another job" not in shown.to_text()
    assert command(command="x", compute="cluster").explain().dropped == []


def test_secrets_are_stars() -> None:
    job = command(command="x", environment_variables={"MY_TOKEN": "swordfish"}, secrets=["FROM_SHELL"])
    shown = job.explain(compute="local")
    assert {"MY_TOKEN": "***", "FROM_SHELL": "***"}.items() <= shown[0].environment.items()
    assert shown.to_dict()["secrets"] == ["FROM_SHELL", "MY_TOKEN"]
    assert "swordfish" not in shown.to_text()


# -- any job, on any compute -----------------------------------------------------------------------------------------

SECRET = "sk-proj-" + "aBcD" * 9
OF_AZURE = {
    "type": "azureml", "subscription_id": "00000000-0000-0000-0000-000000000000", "resource_group": "group",
    "workspace_name": "workspace", "image": "x",
}  # fmt: skip
COMPUTES: list[dict[str, Any]] = [
    {"type": "local", "preload": ["json"]},
    {"type": "slurm", "gpus_per_node": 4},
    {"type": "slurm", "instance_type": "Standard_ND96asr_v4"},
    {"type": "kubernetes", "image": "x", "gpus_per_node": 2},
    {"type": "kubernetes", "image": "x", "network": {"interface": "eth1", "ib_devices": ["mlx5_0"]}},
    OF_AZURE,
    {**OF_AZURE, "instance_type": "Standard_NC24s_v3"},
    {"type": "ssh", "hosts": list("abcdefgh"), "gpus_per_node": 8},
    {"type": "spark", "master": "spark://head:7077", "gpus_per_node": 4, "cpus_per_node": 8},
    {"type": "ray", "address": "http://head:8265"},
]
#: How Open MPI's daemons talk follows from the nodes' addresses, which nobody knows before: these are not shown.
OF_ADDRESSES = {"OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include"}
EITHER = re.compile("<(.*) if all nodes have InfiniBand, else (.*)>")
DEEPSPEED: list[Any] = [None, {"train_micro_batch_size_per_gpu": 1, "wandb": {"api_key": SECRET}}]
counts = st.integers(1, 4)
scalings = st.builds(
    ScalingConfig,
    num_workers=st.integers(1, 12),
    use_gpu=st.just(True),
    resources_per_worker=st.sampled_from([None, {"CPU": 2}, {"GPU": 2}, {"GPU": 0.5, "CPU": 1}]),
    placement_strategy=st.sampled_from(["PACK", "SPREAD", "STRICT_SPREAD"]),
) | st.builds(ScalingConfig, num_workers=st.integers(1, 12))


def distributions(each: st.SearchStrategy[int | None]) -> st.SearchStrategy[Any]:
    """With `each` processes on a node."""
    return st.one_of(
        st.none(),
        st.builds(PyTorchDistribution, process_count_per_instance=each),
        st.builds(TensorFlowDistribution, parameter_server_count=st.integers(0, 2), chief=st.booleans()),
        st.builds(MpiDistribution, process_count_per_instance=each, launcher=st.just("direct")),
        st.builds(DeepSpeedDistribution, process_count_per_instance=each, config=st.sampled_from(DEEPSPEED)),
    )


sizes = st.fixed_dictionaries({"scaling": scalings, "distribution": distributions(st.none())}) | st.fixed_dictionaries(
    {
        "instance_count": counts,
        "gpus_per_process": st.sampled_from([None, 0.5, 1, 2]),
        "distribution": distributions(counts) | st.builds(RayDistribution, port=st.none() | st.just(6400)),
    }
)
others = st.fixed_dictionaries(
    {
        "environment_variables": st.sampled_from([{}, {"PLAIN": "a b"}, {"MY_TOKEN": SECRET}]),
        "secrets": st.sampled_from([[], ["FROM_SHELL"]]),
        "inputs": st.sampled_from([{}, {"rate": 0.5, "password": "hunter22"}]),
        "torch_config": st.none() | st.just(TorchConfig("gloo", timeout_s=60)),
        "max_restarts": st.sampled_from([0, 2]),
    }
)


@pytest.fixture
def nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FROM_SHELL", "open sesame")
    for kind in {one["type"] for one in COMPUTES}:
        for step in ("prepare", "submit"):
            monkeypatch.setattr(computes.type_of(kind), step, lambda *_: None)


@example(
    COMPUTES[1],
    {"scaling": ScalingConfig(num_workers=8, use_gpu=True), "distribution": DeepSpeedDistribution(config=DEEPSPEED[1])},
    {"inputs": {}},
    False,
)
@given(st.sampled_from(COMPUTES), sizes, others, st.booleans())
@settings(max_examples=120, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_any_job_has_the_environment_that_explain_showed(
    nothing_is_started: None, entry: dict[str, Any], size: dict[str, Any], other: dict[str, Any], has_infiniband: bool
) -> None:
    Path("computes.yml").write_text(json.dumps({"default": "there", "computes": {"there": entry}}))
    words = " ".join(f"${{{{inputs.{name}}}}}" for name in other["inputs"])
    job = command(command=f"train {words}", **size, **other)
    try:
        run = MLClient().jobs.create_or_update(job)
    except ValidationError:
        reject()  # the compute has no room for it, or fields clash
    shown = job.explain()
    plan = plan_file.read(str(run.folder.path))
    ranks = list(distributions_.of(plan).processes())
    assert [(one.rank, one.node_rank, one.local_rank, one.role) for one in shown] == [
        (one.rank, one.node_rank, one.local_rank, one.role) for one in ranks
    ]
    network = plan.get("network") or {}
    devices = ["mlx5_0"] if has_infiniband else [] if infiniband.expected(network) else None
    start = {
        "addresses": [f"127.0.0.{node + 1}" for node in range(plan["nodes"])],
        "ports": [list(range(20000, 20000 + ray.PORTS + 16))] * plan["nodes"],
        "restart": 0,
        "cores": 16,
        "gpus": [f"GPU-{k}" for k in range(64)],
        "infiniband": infiniband.agree(network, [devices] * plan["nodes"], "abcdefghijkl").devices,
    }
    inherited = {name: f"/nodes/{name}" for name in run.target.inherited}
    if entry["type"] == "local":
        start["cores"] = max(1, processes.cores() // plan["nodes"])
        inherited = for_ranks(os.environ)
    facts = facts_of(start, inherited, str(run.folder.path), str(run.folder.path))._replace(ray="/tmp/ray")
    environment = contract.Contract(plan, facts)
    for process, expected in zip(ranks, shown, strict=True):
        actual = environment.environment(process)
        told = {name: EITHER.sub(rf"\{2 - has_infiniband}", value) for name, value in expected.environment.items()}
        told = {name: value for name, value in told.items() if value != "unset"}
        assert actual.keys() - told.keys() <= OF_ADDRESSES
        for name, value in told.items():
            assert as_pattern(value).fullmatch(actual[name]), f"{name}: {actual[name]!r}, shown {value!r}"
        secrets = {"MY_TOKEN": SECRET, "FROM_SHELL": "open sesame"}
        assert {name: actual[name] for name in plan["secrets"]} == {name: secrets[name] for name in plan["secrets"]}
        assert as_pattern(expected.command).fullmatch(paths.rendered(plan, facts.io_dir))

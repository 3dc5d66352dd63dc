"""The environment contract, as arithmetic and as a table."""

from __future__ import annotations

import json
import os
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.distributions import contract
from jobsdk.bootstrap.spec import facts as facts_
from tests.bootstrap.runs import plan


def facts(the_plan: dict[str, Any], **more: Any) -> facts_.Facts:
    nodes = the_plan["nodes"]
    known: dict[str, Any] = {
        "addresses": [f"10.0.0.{node}" for node in range(nodes)],
        "ports": [[20000 + 100 * node + local for local in range(64)] for node in range(nodes)],
        "host_list": ",".join(f"10.0.0.{node}" for node in range(nodes)),
        "cores": 8, "interface": "eth0", "gpus": None, "inherited": {}, "run_dir": "/run", "io_dir": "/run",
    }  # fmt: skip
    return facts_.Facts(**{**known, **more})


def environments(the_plan: dict[str, Any], **more: Any) -> list[dict[str, str]]:
    rules = contract.Contract(the_plan, facts(the_plan, **more))
    return [rules.environment(process) for process in distributions.of(the_plan).processes()]


uniform = st.builds(
    lambda kind, nodes, processes: plan("x", nodes, {"type": kind, "processes": processes, "launcher": "direct"}),
    st.sampled_from(["pytorch", "mpi", "deepspeed", "ray", "none"]), st.integers(1, 12), st.integers(1, 9),
)  # fmt: skip
tensorflow = st.integers(1, 8).flatmap(
    lambda nodes: st.builds(
        lambda workers, servers, chief: plan(
            "x",
            nodes,
            {
                "type": "tensorflow",
                "launcher": "direct",
                "workers": workers,
                "parameter_servers": servers,
                "chief": chief,
            },
        ),
        st.integers(1, nodes),
        st.integers(0, 6),
        st.booleans(),
    )
)


@given(st.one_of(uniform, tensorflow))
def test_ranks_are_a_permutation_and_all_agree_on_the_world(the_plan: dict[str, Any]) -> None:
    found = environments(the_plan)
    size = distributions.of(the_plan).world_size()
    assert [int(env["RANK"]) for env in found] == list(range(size))
    assert {env["WORLD_SIZE"] for env in found} == {str(size)}
    assert {env["MASTER_ADDR"] for env in found} == {"10.0.0.0"}
    assert len({env["MASTER_PORT"] for env in found}) == 1
    for node in range(the_plan["nodes"]):
        here = [env for env in found if env["NODE_RANK"] == str(node)]
        assert [int(env["LOCAL_RANK"]) for env in here] == list(range(len(here)))
        assert all(env["LOCAL_WORLD_SIZE"] == str(len(here)) and env["GROUP_RANK"] == str(node) for env in here)


@given(tensorflow)
def test_tf_config_names_every_task_once_with_an_address_of_its_own(the_plan: dict[str, Any]) -> None:
    configs = [json.loads(env["TF_CONFIG"]) for env in environments(the_plan)]
    cluster = configs[0]["cluster"]
    assert all(config["cluster"] == cluster and config["environment"] == "cloud" for config in configs)
    tasks = [(config["task"]["type"], config["task"]["index"]) for config in configs]
    assert sorted(tasks) == sorted((role, index) for role, hosts in cluster.items() for index in range(len(hosts)))
    hosts = [host for role in cluster.values() for host in role]
    assert len(set(hosts)) == len(hosts)
    assert all(hosts for hosts in cluster.values()), "TensorFlow 2.13+ refuses an empty list"
    assert ("chief" in cluster) == the_plan["distribution"]["chief"]
    for process, config in zip(distributions.of(the_plan).processes(), configs, strict=True):
        role, index = config["task"]["type"], config["task"]["index"]
        assert cluster[role][index].startswith(f"10.0.0.{process.node_rank}:")


def test_with_as_many_workers_as_nodes_server_0_shares_node_0() -> None:
    roles = {"type": "tensorflow", "launcher": "direct", "workers": 3, "parameter_servers": 1, "chief": False}
    places = [(p.role, p.role_index, p.node_rank) for p in distributions.of(plan("x", 3, roles)).processes()]
    assert places == [("worker", 0, 0), ("ps", 0, 0), ("worker", 1, 1), ("worker", 2, 2)]


def test_everything_a_single_pytorch_process_gets() -> None:
    (env,) = environments(plan("x", 1, {"type": "pytorch", "processes": 1, "launcher": "direct"}))
    assert env == {
        "MASTER_ADDR": "10.0.0.0", "MASTER_PORT": "20000", "WORLD_SIZE": "1", "NODE_COUNT": "1",
        "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0", "GROUP_RANK": "0",
        "ROLE_NAME": "default", "ROLE_RANK": "0", "ROLE_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_ERROR_FILE": "/run/logs/node-0/rank-0.error.json",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "8", "PYTHONUNBUFFERED": "1",
        "NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0",
        "AZUREML_RUN_ID": "run", "AZUREML_NODE_COUNT": "1", "AZUREML_CR_NODE_RANK": "0",
        "AZUREML_PROCESS_NAME": "rank_0", "AZ_BATCH_HOST_LIST": "10.0.0.0",
        "JOBSDK_RUN_NAME": "run", "JOBSDK_RUN_DIR": "/run", "JOBSDK_RESTART_COUNT": "0",
        "PYTHONPATH": "/run/python-armed",
        "MLFLOW_TRACKING_URI": "file:///run/mlruns", "MLFLOW_RUN_ID": "run", "MLFLOW_EXPERIMENT_NAME": "Default",
        "JOBSDK_REPORTS": "/run/logs/node-0/reports-0.log", "JOBSDK_RESULT": "/run/logs/node-0/result-0.log",
            "MLFLOW_EXPERIMENT_ID": "0", "MLFLOW_ALLOW_FILE_STORE": "true",
    }  # fmt: skip


def test_mpi_adds_what_an_azure_mpi_job_sees() -> None:
    env = environments(plan("x", 2, {"type": "mpi", "processes": 2, "launcher": "direct"}))[3]
    added = {name: value for name, value in env.items() if name.startswith(("OMPI_COMM", "AZ_BATCH"))}
    assert added == {
        "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_NODE_RANK": "1", "AZ_BATCH_MASTER_NODE": "10.0.0.0:20000",
        "AZ_BATCH_HOST_LIST": "10.0.0.0,10.0.0.1",
    }  # fmt: skip


def test_a_users_own_mpirun_is_told_how_to_reach_the_nodes() -> None:
    direct = {"type": "mpi", "processes": 2, "launcher": "direct"}
    env = environments(plan("x", 2, direct, environment={"OMPI_MCA_plm_rsh_agent": "mine"}))[3]
    assert env["PATH"] == f"/run/remote-shell/node-1:{os.defpath}"
    assert (env["OMPI_MCA_plm_rsh_agent"], env["PRTE_MCA_plm_ssh_agent"]) == ("mine", "jobsdk-ssh")
    assert env["OMPI_MCA_btl_tcp_if_include"] == "10.0.0.0/31"
    alone, launched = (
        environments(plan("x", 1, direct))[0],
        environments(plan("x", 2, {**direct, "launcher": "hydra"}))[0],
    )
    assert not {name for name in [*alone, *launched] if "_MCA_" in name}


def test_what_others_start_on_a_node_is_told_of_the_node_and_of_no_rank() -> None:
    direct = {"type": "deepspeed", "processes": 2, "launcher": "direct"}
    the_plan = plan("x", 2, direct, environment={"MINE": "1"}, gpus_per_process=1)
    addresses = ["10.0.0.0", "10.0.0.1"]
    facts = facts_.Facts(addresses, [[1], [1]], "", 8, "eth0", ["0", "1"], {}, "/run", "/run")
    env = contract.Contract(the_plan, facts).of_node(1)
    assert (env["NODE_RANK"], env["MASTER_ADDR"], env["MINE"], env["OMP_NUM_THREADS"]) == ("1", "10.0.0.0", "1", "4")
    assert env["PATH"].startswith("/run/remote-shell/node-1:")
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID"} & set(env)


def test_deepspeed_is_the_pytorch_set_and_its_own() -> None:
    kind = {"processes": 2, "launcher": "direct"}
    pytorch = environments(plan("x", 2, {"type": "pytorch", **kind}))[3]
    deepspeed = environments(plan("x", 2, {"type": "deepspeed", **kind}))[3]
    own = {"CROSS_RANK": "1", "CROSS_SIZE": "2", "LOCAL_SIZE": "2", "JOBSDK_HOSTFILE": "/run/hostfile",
           "JOBSDK_MACHINEFILE": "/run/machinefile",
           "PATH": f"/run/remote-shell/node-1:{os.defpath}"}  # fmt: skip
    assert deepspeed == {**pytorch, **own}


def test_the_users_variables_win_but_for_identity() -> None:
    given_by_user = {"MASTER_PORT": "6105", "OMP_NUM_THREADS": "3", "RANK": "9", "MINE": "1"}
    env = environments(plan("x", environment=given_by_user))[2]
    assert (env["MASTER_PORT"], env["OMP_NUM_THREADS"], env["RANK"], env["MINE"]) == ("6105", "3", "2", "1")


def test_an_inherited_setting_is_left_alone() -> None:
    inherited = {"OMP_NUM_THREADS": "5", "NCCL_SOCKET_IFNAME": "ib0"}
    env = environments(plan("x"), inherited=inherited)[0]
    assert "OMP_NUM_THREADS" not in env
    assert "NCCL_SOCKET_IFNAME" not in env
    assert env["GLOO_SOCKET_IFNAME"] == "eth0"


def test_gpus_are_shared_out_only_on_request_and_by_index_into_the_inherited_list() -> None:
    gpus = ["GPU-aa", "MIG-bb", "5", "7"]
    assert all("CUDA_VISIBLE_DEVICES" not in env for env in environments(plan("x"), gpus=gpus))
    shares = [env["CUDA_VISIBLE_DEVICES"] for env in environments(plan("x", gpus_per_process=2), gpus=gpus)]
    assert shares == ["GPU-aa,MIG-bb", "5,7"] * 2


def test_threads_never_fall_below_one_and_placeholders_pass() -> None:
    kind = {"type": "pytorch", "processes": 16, "launcher": "direct"}
    assert environments(plan("x", 1, kind))[0]["OMP_NUM_THREADS"] == "1"
    assert environments(plan("x", 1, kind), cores="cores")[0]["OMP_NUM_THREADS"] == "<cores / 16>"


def test_ipv6_addresses_are_bracketed_where_a_port_follows() -> None:
    roles = {"type": "tensorflow", "launcher": "direct", "workers": 1, "parameter_servers": 0, "chief": False}
    (env,) = environments(plan("x", 1, roles), addresses=["fd00::1"])
    assert json.loads(env["TF_CONFIG"])["cluster"] == {"worker": ["[fd00::1]:20000"]}
    assert env["MASTER_ADDR"] == "fd00::1"

"""A node of a job of Azure ML: which one it is, by variables of the shapes that Azure ML has had."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk.bootstrap.agent import azureml_node
from jobsdk.bootstrap.detect import registry, slurm
from jobsdk.bootstrap.detect.place import NotDetected
from tests.bootstrap.runs import plan

RUN = {"AZUREML_RUN_ID": "brave_nut_1"}
IPS = ["10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7"]
HOSTS = ["job-worker-0.job.workloads.svc.cluster.local", "job-worker-1.job.workloads.svc.cluster.local"]

#: A cluster of virtual machines, a job of the type pytorch with one process a node.
PYTORCH = {
    **RUN, "AZUREML_NODE_COUNT": "4", "AZUREML_CR_NODE_RANK": "2", "AZUREML_PROCESS_NAME": "rank_2",
    "MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "6105", "WORLD_SIZE": "4", "NODE_RANK": "2", "RANK": "2",
    "LOCAL_RANK": "0", "AZ_BATCH_HOST_LIST": ",".join(IPS), "AZ_BATCH_NODE_LIST": ";".join(IPS),
    "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000", "AZ_BATCH_IS_CURRENT_NODE_MASTER": "false",
    "AZ_BATCHAI_TASK_INDEX": "2", "AZ_BATCHAI_JOB_MASTER_NODE_IP": "10.0.0.4",
}  # fmt: skip
#: The type mpi with one process a node: no MASTER_ADDR and no RANK, and a "node rank" that is none.
MPI = {
    **RUN, "AZUREML_NODE_COUNT": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_NODE_RANK": "0",
    "AZ_BATCH_HOST_LIST": "10.0.0.4;10.0.0.5", "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
}  # fmt: skip
#: A Kubernetes cluster that is attached to the workspace.
KUBERNETES = {
    **RUN, "AZUREML_NODE_COUNT": "2", "VK_TASK_INDEX": "1",
    "AZUREML_CR_DISTRIBUTED_CONFIG": json.dumps({"rank": "VK_TASK_INDEX", "host_list": HOSTS}),
}  # fmt: skip
#: 2018: tasks of Batch AI say their number, and where the first is.
BATCH_AI = {
    **RUN, "AZ_BATCHAI_TASK_INDEX": "1", "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5,10.0.0.6",
    "AZ_BATCHAI_JOB_MASTER_NODE_IP": "10.0.0.4",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "rank", "addresses", "hosts"),
    [
        (PYTORCH, 2, ["10.0.0.4"], IPS),
        (MPI, 1, ["10.0.0.4"], ["10.0.0.4", "10.0.0.5"]),
        (KUBERNETES, 1, HOSTS[:1], HOSTS),
        (BATCH_AI, 1, ["10.0.0.4"], ["10.0.0.4", "10.0.0.5", "10.0.0.6"]),
        ({**RUN, "NODE_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "first"}, 1, ["first"], None),
        ({**PYTORCH, "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5"}, 2, ["10.0.0.4"], None),
        ({**PYTORCH, "MASTER_ADDR": "10.9.9.9"}, 2, ["10.9.9.9", "10.0.0.4"], IPS),
        ({**MPI, "AZ_BATCH_MASTER_NODE": "[fd00::4]:6000"}, 1, ["fd00::4", "10.0.0.4"], ["10.0.0.4", "10.0.0.5"]),
        ({**KUBERNETES, "AZUREML_CR_DISTRIBUTED_CONFIG": "{", "NODE_RANK": "0", "MASTER_ADDR": "x"}, 0, ["x"], None),
    ],
    ids=["pytorch", "mpi", "kubernetes", "batch-ai", "documented", "short-list", "two-masters", "ipv6", "broken"],
)
def test_a_node_among_several(
    environment: dict[str, str], rank: int, addresses: list[str], hosts: list[str] | None
) -> None:
    place = registry.detect(environment)
    assert (place.rank, place.addresses, place.hosts) == (rank, addresses, hosts)
    assert place.judges, "why it takes a node away only the service knows"


@pytest.mark.parametrize(
    "environment",
    [
        RUN,
        {**RUN, "AZUREML_NODE_COUNT": "1", "AZUREML_CR_NODE_RANK": "0", "AZ_BATCH_HOST_LIST": "10.0.0.4"},
        {**RUN, "AZUREML_NODE_COUNT": "1", "AZ_BATCHAI_MPI_MASTER_NODE": "localhost"},
        {**RUN, "AZUREML_NODE_COUNT": "1", "RANK": "3", "WORLD_SIZE": "4", "NODE_RANK": "1"},  # left in the image
        {**RUN, "AZUREML_NODE_COUNT": "1", "LOCAL_RANK": "0"},
    ],
)
def test_a_single_node_has_no_master_node(environment: dict[str, str]) -> None:
    place = registry.detect(environment)
    assert (place.rank, place.addresses) == (0, ["127.0.0.1"])


def test_what_an_image_has_left_does_not_fool_it() -> None:
    left = {"RANK": "7", "WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}
    assert registry.detect({**left, **KUBERNETES}).rank == 1
    assert registry.detect({**left, **BATCH_AI}).rank == 1, "the sizes are not the job's"
    left = {name: value for name, value in left.items() if name.startswith("OMPI_")}
    assert registry.detect({**PYTORCH, **left}).rank == 2


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({**PYTORCH, "NODE_RANK": "1"}, "contradict each other: AZUREML_CR_NODE_RANK is 2, NODE_RANK is 1"),
        ({**PYTORCH, "NODE_RANK": "x"}, "NODE_RANK must be a number, not 'x'"),
        ({**PYTORCH, "AZUREML_NODE_COUNT": "2"}, "AZUREML_CR_NODE_RANK is 2, but the job has 2 nodes"),
        (
            {**PYTORCH, "LOCAL_RANK": "1"},
            "process 1 of its node: set process_count_per_instance of Azure ML's job to 1",
        ),
        ({**RUN, "AZUREML_NODE_COUNT": "2", "NODE_RANK": "1"}, "the job has 2 nodes, but none of MASTER_ADDR, "),
        ({**RUN, "AZUREML_NODE_COUNT": "2", "MASTER_ADDR": "a"}, "neither AZUREML_CR_NODE_RANK nor NODE_RANK says"),
    ],
)
def test_what_is_wrong_is_named(environment: dict[str, str], words: str) -> None:
    with pytest.raises(NotDetected) as caught:
        registry.detect(environment)
    assert words in str(caught.value)


def test_other_places_come_first() -> None:
    """Ranks of ours have Azure ML's variables wherever they run, and may start jobs of their own."""
    explicit = {**PYTORCH, "JOBSDK_NODE_RANK": "0", "JOBSDK_CONTROL": "a 1"}
    assert registry.detect(explicit).addresses == ["a"]
    pod = {**PYTORCH, "JOB_COMPLETION_INDEX": "1", "JOBSDK_CONTROL": "a 1"}
    assert registry.detect(pod).rank == 1
    with pytest.raises(NotDetected, match="no place that the bootstrap knows"):
        registry.detect({**PYTORCH, "JOBSDK_RUN_NAME": "brave_nut_1"})


@given(st.text(min_size=1))
def test_control_ports_are_the_runs_own_and_below_those_of_connections(run: str) -> None:
    first, second = (registry.detect({**PYTORCH, "AZUREML_RUN_ID": name}).ports for name in (run, run))
    assert first == second
    assert all(1024 < port < 32768 for port in first)
    assert len(set(first)) == len(slurm.ports(0))


@given(st.integers(2, 200), st.sampled_from([",", ";", ", "]), st.data())
def test_the_nodes_of_a_job_agree(count: int, comma: str, data: st.DataObject) -> None:
    """Whatever subset of Azure's variables there is, as long as one says the rank and one where node 0 is."""
    ips = [f"10.0.{node // 250}.{node % 250 + 4}" for node in range(count)]
    ways = [["AZUREML_CR_NODE_RANK"], ["NODE_RANK", "WORLD_SIZE"], ["RANK", "WORLD_SIZE"], ["AZ_BATCHAI_TASK_INDEX"]]
    told = data.draw(
        st.lists(st.sampled_from(ways), min_size=1).map(lambda lists: {name for one in lists for name in one})
    )
    masters = {"MASTER_ADDR": ips[0], "AZ_BATCH_MASTER_NODE": f"{ips[0]}:6000", "AZ_BATCH_HOST_LIST": comma.join(ips)}
    named = data.draw(st.sets(st.sampled_from(sorted(masters)), min_size=1))
    places = []
    for node in range(count):
        own = {name: str(count) if name == "WORLD_SIZE" else str(node) for name in told}
        places.append(
            registry.detect({**RUN, "AZUREML_NODE_COUNT": str(count), **own, **{name: masters[name] for name in named}})
        )
    assert [place.rank for place in places] == list(range(count))
    assert {(tuple(place.addresses), tuple(place.ports)) for place in places} == {
        ((ips[0],), tuple(places[0].ports)),
    }


# -- the plan --------------------------------------------------------------------------------------------------------


def _plan(**more: Any) -> dict[str, Any]:
    data = {"type": "uri_folder", "mode": None, "uri": None}
    return plan("true", inputs={"data": data, "epochs": {"literal": "3"}}, outputs={"model": dict(data)}, **more)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_a_plan_comes_out_of_the_variable_as_it_went_in(content: Any) -> None:
    assert azureml_node.unpacked(azureml_node.packed({"content": content})) == {"content": content}


def test_a_plan_is_small_however_many_nodes_it_is_for() -> None:
    assert len(azureml_node.packed(_plan(nodes=1000))) < 1000


def test_paths_take_the_place_of_uris_and_their_variables_are_gone() -> None:
    environment = {
        azureml_node.PLAN: azureml_node.packed(_plan()),
        "JOBSDK_PATH_INPUT_data": "/mnt/data",
        "JOBSDK_PATH_OUTPUT_model": "/mnt/model",
        "HOME": "/root",
    }
    found = azureml_node.take_plan(environment)
    assert found["inputs"] == {"data": {"literal": "/mnt/data"}, "epochs": {"literal": "3"}}
    assert found["outputs"]["model"]["at"] == "/mnt/model"
    assert environment == {"HOME": "/root"}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "no JOBSDK_PLAN: only a job that jobsdk has submitted has one"),
        ({azureml_node.PLAN: "nonsense!"}, "JOBSDK_PLAN is not what jobsdk has sent"),
        (
            {azureml_node.PLAN: azureml_node.packed(_plan())},
            "has not said where the input data is (JOBSDK_PATH_INPUT_data)",
        ),
        (
            {azureml_node.PLAN: azureml_node.packed(_plan()), "JOBSDK_PATH_INPUT_data": "${{inputs.data}}"},
            "has not said where the input data is",
        ),
    ],
)
def test_a_plan_that_cannot_be_had(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        azureml_node.take_plan(environment)

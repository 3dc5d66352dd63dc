"""The REST body of a command job, read and refused as the service would."""

from __future__ import annotations

from typing import Any

import pytest

from jobsdk.emulator import bodies
from jobsdk.emulator.logs import log_name
from jobsdk.emulator.server import Refused

BODY = {
    "jobType": "Command",
    "command": "python train.py ${{inputs.n}} ${{ inputs.data }} --out=${{outputs.model}} $HOME",
    "codeId": "/subscriptions/s/codes/c/versions/1",
    "environmentId": "/subscriptions/s/environments/e/versions/1",
    "inputs": {
        "n": {"jobInputType": "literal", "value": "3"},
        "data": {"jobInputType": "uri_file", "uri": "azureml://datastores/d/paths/p", "mode": "Download"},
    },
    "outputs": {"model": {"jobOutputType": "uri_folder"}, "default": {"jobOutputType": "uri_folder", "uri": "x"}},
    "environmentVariables": {"A": "b", "none": None},
    "resources": {"instanceCount": 2, "properties": {}},
    "distribution": {"distributionType": "PyTorch", "processCountPerInstance": 4},
    "limits": {"jobLimitsType": "Command", "timeout": "P1DT1H1M1.2S"},
}


def test_a_whole_body() -> None:
    job = bodies.read("a-job", BODY)
    assert (job.nodes, job.processes, job.world_size, job.distribution) == (2, 4, 8, "PyTorch")
    assert (job.literals, job.variables) == ({"n": "3"}, {"A": "b"})
    assert job.inputs["data"] == bodies.Data("uri_file", "azureml://datastores/d/paths/p", "Download")
    assert list(job.outputs) == ["model"]
    assert job.timeout == 90061
    paths = {"inputs": {"n": "3", "data": "/a b"}, "outputs": {"model": "/m"}}
    assert job.rendered(paths) == "python train.py 3 /a b --out=/m $HOME"


def test_tensorflow_counts_its_tasks() -> None:
    body = {**BODY, "distribution": {"distributionType": "TensorFlow", "parameterServerCount": 1}}
    job = bodies.read("a", body)
    assert (job.workers, job.parameter_servers, job.world_size) == (2, 1, 3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"jobType": "Pipeline"}, "cannot run jobs of the type Pipeline"),
        ({"command": " "}, "has no command"),
        ({"environmentId": None}, "has no environmentId"),
        ({"services": {"lab": {"jobServiceType": "JupyterLab"}}}, "cannot run the services lab"),
        ({"distribution": {"distributionType": "Ray"}}, "cannot run a distribution of the type Ray"),
        ({"distribution": {"distributionType": "Mpi", "processCountPerInstance": 0}}, "processCountPerInstance is 0"),
        ({"distribution": {"distributionType": "TensorFlow", "workerCount": 3}}, "more than the 2 instances"),
        ({"resources": {"instanceCount": "2"}}, "instanceCount is '2'"),
        ({"command": "x ${{inputs.other}}"}, r"refers to \$\{\{inputs.other\}\}"),
        ({"inputs": {"data": {"jobInputType": "uri_file"}}}, "input data has no jobInputType or no uri"),
        ({"limits": {"timeout": "1h"}}, "timeout is '1h'"),
        ({"resources": {"properties": {"IsLocal": {"IsLocal": True}}}}, "cannot run jobs with compute: local"),
    ],
)
def test_what_is_wrong_is_refused_as_a_users_error(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused, match=says) as error:
        bodies.read("a", {**BODY, **changes})
    assert (error.value.status, error.value.body["error"]["code"]) == (400, "UserError")


@pytest.mark.parametrize("name", ["", "-a", "a b", "a" * 256, "ä"])
def test_names_are_those_of_the_service(name: str) -> None:
    with pytest.raises(Refused, match="is invalid"):
        bodies.read(name, BODY)
    assert bodies.read("a" * 255, BODY)


def test_the_same_job_but_for_what_may_be_changed() -> None:
    again = {**BODY, "tags": {"a": "b"}, "displayName": "x", "isArchived": True, "status": "Running", "identity": None}
    assert bodies.same_job(BODY, again)
    for changes in ({"command": "other"}, {"resources": {"instanceCount": 3}}, {"environmentVariables": {}}):
        assert not bodies.same_job(BODY, {**BODY, **changes})


def test_logs_have_numbers_of_equal_width() -> None:
    assert log_name(0, 1) == "user_logs/std_log.txt"
    assert log_name(1, 2) == "user_logs/std_log_process_1.txt"
    assert log_name(9, 10) == "user_logs/std_log_process_9.txt"
    assert log_name(3, 11) == "user_logs/std_log_process_03.txt"
    assert log_name(100, 101) == "user_logs/std_log_process_100.txt"

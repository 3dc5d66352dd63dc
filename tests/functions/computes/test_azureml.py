from __future__ import annotations

import pytest

from jobsdk import MLClient, TensorFlowDistribution, function
from tests.compute.azureml.conftest import azure as azure
from tests.compute.azureml.conftest import client as client
from tests.compute.azureml.conftest import local_azure as local_azure
from tests.functions.computes import check

IMAGE = {"image": "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"}


@pytest.mark.parametrize("launcher", ["native", "bootstrap"])
def test_functions_on_azure_ml(launcher: str, client: MLClient) -> None:
    check("gpu-cluster", client, environment=IMAGE, resources={"properties": {"azureml": {"launcher": launcher}}})


def test_tensorflows_roles(client: MLClient) -> None:
    import json
    import os

    def task() -> object:
        return json.loads(os.environ["TF_CONFIG"])["task"]

    distribution = TensorFlowDistribution(worker_count=2)
    job = function(task, distribution=distribution, instance_count=2, compute="gpu-cluster", environment=IMAGE)
    run = client.jobs.create_or_update(job).wait(200)
    assert [value["index"] for value in run.result(all_ranks=True)] == [0, 1]

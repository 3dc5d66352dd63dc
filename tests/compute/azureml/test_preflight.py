"""`jobsdk doctor` on Azure ML: the bootstrap looks at the nodes, whoever starts the job's ranks."""

from __future__ import annotations

import json
from pathlib import Path

from jobsdk import PyTorchDistribution, command, doctor
from jobsdk.emulator.process import Running
from tests.emulator import emulated


def test_a_preflight_of_a_job_whose_ranks_azure_ml_starts(azure: Running) -> None:
    subscription, group, workspace = emulated.names(azure)
    settings = {
        **{"type": "azureml", "target": "gpu-cluster"},
        **{"subscription_id": subscription, "resource_group": group, "workspace_name": workspace},
    }
    Path("computes.yml").write_text(json.dumps({"computes": {"cloud": settings}}))
    job = command(
        command="true",
        environment={"image": "ubuntu"},
        distribution=PyTorchDistribution(process_count_per_instance=2),
        instance_count=2,
        compute="cloud",
    )
    result = doctor.run_preflight(doctor.plan_preflight(job), print)
    assert result.summary.startswith("2 nodes: ")

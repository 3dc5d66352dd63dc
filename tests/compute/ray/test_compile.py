"""Ray's settings, and what becomes of a job before anything is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobsdk import ComputeError, MLClient, PyTorchDistribution, ScalingConfig, ValidationError, command
from jobsdk import compute as computes


def configure(work: Path, **settings: Any) -> None:
    (work / "computes.yml").write_text(json.dumps({"computes": {"ray": {"type": "ray", **settings}}}))


def native(**fields: Any) -> dict[str, Any]:
    properties = fields.pop("properties", None)
    job = command(command="echo hi", compute="ray", **fields)
    if properties is not None:
        job.resources.properties = {"ray": properties}
    compiled = MLClient().jobs.compile(job, name="one")
    text = compiled.compute.native(compiled.spec)
    assert not any(mark in text for mark in ("&id", "*id"))
    content: dict[str, Any] = yaml.safe_load(text)
    return content


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"adress": "auto"}, "did you mean 'address'"),
        ({"address": "head"}, "address must be http"),
        ({"address": "http://head:8265", "init": {}}, "init has no meaning with the job submission API"),
        ({"headers": {"A": "b"}}, "headers is for the job submission API"),
        ({"init": {"address": "auto"}}, "init cannot have address"),
        ({"placement_strategy": "WIDE"}, "must be PACK, SPREAD, STRICT_PACK or STRICT_SPREAD"),
        ({"resources_per_node": {"GPU": 1}}, "which cpus_per_node and gpus_per_node are for"),
        ({"runtime_env": {"env_vars": ["A"]}}, "has env_vars, which must be a mapping of texts"),
        (
            {"runtime_env": {"env_vars": {"A": 1}}},
            r"has env_vars\.A, which must be a text\. Fix: write it in quotes, as '1'$",
        ),
        ({"runtime_env": {"pipp": []}}, "runtime_env has pipp: did you mean 'pip'\\?$"),
        ({"cpus_per_node": True}, "must be a number"),
        ({"outputs_limit": 1.5}, "must be a whole number"),
    ],
)
def test_mistakes_in_settings(settings: dict[str, Any], words: str, work: Path) -> None:
    configure(work, **settings)
    with pytest.raises(ComputeError, match=words):
        computes.resolve("ray")


def test_a_bundle_for_each_node(work: Path) -> None:
    configure(work, resources_per_node={"special": 1}, runtime_env={"pip": ["numpy"], "env_vars": {"A": "1", "B": "2"}})
    found = native(
        instance_count=2, distribution=PyTorchDistribution(process_count_per_instance=4), gpus_per_process=2,
        properties={"runtime_env": {"env_vars": {"B": "3"}}, "placement_strategy": "STRICT_SPREAD"},
    )  # fmt: skip
    assert found == {
        "placement_group": {
            "name": "one",
            "strategy": "STRICT_SPREAD",
            "bundles": [{"CPU": 4, "GPU": 8, "special": 1}] * 2,
        },
        "actor_for_each": "node",
        "runtime_env": {"pip": ["numpy"], "env_vars": {"A": "1", "B": "3"}},
        "address": None,
    }


@pytest.mark.parametrize(
    ("scaling", "bundles", "strategy"),
    [
        (ScalingConfig(num_workers=8), [{"CPU": 1}] * 8, "PACK"),
        (ScalingConfig(num_workers=2, use_gpu=True), [{"GPU": 1}] * 2, "PACK"),
        (ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 2}), [{"GPU": 2}], "PACK"),
        (
            ScalingConfig(
                num_workers=2, use_gpu=True, resources_per_worker={"CPU": 4, "GPU": 0.5}, accelerator_type="A100",
                placement_strategy="STRICT_PACK",
            ),
            [{"CPU": 4, "GPU": 0.5, "accelerator_type:A100": 0.001}] * 2, "STRICT_PACK",
        ),
        (ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0}), [{"CPU": 0.001}] * 2, "PACK"),
    ],
)  # fmt: skip
def test_a_bundle_for_each_worker(
    scaling: ScalingConfig, bundles: list[dict[str, float]], strategy: str, work: Path
) -> None:
    configure(work)
    found = native(scaling=scaling)
    assert found["placement_group"] == {"name": "one", "strategy": strategy, "bundles": bundles}
    assert found["actor_for_each"] == "rank"


def test_workers_on_nodes_that_the_job_counts(work: Path) -> None:
    configure(work)
    scaling = ScalingConfig(num_workers=4, use_gpu=True, resources_per_worker={"CPU": 2, "GPU": 0.5})
    group = native(scaling=scaling, instance_count=2)["placement_group"]
    assert group == {"name": "one", "strategy": "SPREAD", "bundles": [{"CPU": 4, "GPU": 1}] * 2}


def test_ranks_of_workers_see_all_gpus_of_their_node(work: Path) -> None:
    configure(work)
    scaling = ScalingConfig(num_workers=4, use_gpu=True, resources_per_worker={"GPU": 0.3})
    job = command(command="echo hi", compute="ray", scaling=scaling)
    process = job.explain()[3]
    assert (process.node_rank, process.environment["JOBSDK_GPUS_PER_PROCESS"]) == (0, "0.3333333333333333")
    assert "CUDA_VISIBLE_DEVICES" not in process.environment


def test_a_submitted_job(work: Path) -> None:
    configure(work, address="https://head:8265", python="/opt/py/bin/python", entrypoint_num_cpus=1)
    found = native(grace_period=5)["job"]
    assert found == {
        "submission_id": "one",
        "entrypoint": "/opt/py/bin/python -m jobsdk_ray.ray.entry",
        "entrypoint_num_cpus": 1,
        "entrypoint_resources": {},
        "runtime_env": {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "25"}},
        "metadata": {"jobsdk": "one"},
        "outputs_limit": 16 << 20,
    }


@pytest.mark.parametrize("address", ["http://head:8265", "auto"])
def test_compiling_needs_no_ray(address: str, work: Path) -> None:
    configure(work, address=address)
    code = (
        "import sys; sys.modules['ray'] = None  # as where it is not installed\n"
        "from jobsdk import MLClient, command\n"
        "one = MLClient().jobs.compile(command(command='true', compute='ray'))\n"
        "print(one.compute.native(one.spec))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "placement_group:" in done.stdout


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"properties": {"gpus": 1}}, "is no setting of a job"),
        ({"properties": {"address": "auto"}}, "is no setting of a job"),
        ({"properties": {"placement_strategy": "PACK"}, "scaling": ScalingConfig()}, "clashes with scaling"),
        ({"inputs": {"data": {"path": "azureml://x/y", "type": "uri_file"}}}, "can be read only in its cloud"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], words: str, work: Path) -> None:
    configure(work)
    with pytest.raises(ValidationError, match=words):
        native(**fields)

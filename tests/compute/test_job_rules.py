"""What all computes say alike of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobsdk import MLClient, RayDistribution, command
from jobsdk.findings import dotted
from jobsdk.job.resources import JobResourceConfiguration
from jobsdk.planning.plan import make_plan

_PLACE = "resources.properties."
AZURE = {"type": "azureml", "subscription_id": "1", "resource_group": "g", "workspace_name": "w", "image": "i"}


@pytest.fixture(autouse=True)
def _configured(work: Path) -> None:
    computes = {
        "ray": {"type": "ray"},
        "slurm": {"type": "slurm"},
        "kubernetes": {"type": "kubernetes", "image": "i"},
        "spark": {"type": "spark", "master": "local[2]"},
        "ssh": {"type": "ssh", "hosts": ["a"]},
        "azureml": AZURE,
    }
    (work / "computes.yml").write_text(json.dumps({"computes": computes}))


def found(compute: str, properties: dict[str, Any]) -> dict[str, str]:
    job = command(command="true", compute=compute)
    job.resources = JobResourceConfiguration(properties=properties)
    told = {
        dotted(one.path): one.message + f" {one.fix}" * bool(one.fix) for one in MLClient().jobs.validate(job).findings
    }
    return {name[len(_PLACE) :]: words for name, words in told.items() if name.startswith(_PLACE)}


EVERYWHERE = ("local", "ray", "slurm", "kubernetes", "spark", "ssh", "azureml")


@pytest.mark.parametrize("compute", EVERYWHERE)
def test_settings_for_a_type_of_compute_are_judged_whichever_it_is(compute: str) -> None:
    wrong = {"ray": {"pythn": "x"}, "slurm": {"partiton": "x"}, "kubernetes": {"memroy": "1Gi"}, "azureml": "x"}
    told = found(compute, wrong)
    assert sorted(told) == ["azureml", "kubernetes.memroy", "ray.pythn", "slurm.partiton"] or compute == "azureml"
    assert "did you mean 'partition'" in told.get("slurm.partiton", "did you mean 'partition'")
    assert told["azureml"] == "must be a mapping of settings"


@pytest.mark.parametrize("compute", EVERYWHERE)
def test_sound_settings_for_other_types_are_in_nobodys_way(compute: str) -> None:
    sound = {"ray": {"python": "x"}, "slurm": {"partition": "x"}, "kubernetes": {"memory": "1Gi"}}
    assert found(compute, sound) == {}


@pytest.mark.parametrize("compute", [one for one in EVERYWHERE if one != "azureml"])
def test_settings_of_no_type_have_no_effect(compute: str) -> None:
    told = found(compute, {"slrum": {"partition": "x"}, "AISuperComputer": {}})
    assert told["slrum"].startswith(f"has no effect on the compute {compute}")
    assert "did you mean 'slurm'" in told["slrum"]
    assert told["AISuperComputer"] == f"has no effect on the compute {compute}"


@pytest.mark.parametrize(("compute", "is_told"), [("ray", True), ("spark", True), ("local", False), ("slurm", False)])
def test_a_budget_for_preemptions_where_no_node_is_replaced(compute: str, is_told: bool) -> None:
    told = MLClient().jobs.validate(command(command="true", compute=compute, max_preemptions=2))
    assert [(one.path, one.is_error) for one in told.findings] == [(("max_preemptions",), False)] * is_told
    plan = MLClient().jobs.compile(command(command="true", compute=compute, max_preemptions=2)).plan
    assert plan["restarts"]["max_preemptions"] == (0 if is_told else 2)


def test_all_that_is_for_a_new_ray_cluster_is_in_the_plan_and_has_no_effect_with_an_address() -> None:
    fields: dict[str, Any] = {
        "port": 6379,
        "include_dashboard": True,
        "dashboard_port": 8265,
        "head_node_additional_args": "--a",
        "worker_node_additional_args": "--b",
    }
    assert {"type", "address", *fields} == set(RayDistribution._fields)
    job = command(command="true", distribution=RayDistribution(address="head:6379", **fields))
    assert make_plan(job, name="r")["distribution"] == {
        "type": "ray", "processes": 1, "launcher": "direct", "address": "head:6379", **fields,
    }  # fmt: skip
    told = {one.path for one in MLClient().jobs.validate(job).findings if not one.is_error}
    assert {path[1] for path in told if path[0] == "distribution"} == set(fields)

"""The way of a job to its compute is gone once: nothing is asked twice, whatever the compute."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobsdk import DeepSpeedDistribution, MLClient, ScalingConfig, command
from jobsdk import compute as computes
from jobsdk.client.explain import of_draft
from jobsdk.client.submission import Draft
from jobsdk.errors import ValidationError
from jobsdk.job import rules, workers
from jobsdk.job.command import CommandJob
from jobsdk.planning import machine_rules
from jobsdk.planning import plan as planning

AZURE = {
    "type": "azureml", "subscription_id": "00000000-0000-0000-0000-000000000000", "resource_group": "group",
    "workspace_name": "workspace", "image": "x",
}  # fmt: skip
MACHINE = "Standard_ND96asr_v4"
COMPUTES: dict[str, dict[str, Any]] = {
    "local": {"type": "local"},
    "slurm": {"type": "slurm", "instance_type": MACHINE},
    "kubernetes": {"type": "kubernetes", "image": "x", "instance_type": MACHINE},
    "azureml": {**AZURE, "instance_type": MACHINE},
    "ssh": {"type": "ssh", "hosts": ["a", "b"], "gpus_per_node": 8, "instance_type": MACHINE},
    "spark": {"type": "spark", "master": "spark://head:7077", "instance_type": MACHINE},
    "ray": {"type": "ray", "address": "http://head:8265", "instance_type": MACHINE},
}
ONCE = {"layout": 1, "configuration": 1, "rules": 1, "placement": 1, "plan": 1}
#: What is asked further where it is decided whether the job can run there.
JUDGED = {"findings": 1, "machine": 1}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each was asked."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str, what: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            counts[what] += 1
            return real(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    count(workers, "lay_out", "layout")
    count(computes, "configuration", "configuration")
    count(rules, "judge", "rules")
    count(machine_rules, "findings", "machine")
    count(planning, "whole_plan", "plan")
    for kind in COMPUTES:
        target = computes.type_of(kind)
        count(target, "place", "placement")
        count(target, "findings", "findings")
        count(target, "compile", "compile")
        for step in ("prepare", "submit"):
            monkeypatch.setattr(target, step, lambda *_: None)
    return counts


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandJob:
    """A job for a compute, which has something for every step."""
    monkeypatch.chdir(tmp_path)
    Path("computes.yml").write_text(json.dumps({"computes": {"there": COMPUTES[request.param]}, "default": "there"}))
    return command(
        command="x", environment_variables={"MY_TOKEN": "swordfish"},
        scaling=ScalingConfig(num_workers=8, use_gpu=True),
        distribution=DeepSpeedDistribution(config={"train_micro_batch_size_per_gpu": 1}),
    )  # fmt: skip


def expected(job: CommandJob, *more: dict[str, int]) -> dict[str, int]:
    counts = dict(ONCE)
    for one in more:
        counts.update(one)
    if computes.configuration().computes["there"].type == "local":
        counts.pop("machine", None)  # it is what it is
    return counts


@pytest.mark.parametrize("job", COMPUTES, indirect=True)
def test_nothing_is_asked_twice(job: CommandJob, asked: Counter[str]) -> None:
    operations: dict[str, tuple[Callable[[], object], tuple[dict[str, int], ...]]] = {
        "compile": (lambda: MLClient().jobs.compile(job), (JUDGED, {"compile": 1})),
        "create_or_update": (lambda: MLClient().jobs.create_or_update(job), (JUDGED, {"compile": 1})),
        "validate": (lambda: MLClient().jobs.validate(job), (JUDGED,)),
        "explain": (lambda: job.explain(), ()),
    }
    for name, (operate, more) in operations.items():
        wanted = expected(job, *more)
        asked.clear()
        operate()
        assert asked == wanted, name


@pytest.mark.parametrize("job", ["slurm"], indirect=True)
def test_what_is_found_is_handed_on(job: CommandJob) -> None:
    job.name = "r"
    ready = MLClient().jobs.compile(job)
    assert ready.secrets["environment"] == {"MY_TOKEN": "swordfish"}
    assert "swordfish" not in repr(ready)
    assert ready.plan["nodes"] == 1
    assert ready.findings == ready.warnings == tuple(MLClient().jobs.validate(job).findings)
    draft = Draft(job, name="r")
    assert (draft.plan, draft.of_job + draft.of_compute) == (ready.plan, ready.findings)
    assert of_draft(draft).to_dict() == job.explain().to_dict()


@pytest.mark.parametrize("job", ["slurm"], indirect=True)
def test_all_errors_of_a_compute_are_raised_at_once(job: CommandJob) -> None:
    job.scaling = ScalingConfig(num_workers=16, use_gpu=True, placement_strategy="STRICT_PACK")
    job.resources.properties = {"slurm": {"tome": 1}}
    Path("computes.yml").write_text(
        json.dumps({"computes": {"there": {**COMPUTES["slurm"], "login": "x", "folder": "/y"}}})
    )
    with pytest.raises(ValidationError) as caught:
        MLClient().jobs.compile(job, compute="there", build_env=True, in_place=True)
    errors = [str(one) for one in caught.value.findings if one.is_error]
    for words in ("no setting of a job", "no environment is built", "asks for one node", "in this machine's folder"):
        assert any(words in one for one in errors), words

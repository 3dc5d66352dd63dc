"""A plan without its secrets, and what was taken out of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobsdk import DeepSpeedDistribution, Input, MLClient, PyTorchDistribution, ScalingConfig, command
from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.spec import plan_file
from jobsdk.compute.slurm.compute import SlurmCompute
from jobsdk.errors import JobsdkError
from jobsdk.job.command import CommandJob
from jobsdk.planning.plan import make_plan, whole_plan
from jobsdk.planning.secrets import complete, seal

TOKEN = "hf_" + "aBcD" * 9


def job(nodes: int = 2, **more: object) -> CommandJob:
    return command(
        command=f"x --login {TOKEN} ${{{{inputs.data}}}} ${{{{inputs.password}}}}",
        display_name="for swordfish",
        environment_variables={"MY_SECRET": "swordfish", "N": "1"},
        secrets=["FROM_SHELL"],
        inputs={"data": Input(type="uri_file", path="https://h/d.csv?sig=abcdefgh"), "password": "hunter22"},
        distribution=DeepSpeedDistribution(config={"comet": {"api_key": "swordfish"}, "x": 1}),
        instance_count=nodes,
        **more,
    )


def test_the_plan_holds_no_secret_and_the_parts_make_it_whole_again(tmp_path: Path) -> None:
    plan, taken = seal(whole_plan(job(), name="run"), job())
    parts = complete(taken, plan["secrets"], {"FROM_SHELL": "open sesame", "OTHER": "x"})
    for value in (TOKEN, "swordfish", "abcdefgh", "hunter22", "open sesame"):
        assert value not in json.dumps(plan)
    assert plan["environment"] == {"N": "1"}
    assert plan["secrets"] == ["FROM_SHELL", "MY_SECRET"]

    (tmp_path / "plan.json").write_text(json.dumps(plan))
    plan_file.write_secrets(str(tmp_path), parts)
    whole = plan_file.read(str(tmp_path))
    assert whole["environment"] == {"N": "1", "MY_SECRET": "swordfish", "FROM_SHELL": "open sesame"}
    assert whole["command"] == [f"x --login {TOKEN} ", {"input": "data"}, " hunter22"]
    assert whole["inputs"]["data"]["uri"] == "https://h/d.csv?sig=abcdefgh"
    assert whole["inputs"]["password"] == {"literal": "hunter22"}
    assert whole["distribution"]["config"]["comet"]["api_key"] == "swordfish"
    assert whole["display_name"] == "for swordfish"
    assert set(whole["secret_values"]) == {TOKEN, "swordfish", "hunter22", "open sesame"}


def test_a_secret_that_is_nowhere_is_an_error() -> None:
    plan, taken = seal(whole_plan(job(), name="run"), job())
    with pytest.raises(JobsdkError, match="FROM_SHELL, secret in the job, is not set here"):
        complete(taken, plan["secrets"], {})


def test_a_job_without_secrets_has_none_kept() -> None:
    plain = command(command="x ${{inputs.f}}", inputs={"f": Input(type="uri_file", path="https://h/d.csv?a=1")})
    plan, taken = seal(whole_plan(plain, name="run"), plain)
    assert (plan["secrets"], plan["sealed"]) == ([], [])
    assert complete(taken, plan["secrets"], {"HF_TOKEN": TOKEN}) == {}


def test_words_of_our_own_are_never_hidden() -> None:
    odd = command(
        command="x", environment_variables={"MY_SECRET": "pytorch", "B_SECRET": "uri_folder"},
        inputs={"d": Input(path="/data/pytorch")}, distribution=PyTorchDistribution(),
    )  # fmt: skip
    plan = make_plan(odd, name="run")
    assert plan["distribution"]["type"] == "pytorch"
    assert plan["inputs"]["d"] == {"type": "uri_folder", "mode": None, "uri": "/data/pytorch"}


def test_the_size_does_not_depend_on_the_number_of_ranks() -> None:
    assert len(json.dumps(make_plan(job(2000), name="r"))) == len(json.dumps(make_plan(job(1000), name="r")))


def test_a_secret_leaves_the_world_as_the_compute_lays_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("computes.yml").write_text("computes: {cluster: {type: slurm, gpus_per_node: 4}}")
    monkeypatch.setattr(SlurmCompute, "submit", lambda *_: None)
    key = "sk-proj-" + "aBcD" * 9
    config = {"train_micro_batch_size_per_gpu": 1, "wandb": {"api_key": key}}
    scaled = command(
        command="x", compute="cluster", scaling=ScalingConfig(num_workers=8, use_gpu=True),
        distribution=DeepSpeedDistribution(config=config),
    )  # fmt: skip
    run = MLClient().jobs.create_or_update(scaled)
    read = plan_file.read(str(run.folder.path))
    assert read["distribution"]["config"]["wandb"]["api_key"] == key
    assert (read["nodes"], read["distribution"]["processes"], distributions.of(read).world_size()) == (2, 4, 8)
    assert distributions.of(run.folder.plan()).world_size() == scaled.explain().world_size == 8

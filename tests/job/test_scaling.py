"""Ray Train's words for the size of a job, beside Ray's own classes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobsdk import CommandJob, PyTorchDistribution, ScalingConfig, TorchConfig, command, load_job
from jobsdk.errors import ValidationError
from jobsdk.job.yaml_file import read_job

JOB = "command: env\n"


def wrong(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        ScalingConfig(**fields)
    return str(caught.value)


@pytest.fixture(scope="module")
def ray_train() -> Any:
    """Ray's own classes."""
    from ray.train.torch import TorchConfig as RayTorchConfig
    from ray.train.v2.api.config import ScalingConfig as RayScalingConfig

    return RayScalingConfig, RayTorchConfig


GIVEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "eight workers": {"num_workers": 8},
    "a GPU each": {"num_workers": 8, "use_gpu": True},
    "two GPUs for one": {"use_gpu": True, "resources_per_worker": {"GPU": 2}},
    "half a GPU": {"num_workers": 4, "use_gpu": True, "resources_per_worker": {"GPU": 0.5, "CPU": 1}},
    "CPUs": {"num_workers": 3, "resources_per_worker": {"CPU": 2.5}},
    "CPUs beside a GPU": {"num_workers": 2, "use_gpu": True, "resources_per_worker": {"CPU": 4}},
    "no CPU": {"num_workers": 2, "resources_per_worker": {"CPU": 0, "fpga": 1}},
    "memory": {"num_workers": 2, "resources_per_worker": {"memory": 1e9, "custom": 0.25}},
    "a kind of GPU": {"num_workers": 2, "use_gpu": True, "accelerator_type": "A100"},
}


@pytest.mark.parametrize("name", GIVEN)
def test_it_counts_as_ray_does(name: str, ray_train: Any) -> None:
    theirs, ours = ray_train[0](**GIVEN[name]), ScalingConfig(**GIVEN[name])
    for field in ("num_workers", "use_gpu", "placement_strategy", "accelerator_type", "label_selector"):
        assert getattr(ours, field) == getattr(theirs, field), field
    for count in ("num_cpus_per_worker", "num_gpus_per_worker", "additional_resources_per_worker", "total_resources"):
        assert getattr(ours, count) == getattr(theirs, count), count


@pytest.mark.parametrize(
    "fields",
    [
        {"resources_per_worker": {"GPU": 1}},
        {"num_workers": -1},
        {"num_workers": 2.5},
        {"num_workers": 3, "label_selector": [{"a": "b"}]},
        {"resources_per_worker": {"TPU": 4}},
    ],
)
def test_what_ray_refuses_is_refused(fields: dict[str, Any], ray_train: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        ray_train[0](**fields)
    assert "Fix: " in wrong(**fields)


def test_the_fields_of_torch_config_are_those_of_ray_in_their_order(ray_train: Any) -> None:
    theirs, ours = ray_train[1]("gloo", "tcp", 60), TorchConfig("gloo", "tcp", 60)
    assert theirs.to_dict() == ours.to_dict()
    assert ray_train[1]().to_dict() == {name: getattr(TorchConfig(), name) for name in theirs.to_dict()}
    with pytest.raises(TypeError, match="two values for backend"):
        TorchConfig("gloo", backend="nccl")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_workers": (2, 4)}, "a job has a fixed number of workers, got a list. Fix: write one number, as 4"),
        ({"num_workers": 0}, "num_workers: 0, Ray's local mode, starts no worker"),
        ({"num_worker": 2}, "did you mean 'num_workers'?"),
        ({"use_tpu": True}, "TPUs are not supported"),
        ({"elastic_resize_monitor_interval_s": 5.0}, "a job has a fixed number of workers"),
        ({"resources_per_worker": {"gpu": 1}}, "did you mean 'GPU'?"),
        ({"resources_per_worker": {"GPUs": 1}, "use_gpu": True}, "did you mean 'GPU'?"),
        ({"resources_per_worker": {"Memory": 1}}, "did you mean 'memory'?"),
        ({"resources_per_worker": {"CPU": -1}}, "resources_per_worker.CPU: must be a number of at least 0"),
        ({"resources_per_worker": {"CPU": float("nan")}}, "must be a number of at least 0"),
        ({"resources_per_worker": {"memory": "8g"}}, "got '8g'. Fix: write bytes, as 8e9"),
        ({"num_workers": 3, "label_selector": [{"a": "b"}]}, "has 1 entry for 3 workers"),
        ({"use_gpu": True, "resources_per_worker": {"GPU": 1.5}}, "must be a whole number above 1, got 1.5"),
        ({"use_gpu": True, "resources_per_worker": {"GPU": 0}}, "is 0, and use_gpu is true"),
        ({"placement_strategy": "STRICTPACK"}, "did you mean 'STRICT_PACK'?"),
        ({"accelerator_type": ""}, "accelerator_type: must not be empty"),
    ],
)  # fmt: skip
def test_mistakes_are_named(fields: dict[str, Any], words: str) -> None:
    assert words in wrong(**fields)


def test_labels_that_are_none_are_not_counted_too() -> None:
    assert wrong(num_workers=2, label_selector=["a"]).count("error: ") == 1


def test_a_value_without_a_name_is_refused_since_rays_first_is_deprecated() -> None:
    with pytest.raises(ValidationError, match=r"name it: ScalingConfig\(num_workers=4\)"):
        ScalingConfig(4)


def test_resources_of_a_trainer_are_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="trainer_resources is deprecated") as told:
        scaling = ScalingConfig(trainer_resources={"CPU": 2})
    assert told[0].filename == __file__
    (finding,) = command(command="env", scaling=scaling).validate()
    assert finding.path == ("scaling", "trainer_resources")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ScalingConfig(num_workers=2)


# -- in a job --------------------------------------------------------------------------------------------------------


def test_a_job_keeps_them_in_yaml(tmp_path: Path) -> None:
    scaling = ScalingConfig(
        num_workers=4, use_gpu=True, resources_per_worker={"GPU": 0.5}, label_selector={"zone": "a"}
    )
    job = command(command="env", scaling=scaling, torch_config=TorchConfig("gloo", timeout_s=60))
    job.dump(tmp_path / "job.yml")
    assert load_job(tmp_path / "job.yml") == job
    assert job.to_dict()["scaling"] == {
        "num_workers": 4, "use_gpu": True, "resources_per_worker": {"GPU": 0.5}, "label_selector": {"zone": "a"}
    }  # fmt: skip
    again = load_job(tmp_path / "job.yml", params_override=[{"scaling.num_workers": "8"}])
    assert again.scaling is not None
    assert again.scaling.num_workers == 8


def test_mistakes_have_their_place_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text(f"{JOB}scaling:\n  num_workers: 2\n  resources_per_worker:\n    GPU: 1\n  use_gpus: true\n")
    found = {".".join(map(str, one.path)): (one.line, one.fix) for one in read_job(file)[1]}
    assert found["scaling.resources_per_worker.GPU"] == (5, "set use_gpu to true, or remove GPU")
    assert found["scaling.use_gpus"] == (6, "did you mean 'use_gpu'?")


def test_a_field_in_the_wrong_place_is_led_home() -> None:
    with pytest.raises(ValidationError, match=r"write scaling\.num_workers"):
        CommandJob(command="env", num_workers=4)  # type: ignore[call-arg]


def test_a_change_afterwards_is_judged_with_the_job() -> None:
    job = command(command="env", scaling=ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 1}))
    assert job.scaling is not None
    job.scaling.use_gpu = False
    assert [one.path for one in job.findings()] == [("scaling", "resources_per_worker", "GPU")]


def test_gpus_of_a_process_may_be_a_share() -> None:
    for share in (0.5, "0.25", 2, 2.0):
        assert command(command="env", gpus_per_process=share).resources.gpus_per_process == float(share)
    for value in (1.5, 0, "0.001", True):
        with pytest.raises(ValidationError, match="Fix: write"):
            command(command="env", gpus_per_process=value)


def test_both_are_found_beside_what_else_is_wrong() -> None:
    distribution = PyTorchDistribution(process_count_per_instance=3)
    job = command(command="python x.py", scaling={"num_workers": 8}, distribution=distribution)
    assert {one.path[0] for one in job.findings()} == {"distribution", "command"}


def test_the_page_of_the_docs_says_what_loads() -> None:
    page = (Path(__file__).parents[2] / "docs/scaling.md").read_text()
    blocks = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "yaml"))
    code, yaml_text = (found[1] for found in blocks if found is not None)
    known: dict[str, Any] = {}
    exec(code, known)
    assert known["job"].scaling.num_workers == 16
    job = load_job({"command": "env", **yaml.safe_load(yaml_text)})
    assert job.scaling is not None
    assert job.scaling.additional_resources_per_worker == {"memory": 8_000_000_000}

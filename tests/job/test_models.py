"""Models: what constructors and assignments take, refuse and keep."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobsdk import (
    BuildContext,
    CommandJob,
    CommandJobLimits,
    DeepSpeedDistribution,
    Environment,
    Input,
    JobResourceConfiguration,
    ManagedIdentityConfiguration,
    MpiDistribution,
    Output,
    PyTorchDistribution,
    QueueSettings,
    RayDistribution,
    SshJobService,
    TensorFlowDistribution,
    ValidationError,
    command,
)
from jobsdk.findings import dotted


def refused(make: Callable[[], object]) -> dict[str, str]:
    """What `make` is refused for: the paths, each with its text."""
    with pytest.raises(ValidationError) as caught:
        make()
    return {dotted(finding.path): str(finding) for finding in caught.value.findings}


# -- distributions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "type_name"),
    [
        ("pytorch", "pytorch"),
        ("PyTorch", "pytorch"),
        (" Torch ", "pytorch"),
        ("torch.distributed", "pytorch"),
        ("py_torch", "pytorch"),
        ("TensorFlow", "tensorflow"),
        ("tf", "tensorflow"),
        ("Mpi", "mpi"),
        ("horovod", "mpi"),
        ("OpenMPI", "mpi"),
        ("DeepSpeed", "deepspeed"),
        ("deep_speed", "deepspeed"),
        ("RAY", "ray"),
    ],
)
def test_distribution_types_have_aliases_in_any_letter_case(written: str, type_name: str) -> None:
    job = command(command="x", distribution={"type": written})
    assert job.distribution is not None
    assert job.distribution.type == type_name


@pytest.mark.parametrize(
    ("given", "path", "says"),
    [
        ({"type": "deepspede"}, "distribution.type", "did you mean 'deepspeed'?"),
        ({"type": "spark"}, "distribution.type", "write pytorch, tensorflow, mpi, deepspeed or ray"),
        ({"type": 3}, "distribution.type", "unknown type 3"),
        ({}, "distribution", "has no type"),
        ({"distributionType": "PyTorch"}, "distribution", "did you mean 'type' by 'distributionType'?"),
        ("pytorch", "distribution", "write it as {type: pytorch}"),
        ("tensorflw", "distribution", "write it as {type: tensorflow}"),
        (["pytorch"], "distribution", "got a list"),
        (Input(path="x"), "distribution", "an object of type Input"),
        ({"type": "pytorch", "worker_count": 2}, "distribution.worker_count", "it is a setting of tensorflow"),
        ({"type": "mpi", "process_count": 2}, "distribution.process_count", "'process_count_per_instance'"),
        ({"type": "mpi", "launcher": "srun"}, "distribution.launcher", "mpirun, openmpi, hydra or direct"),
        ({"type": "tf", "parameter_server_count": -1}, "distribution.parameter_server_count", "at least 0"),
        ({"type": "tf", "chief": "maybe"}, "distribution.chief", "true or false"),
        ({"type": "ray", "port": 70000}, "distribution.port", "from 1 to 65535"),
        ({"type": "ray", "dashboard_port": 0}, "distribution.dashboard_port", "at least 1"),
        ({"type": "deepspeed", "autotuning": "yes"}, "distribution.autotuning", "tune or run"),
    ],
)
def test_a_wrong_distribution_is_refused(given: Any, path: str, says: str) -> None:
    assert says in refused(lambda: command(command="x", distribution=given))[path]


def test_a_type_that_is_fixed() -> None:
    assert vars(PyTorchDistribution(process_count_per_instance=2)) == {
        "type": "pytorch",
        "process_count_per_instance": 2,
    }
    assert MpiDistribution().launcher == "mpirun"
    assert DeepSpeedDistribution().launcher == "direct"
    assert TensorFlowDistribution().parameter_server_count == 0
    assert TensorFlowDistribution().process_count_per_instance is None
    assert "type" in refused(lambda: PyTorchDistribution(type="mpi"))


def test_extra_keys_of_a_dict_are_kept_with_a_warning() -> None:
    given = {"type": "pytorch", "added_property": 7, "additional_prop": {"nested_prop": 3}}
    job = command(command="x", distribution=given)
    assert [(dotted(f.path), f.severity) for f in job.findings()] == [
        ("distribution.added_property", "warning"),
        ("distribution.additional_prop", "warning"),
    ]
    assert {f.severity for f in job.findings(strict=True)} == {"error"}
    assert job.to_dict()["distribution"] == given
    assert job == command(command="x", distribution=dict(given))
    assert job != command(command="x", distribution={**given, "added_property": 8})
    assert "added_property" in refused(lambda: PyTorchDistribution(added_property=7))  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "kept"),
    [(2, 2), ("2", 2), (" +2 ", 2), (2.7, None), (2.0, 2), (True, None), ("two", None), ([], None)],
)
def test_whole_numbers_are_one_rule_everywhere(given: Any, kept: int | None) -> None:
    made: list[Callable[[], Any]] = [
        lambda: PyTorchDistribution(process_count_per_instance=given).process_count_per_instance,
        lambda: command(instance_count=given).resources.instance_count,
        lambda: command(resources={"instance_count": given}).resources.instance_count,
        lambda: command(services={"s": {"type": "ssh", "port": given}}).services["s"].port,  # type: ignore[index]
    ]
    for make in made:
        if kept is None:
            refused(make)
        else:
            assert make() == kept


# -- the job ---------------------------------------------------------------------------------------------------------


def test_parameters_of_command_are_fields_of_its_parts() -> None:
    job = command(
        command="x",
        instance_count=2,
        instance_type="big",
        locations=["here"],
        docker_args="--ipc=host",
        shm_size="2g",
        max_instance_count=4,
        gpus_per_process=1,
        timeout=60,
        job_tier="Spot",
        priority="high",
        is_deterministic=False,
    )
    assert job.resources == JobResourceConfiguration(
        instance_count=2,
        instance_type="big",
        locations=["here"],
        docker_args="--ipc=host",
        shm_size="2g",
        max_instance_count=4,
        gpus_per_process=1,
    )
    assert job.limits == CommandJobLimits(timeout=60)
    assert job.queue_settings == QueueSettings(job_tier="spot", priority="high")
    same = command(
        command="x",
        resources=job.resources,
        limits={"timeout": "60"},
        queue_settings=QueueSettings(job_tier="spot", priority="high"),
    )
    assert same == job


def test_a_parameter_adds_to_its_part_and_never_changes_it() -> None:
    resources = JobResourceConfiguration(shm_size="1g")
    job = command(command="x", resources=resources, instance_count=3)
    assert (job.resources.instance_count, job.resources.shm_size) == (3, "1g")
    assert resources == JobResourceConfiguration(shm_size="1g")
    texts = refused(lambda: command(resources={"instance_count": 2}, instance_count=3))
    assert "is given twice" in texts["instance_count"]


@pytest.mark.parametrize(
    ("keyword", "says"),
    [
        ("instance_cout", "'instance_count'"),
        ("distribtion", "'distribution'"),
        ("enviroment", "'environment'"),
        ("env_vars", "'environment_variables'"),
    ],
)
def test_unknown_keywords_are_refused_with_the_nearest_name(keyword: str, says: str) -> None:
    assert says in refused(lambda: command(**{keyword: 2}))[keyword]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("instance_count", "write resources.instance_count"),
        ("timeout", "write limits.timeout"),
        ("priority", "write queue_settings.priority"),
        ("process_count_per_instance", "write distribution.process_count_per_instance"),
        ("nproc_per_node", "did you mean distribution.process_count_per_instance?"),
        ("nodes", "did you mean resources.instance_count?"),
        ("shm_sise", "did you mean resources.shm_size?"),
        ("Compute", "did you mean 'compute'?"),
    ],
)
def test_keys_that_belong_elsewhere_are_sent_there(key: str, says: str) -> None:
    assert says in refused(lambda: CommandJob(**{"command": "x", key: 2}))[key]


def test_later_assignment_is_judged_and_refusal_changes_nothing() -> None:
    job = command(command="x", distribution=PyTorchDistribution(process_count_per_instance=2))
    job.distribution = TensorFlowDistribution(worker_count=1)
    assert job.distribution.type == "tensorflow"
    job.distribution = {"type": "mpi", "process_count_per_instance": "4"}  # type: ignore[assignment]
    assert isinstance(job.distribution, MpiDistribution)
    assert "process_count_per_instance" in refused(lambda: setattr(job.distribution, "process_count_per_instance", -1))
    assert job.distribution.process_count_per_instance == 4
    assert "did you mean 'distribution'?" in refused(lambda: setattr(job, "distribtion", None))["distribtion"]
    job.resources.instance_count = 2
    assert "instance_count" in refused(lambda: setattr(job.resources, "instance_count", 0))
    job.distribution = None
    job.limits = None
    del job.distribution
    assert job.distribution is None


def test_mappings_of_a_job_are_judged_entry_by_entry() -> None:
    job = command(command="x", inputs={"a": 1}, environment_variables={"A": 1}, tags={"n": 3, "none": None})
    assert job.environment_variables == {"A": "1"}
    assert job.tags == {"n": "3", "none": None}
    job.environment_variables["B"] = 2  # type: ignore[assignment]
    job.environment_variables.update(C="3")
    job.environment_variables |= {"D": "4"}
    assert job.environment_variables.setdefault("E", "5") == "5"
    assert job.environment_variables == {"A": "1", "B": "2", "C": "3", "D": "4", "E": "5"}
    job.inputs["data"] = {"path": "https://x/y", "type": "uri_file"}  # type: ignore[assignment]
    assert job.inputs.data == Input(path="https://x/y", type="uri_file")  # type: ignore[attr-defined]
    job.inputs.b = 4  # type: ignore[attr-defined]
    assert job.inputs["b"] == 4
    assert "environment_variables" not in vars(job.inputs)
    with pytest.raises(AttributeError, match="did you mean 'data'"):
        _ = job.inputs.dta  # type: ignore[attr-defined]
    assert "1x" in refused(lambda: job.inputs.__setitem__("1x", 3))
    assert "F" in refused(lambda: job.environment_variables.update(F=[1]))
    assert "F" not in job.environment_variables
    fresh = command(command="x")
    fresh.outputs["model"] = None  # type: ignore[assignment]
    assert fresh.outputs == {"model": Output()}


def test_what_is_changed_in_place_is_judged_at_validation() -> None:
    job = command(command="x", resources={"locations": ["a"]})
    assert job.resources.locations is not None
    job.resources.locations.append(3)  # type: ignore[arg-type]
    assert [dotted(finding.path) for finding in job.findings()] == ["resources.locations.1"]


def test_true_as_a_variable_warns_until_it_is_replaced() -> None:
    job = command(command="x", environment_variables={"A": True, "B": "true"})
    assert job.environment_variables == {"A": "True", "B": "true"}
    warnings = job.validate()
    assert [dotted(finding.path) for finding in warnings] == ["environment_variables.A"]
    assert [dotted(f.path) for f in copy.deepcopy(job).findings()] == ["environment_variables.A"]
    job.environment_variables["A"] = "true"
    assert job.validate() == ()


def test_inputs() -> None:
    job = command(
        inputs={
            "text": "a",
            "whole": 1,
            "real": 0.5,
            "flag": True,
            "value": Input(type="integer", default=3),
            "absent": Input(type="number", optional=True),
            "folder": Input(path=Path("/data"), mode="mount"),
            "of_another_job": Output(type="uri_file", path="/runs/x/model.pt"),
        }
    )
    assert [job.inputs[name] for name in ("text", "whole", "real", "flag", "value")] == ["a", 1, 0.5, True, "3"]
    assert job.inputs["flag"] is True
    assert job.inputs["folder"] == Input(type="uri_folder", path="/data", mode="ro_mount")
    assert job.inputs["of_another_job"] == Input(type="uri_file", path="/runs/x/model.pt")
    assert "absent" not in job.given_inputs()
    assert len(job.given_inputs()) == len(job.inputs) - 1
    for given, says in [
        (None, "give it a value"),
        ([1], "got a list"),
        (float("nan"), "'nan' in quotes"),
        ({"typ": "uri_file"}, "did you mean 'type'?"),
        ({"type": "uri_fil", "path": "x"}, "did you mean 'uri_file'?"),
        ({"path": "x", "mode": "rw_mount"}, "ro_mount"),
        ({"type": "integer"}, "no value"),
        (Output(), "give the path"),
        ("a\0b", "NUL"),
    ]:
        assert says in " ".join(refused(lambda given=given: command(inputs={"x": given})).values())  # type: ignore[misc]


def test_outputs() -> None:
    job = command(outputs={"a": None, "b": {"type": "custom_model", "mode": "mount"}, "c": Output(path=Path("out"))})
    assert job.outputs == {
        "a": Output(type="uri_folder"),
        "b": Output(type="custom_model", mode="rw_mount"),
        "c": Output(path="out"),
    }
    assert "write it as {path: ...}" in refused(lambda: command(outputs={"x": "out"}))["outputs.x"]
    assert "outputs.x.mode" in refused(lambda: command(outputs={"x": {"mode": "ro_mount"}}))


@pytest.mark.parametrize(
    "name",
    [
        "azureml:env:1",
        "azureml:env:1:2",
        "azureml:my env:1",
        "azureml:my env@latest",
        "azureml:env@latest",
        "env:1.0-beta",
        "AzureML-acpt-pytorch-2.8@latest",
        "azureml://registries/azureml/environments/sklearn-1.5/labels/latest",
        "file:./env.yml",
        "/subscriptions/s/resourceGroups/r",
    ],
)
def test_names_of_environments(name: str) -> None:
    assert command(environment=name).environment == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("env", "'env:1' or 'env@latest'"),
        ("azureml:env", "'azureml:env:1'"),
        ("conda.yml", "file:conda.yml"),
        ("docker.io/library/python", "{image: ...}"),
        ("< yours >", "azureml:name:version"),
        ("", "must not be empty"),
    ],
)
def test_other_texts_are_no_environment(name: str, says: str) -> None:
    assert says in refused(lambda: command(environment=name))["environment"]


def test_environments() -> None:
    environment = Environment(
        name="mine",
        version=3,  # type: ignore[arg-type]
        build=BuildContext(path="docker", dockerfile_path="Dockerfile.gpu"),
        conda_file={"dependencies": ["python=3.11", {"pip": ["click"]}]},
        os_type="linux",
    )
    assert (environment.version, environment.os_type) == ("3", "Linux")
    as_dict = command(environment=environment.to_dict())
    assert as_dict.environment == environment
    assert "environment.imge" in refused(lambda: command(environment={"imge": "x"}))


def test_names_and_other_texts() -> None:
    assert refused(lambda: command(name="../x", display_name=3, experiment_name="", command=" ")).keys() == {  # type: ignore[arg-type]
        "name",
        "display_name",
        "experiment_name",
        "command",
    }
    assert "name" in refused(lambda: command(name="x" * 256))
    assert command(name="a-1_b").name == "a-1_b"
    assert "'1'" in refused(lambda: command(compute=1))["compute"]  # type: ignore[arg-type]


@pytest.mark.parametrize("size", ["2g", "512m", "1024k", "64b", "2G"])
def test_sizes(size: str) -> None:
    assert command(shm_size=size).resources.shm_size == size


@pytest.mark.parametrize("size", ["2", "g", "2gb", "-1g", "0g", "2 g", "lots"])
def test_other_texts_are_no_size(size: str) -> None:
    assert "as docker does" in refused(lambda: command(shm_size=size))["resources.shm_size"]


@pytest.mark.parametrize(("given", "kept"), [("1h", 3600), ("1h30m", 5400), (30.5, 30.5), ("30.5", 30.5), (60.0, 60)])
def test_timeout_is_a_length_of_time(given: Any, kept: float) -> None:
    assert command(timeout=given).limits == CommandJobLimits(timeout=kept)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"type": "jupyter"}, "did you mean 'jupyter_lab'?"),
        ({"type": "ssh", "nodes": "some"}, "must be all"),
        ({"type": "ssh", "port": 0}, "at least 1"),
        ({"type": "vs_code", "log_dir": "x"}, "no such key"),
        ({}, "has no type"),
    ],
)
def test_wrong_services_are_refused(given: Any, says: str) -> None:
    assert says in " ".join(refused(lambda: command(services={"s": given})).values())


def test_services_and_identities() -> None:
    job = command(
        services={"a": SshJobService(ssh_public_keys="k"), "b": {"type": "VS_CODE"}},
        identity={"type": "managed_identity", "client_id": "c"},
    )
    assert job.to_dict() == {
        "type": "command",
        "services": {"a": {"type": "ssh", "ssh_public_keys": "k"}, "b": {"type": "vs_code"}},
        "identity": {"type": "managed", "client_id": "c"},
    }
    assert job.identity == ManagedIdentityConfiguration(client_id="c")


@pytest.mark.parametrize(
    ("written", "kept"),
    [("AMLToken", "aml_token"), ("AmlToken", "aml_token"), ("amlToken", "aml_token"), ("Managed", "managed"),
     ("ManagedIdentity", "managed"), ("managedIdentity", "managed"), ("UserIdentity", "user_identity"),
     ("userIdentity", "user_identity"), ("USER_IDENTITY", "user_identity")],
)  # fmt: skip
def test_the_type_of_an_identity_in_each_of_its_spellings(written: str, kept: str) -> None:
    assert command(command="x", identity={"type": written}).identity.type == kept  # type: ignore[union-attr]


def test_set_methods_keep_what_is_not_given() -> None:
    job = command(command="x", instance_count=2, shm_size="1g", priority="low")
    resources = job.resources
    job.set_resources(instance_type="big", docker_args=["--ipc=host"])
    job.set_queue_settings(job_tier="spot")
    job.set_limits(timeout=5)
    assert job.resources.to_dict() == {
        "instance_count": 2,
        "instance_type": "big",
        "shm_size": "1g",
        "docker_args": ["--ipc=host"],
    }
    assert resources.instance_type is None
    assert job.queue_settings == QueueSettings(job_tier="spot", priority="low")
    assert job.limits == CommandJobLimits(timeout=5)
    assert "instance_count" in refused(lambda: job.set_resources(instance_count=0))


def test_a_call_clones_with_other_inputs() -> None:
    job = command(
        command="x ${{inputs.a}}",
        experiment_name="e",
        inputs={"a": 1, "b": 2},
        distribution={"type": "mpi", "added_property": 1},
    )
    other = job(a=5)
    assert (other.inputs, job.inputs) == ({"a": 5, "b": 2}, {"a": 1, "b": 2})
    assert other.experiment_name == "e"
    assert other.distribution == job.distribution
    other.resources.instance_count = 7
    assert job.resources.instance_count == 1
    assert "did you mean 'a'?" in refused(lambda: job(A=3))["inputs.A"]


def test_copies_and_pickles_are_equal_and_apart() -> None:
    job = command(command="x", inputs={"a": {"path": "p"}}, tags={"t": 1}, services={"s": {"type": "ssh"}})
    for same in (copy.deepcopy(job), pickle.loads(pickle.dumps(job))):
        assert same == job
        same.inputs["a"].path = "q"
        same.tags["t"] = "2"
        assert same != job
        refused(lambda same=same: same.inputs.__setitem__("x y", 1))  # type: ignore[misc]
    assert job.tags == {"t": "1"}


def test_equality_compares_the_meaning_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = command(command="x", code="src", inputs={"d": Input(path="data")}, environment="file:env.yml")
    same = command(
        command="x",
        code=tmp_path / "src",
        inputs={"d": Input(path=f"file:{tmp_path}/a/../data")},
        environment=f"file:{tmp_path}/env.yml",
    )
    assert job == same
    same.base_path = "/elsewhere"
    job.base_path = "/elsewhere"
    assert job != same
    assert command(command="x") != "x"
    assert command(command="x", inputs={"a": 1}) == command(command="x", inputs={"a": 1})


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = command(command="x")
    assert job.base_path is None
    for path in ("a/b", "./a/b", "file:a/b", f"file://{tmp_path}/a/b", Path("a/b"), tmp_path / "a" / "b"):
        assert job.resolve(path) == tmp_path / "a" / "b"
    job.base_path = tmp_path / "c"
    assert job.resolve("../x") == tmp_path / "x"


def test_help_shows_the_parameters() -> None:
    signature = inspect.signature(PyTorchDistribution)
    assert list(signature.parameters) == ["type", "process_count_per_instance"]
    assert signature.parameters["type"].default == "pytorch"
    assert "instance_count" in inspect.signature(command).parameters
    assert repr(MpiDistribution(process_count_per_instance=2)) == "MpiDistribution(process_count_per_instance=2)"


def test_every_public_class_and_field_is_documented() -> None:
    from jobsdk.job.distribution import DISTRIBUTIONS
    from jobsdk.job.identity import IDENTITY
    from jobsdk.job.services import SERVICE

    models = [CommandJob, Input, Output, Environment, BuildContext, JobResourceConfiguration, CommandJobLimits]
    for model in (*models, QueueSettings, RayDistribution, *DISTRIBUTIONS, *SERVICE.models, *IDENTITY.models):
        assert model.__doc__
        assert all(spec.doc for spec in model._fields.values()), model


def test_all_that_is_wrong_with_the_parameters_is_told_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        command(comand="x", timeout=-3, distribution={"type": "tourch"})  # type: ignore[call-arg]
    paths = {finding.path for finding in caught.value.findings}
    assert paths == {("comand",), ("limits", "timeout"), ("distribution", "type")}
    with pytest.raises(ValidationError, match=r"command\(command="):
        command("echo")  # type: ignore[misc]


def test_misspelt_parameters_of_set_resources() -> None:
    job = command(command="x")
    with pytest.raises(ValidationError, match="did you mean 'instance_count'"):
        job.set_resources(instance_cout=3, shm_size="1g")  # type: ignore[call-arg]
    assert job.resources.shm_size is None


def test_a_distribution_with_an_empty_type() -> None:
    with pytest.raises(ValidationError, match=r"has no type\. Fix: add 'type': pytorch"):
        command(command="x", distribution={"type": None})


def test_models_can_be_subscripted() -> None:
    job = command(command="x", outputs={"m": {"path": "x"}})
    assert job.outputs["m"]["path"] == "x"  # type: ignore[index]
    with pytest.raises(KeyError):
        job.outputs["m"]["pth"]  # type: ignore[index]

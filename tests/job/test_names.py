"""The public names: all there, loaded only when used, and those that Azure ML notebooks import."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import jobsdk
from jobsdk import constants, entities
from jobsdk.errors import JobFailed, JobsdkError, RunNotFound, ValidationError
from jobsdk.findings import Finding

HEAVY = ["asyncio", "attr", "click", "difflib", "inspect", "json", "pathlib", "pathspec", "rich", "sqlite3", "yaml"]


def test_all_names_are_there() -> None:
    for name in jobsdk.__all__:
        assert getattr(jobsdk, name) is not None
    assert set(jobsdk.__all__) <= set(dir(jobsdk))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = jobsdk.no_such_name
    for name in entities.__all__:
        if name in jobsdk.__all__:
            assert getattr(entities, name) is getattr(jobsdk, name)


def test_describing_a_job_loads_nothing_heavy() -> None:
    program = (
        "import sys; from jobsdk import command, PyTorchDistribution;"
        "command(command='x', distribution=PyTorchDistribution(process_count_per_instance=2), instance_count=2);"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_constants_are_what_the_fields_take() -> None:
    from jobsdk.job.io import ASSET_TYPES

    types = {value for name, value in vars(constants.AssetTypes).items() if name.isupper()}
    assert types == set(ASSET_TYPES)
    for mode in ("MOUNT", "RO_MOUNT", "DOWNLOAD", "DIRECT", "EVAL_MOUNT", "EVAL_DOWNLOAD"):
        assert jobsdk.Input(path="x", mode=getattr(constants.InputOutputModes, mode)).mode
    for mode in ("MOUNT", "RW_MOUNT", "UPLOAD", "DIRECT"):
        assert jobsdk.Output(mode=getattr(constants.InputOutputModes, mode)).mode
    for name, value in vars(constants.DistributionType).items():
        if name.isupper():
            distribution = jobsdk.command(distribution={"type": value}).distribution
            assert distribution is not None
            assert distribution.type == value


def test_errors_are_one_tree() -> None:
    error = ValidationError([Finding("error", ("a",), "is wrong", "right it")])
    assert str(error) == "error: a: is wrong. Fix: right it"
    assert isinstance(error, JobsdkError)
    assert isinstance(error, ValueError)
    assert isinstance(RunNotFound("x"), LookupError)
    assert pickle.loads(pickle.dumps(error)).findings == error.findings
    failed = pickle.loads(pickle.dumps(JobFailed("failed", {"exit_code": 3})))
    assert (str(failed), failed.report) == ("failed", {"exit_code": 3})


def test_what_azure_notebooks_import_is_there() -> None:
    from jobsdk import load_component
    from jobsdk.entities import Data

    data = Data(name="d", version=1, type="uri_file", path="https://host.example/d.csv")
    job = jobsdk.command(command="cat ${{inputs.d}}", inputs={"d": data})
    assert job.inputs["d"] == jobsdk.Input(type="uri_file", path="https://host.example/d.csv")
    with pytest.raises(ValidationError, match=r"inputs\.d: .* Fix: give a path"):
        jobsdk.command(command="x", inputs={"d": Data(name="d")})
    with pytest.raises(JobsdkError, match=r"'component.yml' is a component, .* Fix: write its command as a job"):
        load_component(source="component.yml")


def test_a_script_for_ray_train_is_ported_by_one_word() -> None:
    program = (
        "import sys\n"
        "from jobsdk.train import Checkpoint, FailureConfig, Result, RunConfig, ScalingConfig, TrainingFailedError\n"
        "from jobsdk.train import get_checkpoint, get_context, report\n"
        "from jobsdk.train.torch import TorchConfig, TorchTrainer, get_device, get_devices\n"
        "import jobsdk, jobsdk.train, jobsdk.train.torch as of_torch\n"
        "assert 'torch' not in sys.modules and 'ray' not in sys.modules\n"
        "assert jobsdk.get_device is get_device is jobsdk.train.get_device is of_torch.get_device\n"
        "assert jobsdk.get_devices is get_devices and jobsdk.TorchTrainer is TorchTrainer\n"
        "assert jobsdk.ScalingConfig is ScalingConfig and not hasattr(of_torch, 'prepare_model')\n"
        "assert {'TorchTrainer', 'get_device'} <= set(dir(of_torch)) and 'RunConfig' in dir(jobsdk.train)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

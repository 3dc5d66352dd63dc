"""The public names: all there, loaded only when used, and those that Azure ML notebooks import."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import jobsdk
from jobsdk import constants, entities
from jobsdk.errors import JobFailed, JobsdkError, RunNotFound, ValidationError
from jobsdk.job.findings import Finding

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

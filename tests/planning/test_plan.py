"""job -> plan: pure, and as small for a thousand nodes as for two."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from jobsdk import (
    CommandJob,
    DeepSpeedDistribution,
    Input,
    MpiDistribution,
    Output,
    PyTorchDistribution,
    RayDistribution,
    TensorFlowDistribution,
    command,
)
from jobsdk.planning.plan import make_plan


def test_literals_become_text_and_paths_stay_references(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("")
    job = command(
        command="run ${{inputs.e}} ${{ inputs.flag }} ${{inputs.data}}/x $[[--o ${{inputs.o}}]] > ${{outputs.m}}",
        inputs={"e": 1e-5, "flag": True, "data": Input(type="uri_file", path=str(tmp_path / "d.csv"))},
        outputs={"m": Output(type="uri_file")},
    )
    plan = make_plan(job, name="r")
    assert plan["command"] == ["run 1e-05 True ", {"input": "data"}, "/x  > ", {"output": "m"}]
    assert plan["inputs"]["e"] == {"literal": "1e-05"}
    assert plan["inputs"]["data"] == {"type": "uri_file", "mode": None, "uri": str(tmp_path / "d.csv")}
    assert plan["outputs"] == {"m": {"type": "uri_file", "mode": None, "uri": None}}


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = command(command="x ${{inputs.d}}", inputs={"d": Input(path="data")}, outputs={"o": Output(path="file:out")})
    plan = make_plan(job, name="r")
    assert (plan["inputs"]["d"]["uri"], plan["outputs"]["o"]["uri"]) == (str(tmp_path / "data"), str(tmp_path / "out"))


def test_a_remote_input_keeps_its_uri() -> None:
    job = command(
        command="x ${{inputs.d}}", inputs={"d": Input(type="uri_file", path="https://host.example/d.csv?a=1")}
    )
    assert make_plan(job, name="r")["inputs"]["d"]["uri"] == "https://host.example/d.csv?a=1"


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (None, {"type": "none", "processes": 1, "launcher": "direct"}),
        (PyTorchDistribution(), {"type": "pytorch", "processes": 1, "launcher": "direct"}),
        (PyTorchDistribution(process_count_per_instance=3), {"type": "pytorch", "processes": 3, "launcher": "direct"}),
        (MpiDistribution(), {"type": "mpi", "processes": 1, "launcher": "mpirun"}),
        (MpiDistribution(launcher="direct"), {"type": "mpi", "processes": 1, "launcher": "direct"}),
        (DeepSpeedDistribution(launcher="deepspeed"), {"type": "deepspeed", "processes": 1, "launcher": "deepspeed"}),
        (RayDistribution(), {"type": "ray", "processes": 1, "launcher": "direct"}),
        (
            TensorFlowDistribution(parameter_server_count=1),
            {"type": "tensorflow", "launcher": "direct", "workers": 2, "parameter_servers": 1, "chief": False},
        ),
        (
            {"type": "TF", "worker_count": 1, "chief": True},
            {"type": "tensorflow", "launcher": "direct", "workers": 1, "parameter_servers": 0, "chief": True},
        ),
    ],
)
def test_distributions(distribution: object, expected: dict[str, object]) -> None:
    job = CommandJob(command="x", distribution=distribution, resources={"instance_count": 2})
    assert make_plan(job, name="r")["distribution"] == expected


def test_the_size_does_not_depend_on_the_number_of_ranks() -> None:
    def size(nodes: int) -> int:
        job = command(command="x", instance_count=nodes, distribution=PyTorchDistribution(process_count_per_instance=8))
        return len(json.dumps(make_plan(job, name="r")))

    assert size(9999) - size(1000) == 0


def test_planning_changes_nothing_of_the_job() -> None:
    job = command(command="x ${{inputs.a}}", inputs={"a": 1}, environment_variables={"A": "1"}, timeout=5)
    before = copy.deepcopy(job)
    plan = make_plan(job, name="r")
    plan["environment"]["A"] = "2"
    assert job == before
    assert plan["timeout_s"] == 5

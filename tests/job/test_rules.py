"""Rules between fields and about files: for each, what is found and what is left alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from jobsdk import (
    BuildContext,
    CommandJob,
    DeepSpeedDistribution,
    Environment,
    Input,
    JobsdkError,
    MpiDistribution,
    Output,
    PyTorchDistribution,
    RayDistribution,
    TensorFlowDistribution,
    ValidationError,
    command,
    load_job,
)
from jobsdk.findings import dotted
from jobsdk.job.yaml_file import read_job


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("src/train.py", "src/ds.json", "src/sub/run.sh", "data/d.csv", "docker/Dockerfile", "docker/Other"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "src/mpi.py").write_text("import numpy\nfrom mpi4py import MPI\n")
    (tmp_path / "src/ddp.py").write_text("from mpi4py import MPI\ndist.init_process_group()\n")
    (tmp_path / "src/hvd.py").write_text("def main():\n    import horovod.torch as hvd\n")
    (tmp_path / "conda.yml").write_text("dependencies: [python]\n")
    (tmp_path / "env.yml").write_text("name: e\nversion: 1\nimage: python:3.11\n")
    (tmp_path / "bad_env.yml").write_text("name: e\nimge: python:3.11\n")
    (tmp_path / "src/ds.json").write_text('{"train_batch_size": 2}')
    (tmp_path / "requirements.txt").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(**fields: Any) -> list[tuple[str, str, str]]:
    """What is found in a job: severity, path and text."""
    job = command(**{"command": "echo", **fields})
    return [(finding.severity, dotted(finding.path), str(finding)) for finding in job.findings()]


def expect(findings: list[tuple[str, str, str]], severity: str, path: str, says: str) -> None:
    assert [finding[:2] for finding in findings] == [(severity, path)], findings
    assert says in findings[0][2]


pytorch = PyTorchDistribution(process_count_per_instance=2)
mpi = MpiDistribution(process_count_per_instance=2)


@pytest.mark.parametrize(
    ("fields", "severity", "path", "says"),
    [
        ({"command": None}, "error", "command", "is missing"),
        # expressions
        ({"command": "a ${{inputs.x}}"}, "error", "command", "declare 'x' under inputs"),
        ({"command": "a ${{inputs.a.b}}"}, "error", "command", "'a.b'"),
        ({"command": "a $[[${{inputs.tes}}]] ${{inputs.test}}", "inputs": {"test": 1}}, "warning", "command",
         "did you mean 'test'?"),
        ({"command": "${{inputs.x}}", "inputs": {"x": Input(type="integer", optional=True)}}, "error", "command",
         "write $[[... ${{inputs.x}}]]"),
        ({"command": "a $[[ b"}, "error", "command", "not closed by ']]'"),
        ({"command": "a {inputs.x}", "inputs": {"x": 1}}, "warning", "command", "write ${{inputs.x}}"),
        ({"command": "python -c 'f\"{ inputs.x}\"'"}, "warning", "command", "is left as it is"),
        ({"outputs": {"x": None}}, "warning", "outputs.x", "this output is not used"),
        ({"inputs": {"x": 1}}, "warning", "inputs.x", "this input is not used"),
        # values and the shell
        ({"command": "a ${{inputs.x}}", "inputs": {"x": "a b"}}, "warning", "command", "write '${{inputs.x}}'"),
        ({"command": "a ${{inputs.x}}", "inputs": {"x": "it's"}}, "warning", "command", 'write "${{inputs.x}}"'),
        ({"command": "a ${{inputs.x}}", "inputs": {"x": "'$"}}, "warning", "command", "in a file"),
        ({"command": "a \"${{inputs.x}}\"", "inputs": {"x": "$HOME"}}, "warning", "command", "'${{inputs.x}}'"),
        ({"command": "a ${{inputs.x}}", "inputs": {"x": ""}}, "warning", "command", "''"),
        # distributions
        ({"distribution": TensorFlowDistribution(worker_count=2)}, "error", "distribution.worker_count",
         "set resources.instance_count to 2"),
        ({"instance_count": 2}, "warning", "resources.instance_count", "each of the 2 nodes runs the command once"),
        ({"distribution": DeepSpeedDistribution(autotuning="run")}, "error", "distribution.autotuning",
         "launcher='deepspeed'"),
        ({"command": "torchrun x", "distribution": pytorch}, "warning", "command", "without torchrun"),
        ({"command": "mpirun -n 4 x", "distribution": mpi}, "error", "command", "without mpirun"),
        ({"command": "srun x", "distribution": mpi}, "error", "command", "without srun"),
        ({"command": "mpirun x", "distribution": MpiDistribution()}, "warning", "command", "without mpirun"),
        ({"command": "deepspeed x", "distribution": DeepSpeedDistribution(process_count_per_instance=2)}, "error",
         "command", "without deepspeed"),
        ({"command": "python mpi.py", "code": "src", "distribution": mpi}, "warning", "command",
         "write python -m mpi4py mpi.py"),
        ({"command": "python mpi.py", "code": "src", "distribution": pytorch}, "warning", "command",
         "each of the 2 processes would be rank 0 of a world of 1. Fix: write distribution={'type': 'mpi'}"),
        ({"command": "python hvd.py", "code": "src", "distribution": pytorch}, "warning", "command", "uses horovod"),
        ({"command": "python -m torch.distributed.run x", "distribution": pytorch}, "warning", "command", "without"),
        ({"command": "mpirun x", "distribution": MpiDistribution()}, "warning", "command", "mpirun would start"),
        ({"command": "deepspeed x", "distribution": DeepSpeedDistribution()}, "warning", "command", "deepspeed would"),
        ({"code": "src", "distribution": DeepSpeedDistribution(config="dss.json")}, "error", "distribution.config",
         "not in the code folder 'src'"),
        ({"distribution": DeepSpeedDistribution(config="ds.json")}, "error", "distribution.config",
         "not in the working directory"),
        # variables
        *(({"environment_variables": {name: "1"}}, "error", f"environment_variables.{name}", "cannot be set by the job")
          for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TF_CONFIG",
                       "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_NODE_RANK")),
        ({"environment_variables": {"MASTER_PORT": "http"}}, "error", "environment_variables.MASTER_PORT", "65535"),
        ({"environment_variables": {"MASTER_PORT": "70000"}}, "error", "environment_variables.MASTER_PORT", "65535"),
        # inputs and outputs
        ({"command": "a ${{inputs.x}}", "inputs": {"x": Input()}}, "error", "inputs.x", "has no path"),
        ({"command": "a ${{inputs.x}}", "inputs": {"x": Input(path="azureml:x:1", mode="eval_mount")}},
         "error", "inputs.x.mode", "only for the type mltable"),
        ({"command": "a ${{inputs.x}}", "inputs": {"x": Input(path="dat")}}, "error", "inputs.x.path",
         "did you mean 'data'?"),
        ({"command": "a ${{inputs.x}}", "inputs": {"x": Input(path="file:data/d.csv")}}, "error", "inputs.x.type",
         "write uri_file"),
        ({"command": "a ${{inputs.x}}", "inputs": {"x": Input(type="uri_file", path="data")}}, "error",
         "inputs.x.type", "write uri_folder"),
        ({"command": "a ${{inputs.x}}", "inputs": {"x": Input(path="data", mode="direct")}}, "error",
         "inputs.x.mode", "no node would find it"),
        ({"command": "a ${{outputs.x}}", "outputs": {"x": Output(version="1")}}, "error", "outputs.x.version",
         "without a name"),
        # code
        ({"code": "nowhere"}, "error", "code", "paths are relative to"),
        ({"command": "python train.py"}, "error", "command", "has no code folder"),
        ({"command": "python tran.py", "code": "src"}, "error", "command", "did you mean 'train.py'?"),
        ({"command": "bash sub/rum.sh", "code": "src"}, "error", "command", "did you mean 'run.sh'?"),
        ({"command": "python other.py", "code": "src/train.py"}, "error", "command", "run train.py"),
        # environments
        ({"environment": "file:no.yml"}, "error", "environment", "there is no 'file:no.yml'"),
        ({"environment": "file:bad_env.yml"}, "error", "imge", "bad_env.yml:2:1: error: imge:"),
        ({"environment": "file:conda.yml"}, "error", "dependencies", "this is a conda file"),
        ({"environment": Environment(conda_file="condo.yml")}, "error", "environment.conda_file", "'conda.yml'"),
        ({"environment": Environment(conda_file="src")}, "error", "environment.conda_file", "is a folder"),
        ({"environment": Environment(requirements="no.txt")}, "error", "environment.requirements", "there is no"),
        ({"environment": Environment(build=BuildContext(path="no"))}, "error", "environment.build.path", "there is no"),
        ({"environment": Environment(build=BuildContext())}, "error", "environment.build", "has no path"),
        ({"environment": Environment(build=BuildContext(path="src"))}, "error", "environment.build.path",
         "Dockerfile is not in"),
        ({"environment": Environment(build=BuildContext(path="docker", dockerfile_path="No"))}, "error",
         "environment.build.dockerfile_path", "No is not in"),
        ({"environment": Environment(image="x", build=BuildContext(path="docker"))}, "error", "environment",
         "keep one of the two"),
    ],
)  # fmt: skip
def test_found(fields: dict[str, Any], severity: str, path: str, says: str) -> None:
    expect(found(**fields), severity, path, says)


@pytest.mark.parametrize(
    "fields",
    [
        {"command": "a $[[--o ${{inputs.opt}}]]"},
        {"command": "a $[[${{inputs.x}}]]", "inputs": {"x": Input(type="integer", optional=True)}},
        {"command": "cat $AZURE_ML_INPUT_x $AZURE_ML_OUTPUT_y", "inputs": {"x": 1}, "outputs": {"y": None}},
        {"command": "a '${{inputs.x}}' \"${{inputs.x}}\"", "inputs": {"x": "a b"}},
        {"command": "a ${{inputs.x}}", "inputs": {"x": 1e-5}},
        {"command": "a ${{inputs.x}}", "inputs": {"x": "s3://bucket/a,b=c@1%+"}},
        {"command": "a ${{inputs.x}}", "inputs": {"x": Input(path="data/d.csv", type="uri_file", mode="download")}},
        {"command": "a ${{inputs.x}}", "inputs": {"x": Input(path="https://x/a b", mode="direct")}},
        {"command": "a ${{inputs.x}}", "inputs": {"x": Input(path="s3://b/c", type="mltable", mode="eval_mount")}},
        {"command": "a ${{inputs.x}}", "inputs": {"x": Input(path="data", type="mlflow_model")}},
        {"distribution": TensorFlowDistribution(worker_count=2, parameter_server_count=3), "instance_count": 2},
        {"distribution": pytorch, "instance_count": 2},
        {"command": "torchrun x"},
        {"command": "python -m mpi4py mpi.py", "code": "src", "distribution": mpi},
        {"command": "python mpi.py", "code": "src", "distribution": MpiDistribution()},
        {"command": "python train.py", "code": "src", "distribution": mpi},
        {"command": "python ddp.py", "code": "src", "distribution": pytorch},
        {"command": "python hvd.py", "code": "src", "distribution": mpi},
        {"command": "python mpi.py", "code": "src", "distribution": PyTorchDistribution()},
        {"command": "torchrun x", "distribution": RayDistribution()},
        {
            "command": "python train.py --deepspeed_config ds.json",
            "code": "src",
            "distribution": DeepSpeedDistribution(launcher="deepspeed", autotuning="tune"),
        },
        {"command": "python train.py", "code": "src", "distribution": DeepSpeedDistribution(config="ds.json")},
        {"command": "python train.py", "code": "src/train.py"},
        {"command": "python ./train.py && bash sub/run.sh", "code": "file:src"},
        {"command": "python train.py", "code": "git+https://github.com/x/y"},
        {"command": "python /opt/x.py; python -m pkg"},
        {"environment_variables": {"MASTER_PORT": "29500", "MASTER_ADDR": "x", "OMP_NUM_THREADS": 1}},
        {"environment": "file:env.yml"},
        {"environment": Environment(image="x", conda_file="conda.yml", requirements="requirements.txt")},
        {"environment": Environment(image="x", conda_file={"dependencies": ["python"]})},
        {"environment": Environment(build=BuildContext(path="docker", dockerfile_path="Other"))},
    ],
)
def test_left_alone(fields: dict[str, Any]) -> None:
    assert found(**fields) == []


def test_a_rule_is_silent_where_what_it_reads_is_wrong() -> None:
    """A misspelt or refused field gives one finding, not also those that follow from it."""
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"comand": "x"}, {"comand"}),
        ({"command": "x", "resources": {"instance_count": 2}, "distribtion": {}}, {"distribtion"}),
        ({"command": "a ${{inputs.x}}", "input": {"x": 1}}, {"input"}),
        ({"command": "a ${{inputs.x}}", "inputs": {"x": {"path": "data/d.csv", "type": "uri_fil"}}}, {"inputs.x.type"}),
        ({"command": "a ${{inputs.x}}", "inputs": {"x": [1]}}, {"inputs.x"}),
        ({"command": "a ${{inputs.x}} ${{inputs.y}}", "inputs": {"x": [1]}}, {"inputs.x", "command"}),
    ]
    for data, paths in cases:
        job, findings = read_job(data)
        assert job is None
        assert {dotted(finding.path) for finding in findings} == paths, [str(finding) for finding in findings]


def test_validate_raises_errors_and_returns_warnings() -> None:
    job = command(command="a ${{inputs.x}}", inputs={"y": 1})
    with pytest.raises(ValidationError) as caught:
        job.validate()
    assert [finding.severity for finding in caught.value.findings] == ["error", "warning"]
    assert str(caught.value).splitlines() == [str(finding) for finding in caught.value.findings]
    job.inputs["x"] = 2
    assert [finding.severity for finding in job.validate()] == ["warning"]


def test_paths_are_read_at_the_time_of_use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = CommandJob(command="python train.py", code="src")
    assert job.findings() == ()
    monkeypatch.chdir(folder / "data")
    assert [dotted(finding.path) for finding in job.findings()] == ["code"]
    job.base_path = folder
    assert job.findings() == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"code": "x" * 500},
        {"code": ".", "command": f"python {'x' * 300}.py"},
        {"environment": {"build": {"path": ".", "dockerfile_path": "x" * 300}}},
        {"environment": {"image": "i", "conda_file": "x" * 300}},
        {"distribution": {"type": "deepspeed", "config": "x" * 300}},
        {"inputs": {"a": {"path": "x" * 300}}, "command": "echo ${{inputs.a}}"},
    ],
)
def test_names_that_are_too_long_are_of_no_file(fields: dict[str, Any]) -> None:
    _, findings = read_job({"command": "echo", **fields})
    assert [finding.is_error for finding in findings] == [True]


@pytest.mark.parametrize("environment", ["file:fifo", {"image": "i", "conda_file": "fifo"}])
def test_environment_files_are_regular_files(environment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    _, findings = read_job({"command": "echo", "environment": environment})
    assert ["is not a regular file" in finding.message for finding in findings] == [True]


def test_what_is_sound_of_a_mapping_is_judged() -> None:
    data = {
        "command": "a ${{inputs.a}} ${{inputs.b}} ${{inputs.c}}",
        "environment": {"conda_file": "no.yml", "imge": 1},
    }
    data["inputs"] = {"a": {"path": "./nodata"}, "b": {"type": "uri_fle"}, "c": "x y"}
    data["outputs"] = {"o": {"version": 1, "path": "p"}, "q": "p"}
    paths = {dotted(finding.path) for finding in read_job(data)[1]}
    assert paths == {
        "inputs.a.path", "inputs.b.type", "environment.conda_file", "environment.imge",
        "outputs.o.version", "outputs.q", "command", "outputs.o",
    }  # fmt: skip


def test_a_script_that_is_named_with_its_code_folder() -> None:
    for script in ("src/train.py", "./src/train.py"):
        expect(found(command=f"python {script}", code="./src"), "error", "command", "did you mean 'train.py'?")


def test_home_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert found(command="python train.py ${{inputs.d}}", code="~/src", inputs={"d": Input(path="file:~/data")}) == []
    job = command(command="true", code="~/src")
    assert job.resolve("~/src") == folder / "src"
    job.dump(tmp_path / "a/b/job.yml")
    assert load_job(tmp_path / "a/b/job.yml").code == "~/src"
    with pytest.raises(JobsdkError, match=r"exists already. Fix: .*overwrite=True") as caught:
        job.dump(tmp_path / "a/b/job.yml")
    assert isinstance(caught.value, FileExistsError)


def test_a_path_of_another_compute_need_not_be_here() -> None:
    inputs = {"data": Input(path="/no/such/folder")}
    expect(found(inputs=inputs, command="ls ${{inputs.data}}"), "error", "inputs.data.path", "there is no")
    elsewhere = found(inputs=inputs, command="ls ${{inputs.data}}", compute="azureml:cluster")
    expect(elsewhere, "warning", "inputs.data.path", "it is taken as a path of the job's nodes")
    relative = found(inputs={"data": Input(path="no/such")}, command="ls ${{inputs.data}}", compute="cluster")
    expect(relative, "error", "inputs.data.path", "there is no")

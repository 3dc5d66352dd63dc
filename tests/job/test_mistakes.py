"""Thirty mistakes that people make, each written in YAML, as a dict, in Python and as an override: one verdict."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from jobsdk import CommandJob, Finding, Input, JobResourceConfiguration, Output, ValidationError, command
from jobsdk.findings import dotted
from jobsdk.job.distribution import DISTRIBUTIONS
from jobsdk.job.identity import IDENTITY
from jobsdk.job.resources import CommandJobLimits
from jobsdk.job.services import SERVICE
from jobsdk.job.yaml_file import read_job

BASE: dict[str, Any] = {
    "command": "python train.py --data ${{inputs.data}} --out ${{outputs.model}} --epochs ${{inputs.epochs}}",
    "code": "src",
    "environment": "azureml:env:1",
    "environment_variables": {"A": "1"},
    "inputs": {"epochs": 3, "data": {"type": "uri_file", "path": "data/d.csv"}},
    "outputs": {"model": {"type": "uri_folder"}},
    "distribution": {"type": "pytorch", "process_count_per_instance": 2},
    "resources": {"instance_count": 2, "shm_size": "2g"},
    "limits": {"timeout": 60},
    "services": {"lab": {"type": "jupyter_lab"}},
    "identity": {"type": "user_identity"},
}


class Mistake(NamedTuple):
    what: str
    path: str  # what is set, in the base job
    value: Any
    found: str  # the path of the finding
    says: str
    severity: str = "error"


def _command(argument: str) -> str:
    return f"{BASE['command']} {argument}"


TENSORFLOW = {"type": "tensorflow"}
MISTAKES = [
    Mistake("distribution type", "distribution.type", "deepspede", "distribution.type", "did you mean 'deepspeed'"),
    Mistake("distribution key", "distribution.process_count_per_node", 2,
            "distribution.process_count_per_node", "did you mean 'process_count_per_instance'"),
    Mistake("missing code folder", "code", "srk", "code", "did you mean 'src'"),
    Mistake("top-level key", "comput", "gpu", "comput", "did you mean 'compute'"),
    Mistake("identity type", "identity.type", "user_identiti", "identity.type", "did you mean 'user_identity'"),
    Mistake("undeclared input", "command", _command("${{inputs.epoch}}"), "command", "did you mean 'epochs'"),
    Mistake("input name", "inputs.1st", 3, "inputs.1st", "the name must be a letter or _"),
    Mistake("process count -1", "distribution.process_count_per_instance", -1,
            "distribution.process_count_per_instance", "must be at least 1, got -1"),
    Mistake("process count 0", "distribution.process_count_per_instance", 0,
            "distribution.process_count_per_instance", "must be at least 1, got 0"),
    Mistake("process count 2.7", "distribution.process_count_per_instance", 2.7,
            "distribution.process_count_per_instance", "must be a whole number, got 2.7"),
    Mistake("instance count 0", "resources.instance_count", 0, "resources.instance_count", "must be at least 1"),
    Mistake("instance count -2", "resources.instance_count", -2, "resources.instance_count", "must be at least 1"),
    Mistake("shm_size", "resources.shm_size", "lots", "resources.shm_size", "must be a size such as 2g, got 'lots'"),
    Mistake("too many workers", "distribution", {**TENSORFLOW, "worker_count": 5},
            "distribution.worker_count", "5 workers do not fit on 2 nodes"),
    Mistake("worker count -1", "distribution", {**TENSORFLOW, "worker_count": -1},
            "distribution.worker_count", "must be at least 1, got -1"),
    Mistake("timeout", "limits.timeout", -5, "limits.timeout", "must be from 0.1 s to 366 days, got -5"),
    Mistake("missing input file", "inputs.data.path", "data/e.csv", "inputs.data.path", "did you mean 'd.csv'"),
    Mistake("uri_file that is a folder", "inputs.data.path", "data", "inputs.data.type", "'data' is a folder"),
    Mistake("undeclared output", "command", _command("${{outputs.x}}"), "command", "declare 'x' under outputs"),
    Mistake("spaced undeclared input", "command", _command("${{ inputs.x }}"), "command", "declare 'x' under inputs"),
    Mistake("unknown namespace", "command", _command("${{input.epochs}}"), "command", "${{inputs.epochs}}?"),
    Mistake("unclosed expression", "command", _command("${{inputs.epochs"), "command", "is not closed"),
    Mistake("unused input", "inputs.left", 3, "inputs.left", "is not used", "warning"),
    Mistake("service type", "services.lab.type", "jupyter", "services.lab.type", "did you mean 'jupyter_lab'"),
    Mistake("script that is not there", "command", BASE["command"].replace("train", "trian"),
            "command", "did you mean 'train.py'"),
    Mistake("environment without version", "environment", "azureml:env", "environment", "add a version or a label"),
    Mistake("list as a variable", "environment_variables.A", [1, 2], "environment_variables.A", "got a list"),
    Mistake("name of a variable", "environment_variables.A=B", "1", "environment_variables.A=B", "the name must be"),
    Mistake("local path with mode direct", "inputs.data.mode", "direct", "inputs.data.mode", "no node would find it"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the base job names; also the working directory."""
    for name in ("src/train.py", "data/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _with(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return {**data, head: _with(data.get(head, {}), rest, value) if rest else value}


def _expect(mistake: Mistake, findings: Iterable[Finding]) -> list[str]:
    """Asserts that exactly the mistake was found, and gives its text without the place."""
    found = [finding for finding in findings if finding.is_error or mistake.severity == "warning"]
    assert [dotted(finding.path) for finding in found] == [mistake.found], [str(finding) for finding in findings]
    assert found[0].severity == mistake.severity
    assert mistake.says in str(found[0])
    assert len(str(found[0])) <= 400
    assert found[0].fix
    return [f"{finding.severity} {finding.message} {finding.fix}" for finding in found]


def test_the_base_is_valid() -> None:
    assert read_job(BASE)[1] == ()
    assert len(MISTAKES) + 1 == 30, "the thirtieth, a key given twice, can be made in YAML only"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_one_verdict(mistake: Mistake, folder: Path) -> None:
    data = _with(BASE, mistake.path, mistake.value)
    before = copy.deepcopy(data)
    from_dict = _expect(mistake, read_job(data)[1])
    assert data == before

    file = folder / "job.yml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    findings = read_job(file)[1]
    assert _expect(mistake, findings) == from_dict
    assert all(finding.file == str(file) and finding.line and finding.column for finding in findings)

    file.write_text(yaml.safe_dump(BASE))
    assert _expect(mistake, read_job(file, [{mistake.path: mistake.value}])[1]) == from_dict


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
@pytest.mark.parametrize("make", [CommandJob, command])
def test_python_has_the_same_verdict(mistake: Mistake, make: Any) -> None:
    data = _with(BASE, mistake.path, mistake.value)
    findings: tuple[Finding, ...]
    try:
        findings = make(**{name: _typed(name, value) for name, value in data.items()}).findings()
    except ValidationError as error:
        findings = error.findings
    found = [finding for finding in findings if finding.is_error or mistake.severity == "warning"]
    assert len(found) == 1, [str(finding) for finding in findings]
    # A typed part does not know where it will stand in the job.
    assert mistake.found.endswith(dotted(found[0].path))
    assert found[0].severity == mistake.severity
    assert mistake.says in str(found[0])


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_assignment_has_the_same_verdict(mistake: Mistake) -> None:
    job = CommandJob(**BASE)
    *parents, name = mistake.path.split(".")
    target: Any = job
    for parent in parents:
        target = getattr(target, parent)
    findings: tuple[Finding, ...]
    try:
        if isinstance(target, dict):
            target[name] = mistake.value
        else:
            setattr(target, name, mistake.value)
        findings = job.findings()
    except ValidationError as error:
        findings = error.findings
        assert job == CommandJob(**BASE), "a refused assignment changes nothing"
    found = [finding for finding in findings if finding.is_error or mistake.severity == "warning"]
    assert len(found) == 1, [str(finding) for finding in findings]
    assert mistake.found.endswith(dotted(found[0].path))
    if name != "type":  # the type of an object is fixed, so the message names no other
        assert mistake.says in str(found[0])


def _typed(name: str, value: Any) -> Any:
    """The value of a field as typed objects, where there are classes for it."""
    if name == "distribution":
        return _of_type(DISTRIBUTIONS, value)
    if name == "identity":
        return _of_type(IDENTITY.models, value)
    if name == "services":
        return {key: _of_type(SERVICE.models, item) for key, item in value.items()}
    if name == "inputs":
        return {key: Input(**item) if isinstance(item, dict) else item for key, item in value.items()}
    if name == "outputs":
        return {key: Output(**item) for key, item in value.items()}
    return {"resources": JobResourceConfiguration, "limits": CommandJobLimits}.get(name, lambda **_: value)(
        **(value if name in ("resources", "limits") else {})
    )


def _of_type(models: Iterable[Any], value: dict[str, Any]) -> Any:
    model = next((model for model in models if model().type == value["type"]), None)
    return model(**value) if model is not None else value


def test_a_key_given_twice(folder: Path) -> None:
    file = folder / "job.yml"
    file.write_text("command: echo\nname: a\nresources:\n  instance_count: 1\n  instance_count: 2\nname: b\n")
    job, findings = read_job(file)
    assert job is None
    assert [(finding.line, finding.column, dotted(finding.path)) for finding in findings] == [
        (5, 3, "resources.instance_count"),
        (6, 1, "name"),
    ]
    assert "given twice, first in line 4" in str(findings[0])


def test_all_at_once(folder: Path) -> None:
    """Mistakes in different places are all in one error, and none hides another."""
    together = [mistake for mistake in MISTAKES if mistake.path.count(".") and mistake.severity == "error"]
    data = BASE
    for mistake in together:
        data = _with(data, mistake.path, mistake.value)
    data = {**data, "command": "python trian.py ${{inputs.epoch}} ${{foo.x}}", "comput": "x"}
    job, findings = read_job(data)
    assert job is None
    expected = {mistake.found for mistake in together if not mistake.found.startswith(("distribution", "inputs.data"))}
    expected |= {"command", "comput", "distribution.type"}
    found = {dotted(finding.path) for finding in findings if finding.is_error}
    assert expected <= found
    messages = " ".join(finding.message for finding in findings if finding.path == ("command",))
    assert "trian.py" in messages
    assert "${{inputs.epoch}}" in messages
    assert "${{foo.x}}" in messages

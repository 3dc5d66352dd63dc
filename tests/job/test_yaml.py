"""Job files: positions, what YAML may hold, overrides, and writing."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from jobsdk import CommandJob, Environment, Finding, ValidationError, command, load_job
from jobsdk.findings import dotted
from jobsdk.job.yaml_file import parse_override, read_environment, read_job

FILES = sorted(Path(__file__).with_name("files").glob("*.yml"))
JOBS = [file for file in FILES if file.name != "conda.yml"]


def read(text: str | bytes, folder: Path) -> tuple[CommandJob | None, tuple[Finding, ...]]:
    file = folder / "job.yml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_job(file)


# -- positions -------------------------------------------------------------------------------------------------------

POSITIONS = """\
# a comment
type: command
command: >-
  python -c 'x' ${{inputs.gone}}
  --out ${{outputs.gone}}
environment: azureml:env
comput: gpu
inputs:
  flow: {type: uri_file, path: https://x, mod: direct}
  1bad: 3
  left: 2
environment_variables:
  RANK: 0
  LIST:
    - 1
resources: {instance_count: 0,
            shm_size: lots}
distribution:
  type: pytorch
  process_count_per_node: 2
  added: 1
services:
  lab:
    type: jupyter
é: ü
"""


def test_positions_are_exact(tmp_path: Path) -> None:
    job, findings = read(POSITIONS, tmp_path)
    assert job is None
    assert [(finding.line, finding.column, finding.severity, dotted(finding.path)) for finding in findings] == [
        (4, 17, "error", "command"),
        (5, 9, "error", "command"),
        (6, 14, "error", "environment"),
        (7, 1, "error", "comput"),
        (9, 43, "error", "inputs.flow.mod"),
        (10, 3, "error", "inputs.1bad"),
        (11, 3, "warning", "inputs.left"),
        (13, 3, "error", "environment_variables.RANK"),
        (15, 5, "error", "environment_variables.LIST"),
        (16, 29, "error", "resources.instance_count"),
        (17, 23, "error", "resources.shm_size"),
        (20, 3, "error", "distribution.process_count_per_node"),
        (21, 3, "warning", "distribution.added"),
        (24, 11, "error", "services.lab.type"),
        (25, 1, "error", "é"),
    ]
    assert {finding.file for finding in findings} == {str(tmp_path / "job.yml")}


def test_positions_of_a_loaded_job_follow_its_changes(tmp_path: Path) -> None:
    job, _ = read("command: echo\ninputs:\n  a: 1\nenvironment_variables:\n  MASTER_PORT: x\n", tmp_path)
    assert job is not None
    assert [(finding.line, finding.column) for finding in job.findings()] == [(3, 3), (5, 16)]
    job.environment_variables = {"MASTER_PORT": "y"}
    assert [(f.line, f.column) for f in job.findings() if f.is_error] == [(1, 1)]


def test_a_finding_as_text_and_as_a_record(tmp_path: Path) -> None:
    _, findings = read("command: x\nresources:\n  instance_count: 0\n", tmp_path)
    file = tmp_path / "job.yml"
    message = "must be at least 1, got 0"
    assert str(findings[0]._replace(file="job.yml")) == (
        f"job.yml:3:19: error: resources.instance_count: {message}. Fix: write a number from 1 to 100000"
    )
    assert findings[0].to_dict() == {
        "path": "resources.instance_count",
        "line": 3,
        "column": 19,
        "file": str(file),
        "severity": "error",
        "message": message,
        "suggestion": "write a number from 1 to 100000",
    }
    long = Finding("error", ("a" * 900, "b"), "m" * 900, "f" * 900, "/x" * 900, 1, 1)
    assert len(str(long)) <= 400


# -- what cannot be read ---------------------------------------------------------------------------------------------

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("", None, None, "the file is empty"),
        ("# only a comment\n", None, None, "the file is empty"),
        ("- a\n- b\n", 1, 1, "must be a mapping, not a list"),
        ("hello", 1, 1, "must be a mapping, not 'hello'"),
        ("command: x\nresources:\n\tinstance_count: 2\n", 3, 1, "a tab indents this line"),
        ("command: a: b\n", 1, 11, "a second ':'"),
        ("command: 'abc\n", 2, 1, "cannot be read"),
        ("command: [a\n", 2, 1, "cannot be read"),
        ("command: *gone\n", 1, 10, "undefined alias"),
        (BOMB, 1, None, "once its aliases are followed"),
        ("command: &a [*a]\n", 1, 10, "40 levels deep"),
        ("[" * 300_000, 1, 41, "40 levels deep"),
        ("{a: " * 200_000, 1, None, "40 levels deep"),
        ("- " * 300_000, 1, None, "40 levels deep"),
        ("command: a\0b\n", 1, 11, "U+0000"),
        ("command: a\nname: \x1b[0m\n", 2, 7, "U+001B"),
        (b"command: a\nname: \xe9\xff\n", 2, 7, "is not UTF-8"),
        ("x" * (10 << 20), None, None, "larger than 1 MiB"),
        ("command: x\n---\ncommand: y\n", 3, 1, "a second document"),
        ("command: !!python/object/apply:os.system ['x']\n", 1, 10, "'!!python/object/apply:os.system'"),
        ("command: !mine x\n", 1, 10, "the tag '!mine'"),
        ("command: x\ntags: !!set {a, b}\n", 2, 7, "!!set"),
        ("command: x\n? [a, b]\n: c\n", 2, 3, "a key must be plain text"),
        ("command: x\ntags: {<<: 3}\n", 2, 12, "'<<' takes a mapping"),
        ("command: x\ninputs: {a: !!int abc}\n", 2, 13, "'abc' cannot be read"),
        ("command: x\ninputs: {a: " + "1" * 5000 + "}\n", 2, 13, "cannot be read"),
        ("type: sweep\ncommand: x\n", 1, 7, "jobs of the type sweep do not run here"),
        ("type: comand\ncommand: x\n", 1, 7, "did you mean 'command'?"),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_what_cannot_be_read_is_one_clear_error(
    text: str | bytes, line: int | None, column: int | None, says: str, tmp_path: Path
) -> None:
    job, findings = read(text, tmp_path)
    errors = [finding for finding in findings if finding.is_error]
    assert job is None
    assert len(errors) == 1, [str(finding) for finding in findings]
    assert says in str(errors[0])
    assert errors[0].line == line
    assert column is None or errors[0].column == column
    with pytest.raises(ValidationError):
        load_job(tmp_path / "job.yml")


def test_sources_that_are_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.yml").write_text("command: x")
    cases: list[tuple[Any, str]] = [
        (tmp_path, "is a folder"),
        ("no.yml", "there is no such file"),
        ("command: x\n", "io.StringIO(text)"),
        ("a\0b", "is no job file"),
        (None, "is no job file"),
        (0, "is no job file"),
        (io.StringIO(""), "is empty"),
        (io.BytesIO(b"\xff"), "not UTF-8"),
    ]
    for source, says in cases:
        job, findings = read_job(source)
        assert job is None
        assert [says in str(finding) for finding in findings] == [True], [str(finding) for finding in findings]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0x10", 16),
        ("0.5", 0.5),
        ("1e-5", "1e-5"),
        ("yes", True),
        ("'yes'", "yes"),
        ("2024-01-01", "2024-01-01"),
        ("!!str 5", "5"),
        ("=", "="),
        ("https://x/y", "https://x/y"),
    ],
)
def test_scalars(text: str, value: object, tmp_path: Path) -> None:
    job, _ = read(f"command: x\ninputs: {{a: {text}}}\n", tmp_path)
    assert job is not None
    assert job.inputs["a"] == value
    assert type(job.inputs["a"]) is type(value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    job, findings = read("command: echo 'é漢'\r\nname: a\r\n".encode(encoding), tmp_path)
    assert findings == ()
    assert job is not None
    assert job.command == "echo 'é漢'"


# -- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_job_files_load_and_survive_dump_and_load(file: Path, tmp_path: Path) -> None:
    job, findings = read_job(file)
    assert job is not None
    assert [str(finding) for finding in findings if finding.is_error] == []
    assert job == load_job(file)
    job.dump(tmp_path / "copy.yml")
    again = load_job(tmp_path / "copy.yml")
    assert again == job
    assert [finding.message for finding in again.findings()] == [finding.message for finding in job.findings()]
    beside = file.parent / f"{file.stem}.copy~"
    try:
        job.dump(beside)
        assert load_job(beside).to_dict() == job.to_dict(), "beside the file, paths stay as they were written"
    finally:
        beside.unlink(missing_ok=True)


def test_what_the_files_hold() -> None:
    jobs = {file.stem: load_job(file) for file in JOBS}
    assert jobs["merged"].properties == {"A": "one", "B": "three", "empty": None}
    assert jobs["shown"].to_dict().keys() == {"type", "command", "code", "parent_job_name", "name", "environment"}
    assert jobs["optional"].inputs["tag"] == "a b"
    assert jobs["literals"].inputs == {
        "text": "hello world",
        "count": 42,
        "rate": 0.1,
        "small": "1e-5",
        "flag": True,
        "day": "2024-01-01",
        "url": "https://example.com/iris.csv",
    }
    assert jobs["mpi"].environment_variables == {"NCCL_DEBUG": "INFO", "NCCL_IB_DISABLE": "1"}
    assert jobs["hello"].description == '# A job that says "hello"\n\nMarkdown is shown as it is.\n'


def test_streams_know_their_folder(tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text("command: x\ncode: src\n")
    with file.open() as text, file.open("rb") as binary:
        for stream in (text, binary):
            job = load_job(stream)
            assert job.base_path == str(tmp_path)
            assert job.resolve("src") == tmp_path / "src"
    assert load_job(io.StringIO("command: x")).base_path is None
    assert load_job({"command": "x"}).base_path is None


def test_paths_are_relative_to_the_file_wherever_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "job.yml").write_text(
        "command: x\ncode: ./src\nenvironment: {conda_file: env/conda.yml, build: {path: /abs}}\n"
        "inputs: {d: {path: file:../data}, u: {path: https://x/y}}\noutputs: {o: {path: out}}\n"
    )
    job = load_job(tmp_path / "a" / "job.yml")
    monkeypatch.chdir(tmp_path / "b")
    job.dump("c/job.yml")
    text = (tmp_path / "b" / "c" / "job.yml").read_text()
    for path in ("../../a/src", "../../a/env/conda.yml", "path: /abs", "file:../../data", "https://x/y", "../../a/out"):
        assert path in text
    assert load_job("c/job.yml") == job
    made_here = command(command="x", code="src")
    made_here.dump("c/other.yml")
    assert load_job("c/other.yml").resolve("../src") == tmp_path / "b" / "src"
    assert load_job("c/other.yml") == made_here


def test_dump_replaces_nothing_unless_told_to(tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text("mine")
    with pytest.raises(FileExistsError):
        command(command="x").dump(file)
    assert file.read_text() == "mine"
    command(command="a\nb\n").dump(file, overwrite=True)
    assert file.read_text() == "type: command\ncommand: |\n  a\n  b\n"


# -- overrides -------------------------------------------------------------------------------------------------------


def test_overrides(tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text("command: x\nenvironment: env:1\ntags: {a: b}\nresources: {instance_count: 2}\n")
    job = load_job(
        file,
        [
            {"resources.instance_count": 3, "tags.a.b": 1},
            {"distribution.type": "torch"},
            {"distribution.process_count_per_instance": "2"},
            {"inputs.x.path": "https://x"},
            {"environment": {"image": "python"}},
            {"name": None},
        ],
    )
    assert job.to_dict() == {
        "type": "command",
        "tags": {"a": "b", "a.b": "1"},
        "command": "x",
        "environment": {"image": "python"},
        "inputs": {"x": {"type": "uri_folder", "path": "https://x"}},
        "distribution": {"type": "pytorch", "process_count_per_instance": 2},
        "resources": {"instance_count": 3},
    }


def test_overrides_never_change_what_was_given() -> None:
    given = {"command": "x", "resources": {"instance_count": 2}, "distribution": {"type": "mpi"}}
    job = load_job(given, [{"resources.instance_count": 3}, {"distribution.type": "ray"}])
    assert job.resources.instance_count == 3
    assert given == {"command": "x", "resources": {"instance_count": 2}, "distribution": {"type": "mpi"}}


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ({"resources.instance_count": 0}, "--set: error: resources.instance_count: must be at least 1, got 0."),
        ({"resources.instance_cout": 1}, "--set: error: resources.instance_cout:"),
        ({"environment.image": "x"}, "cannot be set, since environment is 'env:1'"),
        ({"comput": "x"}, "did you mean 'compute'?"),
        ({"": "x"}, "there is no such key here"),
    ],
)
def test_wrong_overrides(override: dict[str, Any], says: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text("command: x\nenvironment: env:1\nresources: {instance_count: 1}\n")
    job, findings = read_job(file, [override])
    assert job is None
    assert [says in str(finding) for finding in findings] == [True], [str(finding) for finding in findings]


@pytest.mark.parametrize(
    ("text", "override"),
    [
        ("a.b=2", {"a.b": 2}),
        ("a=true", {"a": True}),
        ("a=[x, y]", {"a": ["x", "y"]}),
        ("a={x: 1}", {"a": {"x": 1}}),
        ("a=b=c", {"a": "b=c"}),
        ("a=", {"a": ""}),
        ("a=null", {"a": None}),
        ("a='2'", {"a": "2"}),
        ("a=1e-3", {"a": "1e-3"}),
        ("a=[1", {"a": "[1"}),
        ("a=echo '", {"a": "echo '"}),
        ("a=b: c", {"a": "b: c"}),
        ("a=- b", {"a": "- b"}),
        ("a=2026-01-01", {"a": "2026-01-01"}),
        ("a=b # c", {"a": "b # c"}),
        ("a=!b c", {"a": "!b c"}),
        ("a=b\nc", {"a": "b\nc"}),
        ("a='b # c'", {"a": "b # c"}),
        ("tags.a=010", {"tags.a": "010"}),
        ("tags.a.b=1.10", {"tags.a.b": "1.10"}),
        ("resources.instance_count=010", {"resources.instance_count": 8}),
    ],
)
def test_overrides_as_text(text: str, override: dict[str, Any]) -> None:
    assert parse_override(text) == override


@pytest.mark.parametrize(
    "text", ["a", "=2", "a..b=1", ".a=1", "", "a={b: 1, b: 2}", "a=" + "[" * 20_000, "a=" + "1" * 6_000]
)
def test_texts_that_are_no_override(text: str) -> None:
    with pytest.raises(ValidationError, match="--set: error:"):
        parse_override(text)


def test_what_an_override_adds_is_blamed_on_it(tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text("command: x\ndistribution:\nresources: {shm_size: 1g}\n")
    overrides = {"resorces.instance_count": 2, "distribution.process_count_per_instance": 2, "resources.shm_size": "x"}
    _, findings = read_job(file, overrides)
    assert {(finding.path[0], finding.file, finding.line) for finding in findings} == {
        ("resorces", "--set", None), ("distribution", "--set", None), ("resources", "--set", None),
    }  # fmt: skip
    _, findings = read_job(file, {"resources.instance_cout": 2, "limits.timeout": 1})
    assert [(finding.path, finding.file) for finding in findings] == [(("resources", "instance_cout"), "--set")]


@pytest.mark.parametrize("override", ["a=b", ["a=b"], 5, [5], [None]])
def test_what_is_no_override(override: Any) -> None:
    with pytest.raises(ValidationError, match=r"--set: error: .* is no override"):
        load_job({"command": "x"}, override)


def test_one_mapping_is_an_override() -> None:
    assert load_job({"command": "x"}, {"resources.instance_count": 2}).resources.instance_count == 2


def test_text_maps_keep_numbers_as_they_are_written(tmp_path: Path) -> None:
    written = "{a: 010, b: 1_000, c: 12:30:45, d: 0x1F, e: 1.10}"
    file = tmp_path / "job.yml"
    file.write_text(
        f"command: x\nenvironment_variables: {written}\ntags: {written}\noutputs: {{o: {{name: n, version: 1.10}}}}\n"
        "resources: {properties: {a: 1.10}}\n"
    )
    job = load_job(file)
    assert job.tags == job.environment_variables == {
        "a": "010", "b": "1_000", "c": "12:30:45", "d": "0x1F", "e": "1.10",
    }  # fmt: skip
    assert (job.outputs["o"].version, job.resources.properties) == ("1.10", {"a": 1.1})


@pytest.mark.parametrize(
    ("written", "line", "column"),
    [
        ("command: echo ${{inputs.e}} ${{inputs.e", 2, 29),
        ("command: ls xtrane.py && python trane.py", 2, 33),
        ("command: >\n  python\n  trane.py\n# trane.py", 4, 3),
        ("command: 'python \"tran\"e.py'\n# trane.py", 2, 10),
    ],
)
def test_the_right_occurrence_is_pointed_at(written: str, line: int, column: int, tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text(f"inputs: {{e: 1}}\n{written}\ncode: .\n")
    errors = [finding for finding in read_job(file)[1] if finding.is_error]
    assert [(finding.line, finding.column) for finding in errors] == [(line, column)]


def test_a_changed_value_is_not_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text("command: x\nresources:\n  shm_size: 1g\n  instance_count: 2\n")
    job = load_job(file)
    assert [finding.line for finding in job.findings()] == [4]
    job.resources.instance_count = 3
    assert [finding.line for finding in job.findings()] == [3]  # where the resources begin


def test_many_findings_are_counted() -> None:
    _, findings = read_job({"command": "x", "tags": {f"a{number}": [] for number in range(1000)}})
    assert len(findings) == 101
    assert str(findings[-1]) == "error: tags: and 900 more like these"


def test_strict(tmp_path: Path) -> None:
    data = {"command": "x", "distribution": {"type": "mpi", "added_property": 7}}
    assert load_job(data).distribution is not None
    with pytest.raises(ValidationError, match="added_property"):
        load_job(data, strict=True)


def test_environment_files(tmp_path: Path) -> None:
    environment, findings = read_environment(Path(__file__).with_name("files") / "environments" / "env.yml")
    assert findings == ()
    assert environment is not None
    assert environment.build is not None
    assert environment.build.path == os.path.join("..", "docker-context")
    (tmp_path / "env.yml").write_text("image: [x]\n")
    environment, findings = read_environment(tmp_path / "env.yml")
    assert environment is None
    assert (findings[0].line, findings[0].column) == (1, 8)


def test_a_merged_mapping_that_is_refused_is_one_finding() -> None:
    job, findings = read_job(io.StringIO("base: &b !python/object {a: 1}\ncommand: x\ntags:\n  <<: *b\n"))
    assert job is None
    assert any(finding.is_error and finding.line == 1 for finding in findings)


@pytest.mark.parametrize(
    ("named", "fix"),
    [("name: n, version: 3", "write azureml:n:3"), ("name: n", "Fix: remove them"), ("version: 3", "azureml:NAME:3")],
)
def test_an_environment_in_a_job_file_is_anonymous(named: str, fix: str, tmp_path: Path) -> None:
    job, findings = read(f"command: ls\nenvironment: {{{named}, image: ubuntu}}\n", tmp_path)
    assert job is not None
    assert job.to_dict()["environment"] == {"image": "ubuntu"}
    (finding,) = findings
    assert (finding.severity, finding.path, finding.line) == ("warning", ("environment",), 2)
    assert "its name and version are not used" in finding.message
    assert fix in str(finding)
    assert [(one.severity, one.message) for one in job.findings()] == [("warning", finding.message)]


def test_an_environment_made_in_python_keeps_its_name() -> None:
    given = Environment(name="n", version="3", image="ubuntu")
    assert load_job({"command": "ls", "environment": given}).environment is given
    assert given.name == command(command="ls", environment=given).to_dict()["environment"]["name"] == "n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("type: pipeline\njobs: {a: {type: command, component: azureml:c:1}}\nsettings: {default_compute: azureml:c}\n",
         "jobs of the type pipeline do not run here. Fix: submit it with azure-ai-ml, or write each step as a command"),
        ("type: Sweep\ntrial: {command: x, environment: y}\nobjective: {goal: minimize}\nsampling_algorithm: random\n"
         "search_space: {lr: {type: choice}}\nlimits: {max_total_trials: 2}\ninputs: {a: {path: nowhere}}\n",
         "jobs of the type sweep do not run here"),
        ("type: spark\nentry: {file: a.py}\nconf: {}\n", "jobs of the type spark do not run here"),
    ],
)  # fmt: skip
def test_a_file_of_another_type_of_job_has_one_error(text: str, says: str, tmp_path: Path) -> None:
    job, findings = read(text, tmp_path)
    assert job is None
    (finding,) = findings
    assert (finding.path, finding.line) == (("type",), 1)
    assert says in str(finding)


def test_a_misspelt_type_hides_nothing(tmp_path: Path) -> None:
    _, findings = read("type: comand\ncomand: x\n", tmp_path)
    assert {finding.path for finding in findings} >= {("type",), ("comand",)}

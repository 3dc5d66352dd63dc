"""Every snippet of the README and of docs/ is run or validated; those that cannot be here say where they are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from jobsdk import ComputeError, ValidationError, load_job
from jobsdk import compute as computes
from jobsdk.findings import Finding
from tests.docs.snippets import (
    COMMANDS,
    PYTHON,
    ROOT,
    YAML,
    Elsewhere,
    Line,
    Snippet,
    elsewhere,
    lines,
    program,
    snippets,
)

_SCRIPT = """import os, sys
from jobsdk.train import report
print("epochs", sys.argv[-1], "rank", os.environ["RANK"], flush=True)
report({"loss": 0.5})
"""
#: What the text around a snippet has spoken of.
_BEFORE = """from jobsdk import MLClient, load_job
client, name, job = MLClient(), "NAME", load_job("job.yml")
run = client.jobs.get(name)
"""
_SPOKEN_OF = {"client", "name", "job", "run", "MLClient"}
_LANGUAGES = {"sh", "python", "yaml", "toml", "text", ""}


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False, timeout=280)


def first(page: str, *beginnings: str) -> str | None:
    """The first block of YAML on a page that begins so."""
    return next((one.text for one in snippets("yaml", page) if one.text.startswith(beginnings)), None)


def project(page: str, folder: Path) -> Path:
    """A folder as a page supposes it: its code in src/ and here, its job.yml and computes.yml."""
    (folder / "src").mkdir()
    for path in (folder / "src/train.py", folder / "train.py"):
        path.write_text(_SCRIPT)
    for one in snippets("python", page):
        if named := re.match(r"# (\w+\.py)\n", one.text):
            (folder / named[1]).write_text(one.text)
    (folder / "job.yml").write_text(first(page, "# job.yml\ncommand") or _job_of_readme())
    if content := first(page, "# computes.yml"):
        (folder / "computes.yml").write_text(content)
    return folder


def _job_of_readme() -> str:
    (found,) = re.findall(r"^cat >job.yml <<'END'\n(.*?)^END$", (ROOT / "README.md").read_text(), re.M | re.S)
    return str(found)


# -- commands ----------------------------------------------------------------------------------------------------------

#: Those of the README run in order: test_newcomer.py.
_COMMANDS = [line for line in lines() if line.page != "README.md" and elsewhere(COMMANDS, line.page, line.text) is None]


@pytest.mark.slow
@pytest.mark.parametrize("page", dict.fromkeys(line.page for line in _COMMANDS))
def test_commands_do_what_they_say(page: str, tmp_path: Path) -> None:
    folder = project(page, tmp_path)
    here = [line for line in _COMMANDS if line.page == page]
    if any("NAME" in line.text for line in here):
        shell("jobsdk job create -f job.yml --name NAME --wait", folder).check_returncode()
    for line in here:
        done = shell(line.text, folder)
        assert done.returncode == line.code, f"{line}: {done.stderr or done.stdout}"
    ended = shell("for run in $(jobsdk job list -o json | grep -o '\"name\": \"[^\"]*\"' | cut -d'\"' -f4); do "
                  "jobsdk job wait $run; done", folder)  # fmt: skip
    assert ended.returncode in (0, *(line.code for line in here)), ended.stderr


@pytest.mark.parametrize("line", [line for line in lines() if program(line.text)], ids=str)
def test_commands_are_used_rightly(line: Line) -> None:
    """Also of those that are not run here: the command, its options and how many arguments it takes are as they are."""
    from jobsdk.cli import cli

    command: click.Command = cli
    words = program(line.text) or []
    context = click.Context(command)
    while isinstance(command, click.Group):
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=found.name, **found.context_settings)
    parser = command.make_parser(context)
    values, rest, _ = parser.parse_args(args=list(words))
    assert not rest, rest
    known = {parameter.name for parameter in command.params}
    assert set(values) <= known


# -- Python ------------------------------------------------------------------------------------------------------------

_PYTHON = [one for one in snippets("python") if elsewhere(PYTHON, one.page, one.text) is None]


@pytest.mark.parametrize("snippet", _PYTHON, ids=str)
def test_python_runs(snippet: Snippet, tmp_path: Path) -> None:
    folder = project(snippet.page, tmp_path)
    if re.match(r"# \w+\.py\n", snippet.text):
        compile(snippet.text, str(snippet), "exec")  # a file, which commands of the page run
        return
    before = ""
    if _SPOKEN_OF & unknown(snippet.text):
        shell("jobsdk job create -f job.yml --name NAME --wait", folder).check_returncode()
        before = _BEFORE
    (folder / "snippet.py").write_text(before + snippet.text)
    done = subprocess.run([sys.executable, "snippet.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def unknown(text: str) -> set[str]:
    """The names that a program uses and does not give a value to."""
    used: set[str] = set()
    given: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else given).add(node.id)
        elif isinstance(node, ast.alias):
            given.add(node.asname or node.name)
    return used - given


# -- YAML --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("snippet", snippets("yaml"), ids=str)
def test_yaml_is_valid(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project(snippet.page, tmp_path))
    if elsewhere(YAML, snippet.page, snippet.text) is not None:
        list(yaml.safe_load_all(snippet.text))
        return
    content = yaml.safe_load(snippet.text)
    if {"computes", "machines", "default", "retention"} & set(content):
        assert not mistakes_of_computes(snippet.text, tmp_path)
        return
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": "auto"}')
    text = snippet.text if "command" in content else f"command: date\n{snippet.text}"
    (tmp_path / "snippet.yml").write_text(text if "code" in content else f"code: .\n{text}")
    assert not mistakes_of_job(tmp_path / "snippet.yml")


def mistakes_of_job(path: Path) -> list[Finding]:
    try:
        return [one for one in load_job(path).findings() if one.is_error]
    except ValidationError as error:
        return list(error.findings)


def mistakes_of_computes(text: str, folder: Path) -> list[str]:
    """What is wrong in the file and in the settings of its computes, of types that are installed or in src_examples."""
    file = folder / "computes.yml"
    try:
        for name, settings in (computes.read(file, text.encode()).get("computes") or {}).items():
            if settings["type"] in computes.types():
                computes.type_of(settings["type"])(name, {key: settings[key] for key in settings if key != "type"})
            else:
                assert (ROOT / "src_examples/compute_plugin" / f"jobsdk_{settings['type']}").is_dir()
    except ComputeError as error:
        return [str(error)]
    return []


# -- the tables --------------------------------------------------------------------------------------------------------


def test_languages_are_known() -> None:
    assert {one.language for one in snippets()} <= _LANGUAGES


@pytest.mark.parametrize("one", [*COMMANDS, *PYTHON, *YAML], ids=lambda one: f"{one.page} {one.why}")
def test_what_is_run_elsewhere_is(one: Elsewhere) -> None:
    assert (ROOT / one.tests).exists()


def test_a_mistake_is_found(tmp_path: Path) -> None:
    (tmp_path / "job.yml").write_text("command: date\nresorces: {instance_count: 2}\n")
    assert mistakes_of_job(tmp_path / "job.yml")
    assert mistakes_of_computes("computes: {a: {type: slurm, partion: gpu}}", tmp_path)
    assert elsewhere(COMMANDS, "docs/new.md", "jobsdk run -- date") is None

"""The layout of the package: which part may import which, read from the syntax tree of every file.

Imports inside functions and imports for type checkers count like all others: what a reader has to follow is the same.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import jobsdk.errors
import jobsdk.plugin

ROOT = Path(__file__).resolve().parents[1]

#: The parts of jobsdk, top first. A part imports those on lines below its own; parts of one line do not import each
#: other. `jobsdk/__init__.py` only names what is public, and stands above all.
LAYERS = """
    __main__
    cli
    emulator ui
    views
    doctor reference
    entities constants
    compat
    functions
    client
    plugin
    compute
    planning
    runs
    installation
    snapshot
    job
    home
    errors
    findings
    terminal notebook
    train
    bootstrap
"""
#: The same for the packages of the bootstrap.
BOOTSTRAP_LAYERS = """
    __main__ archive
    main
    agent
    coordinator
    remote_shell preflight hangs transport detect
    launchers
    failures
    distributions control
    spec
    system
"""
#: Imports that run upwards, with the reason. None may be added.
UPWARD = {
    ("job", "client"): "CommandJob.explain() gives the client's Explanation: a hook would hide the import and its type",
}
#: Code on the way of a job that asks for a type by its name, by what is searched for. These numbers may only fall.
CEILINGS = {
    r"""\["distribution"\]\["type"\]|\["distribution"\]\.get\("type"\)|distribution\.type\b""": 7,
    r"""\btype [!=]= "azureml\"""": 0,
}
#: How many annotations say no more than that there is a dict. This number may only fall.
UNTYPED = 304

#: What the emulator imports beyond the public names: types and tables that others document.
SHARED_WITH_EMULATOR = {
    "jobsdk.bootstrap.distributions.contract.IDENTITY",
    "jobsdk.client.run.Run",
    "jobsdk.compute.azureml.workspace.Workspace",
}
#: Classes of more than 250 lines, and files of more than 400, with their lines. None may be added, none may grow.
LONG = {
    "jobsdk/bootstrap/preflight/run.py": 448,
    "jobsdk/client/operations.py": 447,
    "jobsdk/client/operations.py:JobOperations": 290,
    "jobsdk/client/run.py:Run": 272,
    "jobsdk/job/command.py": 481,
    "jobsdk/job/command.py:CommandJob": 281,
    "jobsdk/job/kinds.py": 465,
    "jobsdk/runs/logs.py": 421,
}


class Import(NamedTuple):
    """That `file` imports from `part`."""

    own: str
    part: str
    file: Path


def _layers(text: str) -> dict[str, int]:
    lines = text.split("\n")
    return {name: -number for number, line in enumerate(lines) for name in line.split()}


def _modules_of(node: ast.AST, package: list[str]) -> Iterator[list[str]]:
    """The modules that an import names, each as the parts of its dotted name."""
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        base = base + (node.module or "").split(".") if node.module else base
        yield from ([*base, alias.name] for alias in node.names)


def imports(top: Path) -> Iterator[Import]:
    """Those between the parts of the package in the folder `top`: its modules and packages."""
    prefix = list(top.relative_to(ROOT).parts)
    for file in sorted(top.rglob("*.py")):
        words = list(file.relative_to(ROOT).with_suffix("").parts)
        package = words[:-1]
        own = words[len(prefix)]
        if own == "__init__":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            for module in _modules_of(node, package):
                if module[: len(prefix)] != prefix or len(module) == len(prefix):
                    continue
                part = module[len(prefix)]
                is_name = not (top / part).is_dir() and not (top / f"{part}.py").is_file()
                if part != own and not is_name:
                    yield Import(own, part, file.relative_to(ROOT))


@pytest.mark.parametrize(
    ("folder", "layers", "upward"),
    [("jobsdk", LAYERS, UPWARD), ("jobsdk/bootstrap", BOOTSTRAP_LAYERS, {})],
    ids=["jobsdk", "bootstrap"],
)
def test_imports_go_downwards(folder: str, layers: str, upward: dict[tuple[str, str], str]) -> None:
    levels = _layers(layers)
    found = list(imports(ROOT / folder))
    parts = {path.stem for path in (ROOT / folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__"} == set(levels), "every part has a layer"
    wrong = [
        f"{one.file} imports {one.part}"
        for one in found
        if levels[one.part] >= levels[one.own] and (one.own, one.part) not in upward
    ]
    assert not wrong, "\n".join(wrong)
    assert set(upward) <= {(one.own, one.part) for one in found}, "an import that is gone stands in the list"


@pytest.mark.parametrize(("pattern", "ceiling"), CEILINGS.items())
def test_types_are_not_asked_for_by_name(pattern: str, ceiling: int) -> None:
    places = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in sorted((ROOT / "jobsdk").rglob("*.py"))
        if "emulator" not in file.parts and "azureml" not in file.parts
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert len(places) == ceiling, "\n".join(places)


def _dotted_imports(file: Path) -> set[str]:
    package = list(file.relative_to(ROOT).parent.parts)
    return {".".join(name) for node in ast.walk(ast.parse(file.read_text())) for name in _modules_of(node, package)}


def test_the_emulator_imports_public_names_only() -> None:
    public = {f"jobsdk.{name}" for name in jobsdk.__all__}
    errors = {f"jobsdk.errors.{name}" for name in vars(jobsdk.errors) if not name.startswith("_")}
    found = {
        name
        for file in (ROOT / "jobsdk/emulator").glob("*.py")
        for name in _dotted_imports(file)
        if name.split(".")[0] == "jobsdk" and not name.startswith("jobsdk.emulator")
    }
    assert found - public - errors == SHARED_WITH_EMULATOR


def test_the_example_plugin_imports_the_public_module_alone() -> None:
    files = list((ROOT / "src_examples/compute_plugin").rglob("*.py"))
    found = {name for file in files for name in _dotted_imports(file) if name.split(".")[0] == "jobsdk"}
    assert found <= {f"jobsdk.plugin.{name}" for name in jobsdk.plugin.__all__}
    assert found


def test_the_plugins_page_names_what_the_module_has() -> None:
    table = (ROOT / "docs/plugin.md").read_text().partition("## What jobsdk.plugin has")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = re.findall(r"`(\w+)`", "".join(cells))
    assert sorted(named) == sorted(jobsdk.plugin.__all__)


def test_only_its_command_imports_the_emulator() -> None:
    importers = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "jobsdk").rglob("*.py")
        if "emulator" not in file.parent.parts
        and any(name.startswith("jobsdk.emulator") for name in _dotted_imports(file))
    }
    assert importers == {"jobsdk/cli/emulator.py"}


def test_nothing_grows_long() -> None:
    found = {}
    for file in sorted((ROOT / "jobsdk").rglob("*.py")):
        name, text = file.relative_to(ROOT).as_posix(), file.read_text()
        found[name] = text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                found[f"{name}:{node.name}"] = (node.end_lineno or 0) - node.lineno + 1
    long = {name: lines for name, lines in found.items() if lines > (250 if ":" in name else 400)}
    grown = {name: lines for name, lines in long.items() if lines > LONG.get(name, 0)}
    assert not grown
    assert long.keys() == LONG.keys(), "what has become short is still in the list"


def test_agent_and_coordinator_know_no_framework() -> None:
    files = [*(ROOT / "jobsdk/bootstrap/coordinator").glob("*.py"), *(ROOT / "jobsdk/bootstrap/agent").glob("*.py")]
    pattern = re.compile(r"\b(mpi|mpirun|ray|deepspeed|tensorflow|pytorch)", re.IGNORECASE)
    found = [f"{file.name}: {line}" for file in files for line in file.read_text().splitlines() if pattern.search(line)]
    assert not found, "\n".join(found)


def test_dicts_have_types() -> None:
    files = sorted((ROOT / "jobsdk").rglob("*.py"))
    count = sum(len(re.findall(r"\b[dD]ict\[str, Any\]", file.read_text())) for file in files)
    assert count <= UNTYPED, "what crosses a border gets a type in jobsdk/bootstrap/spec"

"""The promises of docs/security.md: each has an attacker, and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.docs.snippets import ROOT

ATTACKERS = {"network", "other users", "other pages", "nodes", "programs", "files"}


def promises() -> list[list[str]]:
    """The rows of the table: attacker, promise, tests."""
    section = (
        (ROOT / "docs/security.md").read_text().partition("\n## Promises and their tests")[2].partition("\n## ")[0]
    )
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows[2:]]


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing(cell: str) -> list[str]:
    """What a cell names that is no test; the cell itself where it names none."""
    named = re.findall(r"`([^`]+)`", cell)
    wrong = []
    for name in named:
        file, _, function = name.partition("::")
        exists = file.startswith("tests/") and (ROOT / file).is_file()
        if not exists or not function.startswith("test_") or function not in functions_of(file):
            wrong.append(name)
    return wrong if named else [cell]


def test_every_attacker_is_in_the_table() -> None:
    assert {row[0] for row in promises()} == ATTACKERS
    assert all(len(row) == 3 and row[1] for row in promises())


@pytest.mark.parametrize("row", promises(), ids=lambda row: row[1])
def test_every_promise_has_its_tests(row: list[str]) -> None:
    assert missing(row[2]) == []


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "the reviewers looked",
        "`tests/gone.py::test_x`",
        "`docs/security.md::test_x`",
        "`tests/docs/test_security.py`",
        "`tests/docs/test_security.py::test_no_such`",
    ],
)
def test_a_cell_without_an_existing_test_is_found(cell: str) -> None:
    assert missing(cell) == [cell.strip("`")]

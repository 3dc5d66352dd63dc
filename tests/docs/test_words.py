"""The words that the glossary in docs/concepts.md replaces do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT

BANNED = re.compile(
    r"\b(?:un)?heed(?:s|ed|ing)?\b|\b(?:is|are|be|was|were)\s+told\b|\bcannot\s+be\s+had\b", re.IGNORECASE
)


def found_in(name: str, text: str) -> Iterator[str]:
    for match in BANNED.finditer(text):
        yield f"{name}: {match[0]}"


def strings(path: Path) -> Iterator[str]:
    """Messages and docstrings."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("text", ["Fields that Slurm heeds", "which it is\ntold", "a port cannot be had", "unheeded"])
def test_a_banned_word_is_found(text: str) -> None:
    assert list(found_in("page", text))


def test_pages_use_the_words_of_the_glossary() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    assert [one for page in pages for one in found_in(str(page.relative_to(ROOT)), page.read_text())] == []


def test_messages_and_docstrings_use_the_words_of_the_glossary() -> None:
    modules = sorted((ROOT / "jobsdk").rglob("*.py"))
    found = [one for path in modules for text in strings(path) for one in found_in(str(path.relative_to(ROOT)), text)]
    assert found == []

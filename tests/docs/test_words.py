"""The phrases that the style in CONTRIBUTING.md bans do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT

#: In pages, messages and docstrings.
BANNED = re.compile(
    r"""\b(?:un)?heed(?:s|ed|ing)?\b
    |\b(?:is|are|be|was|were)\s+told\b
    |\bcannot\s+be\s+had\b
    |\bthat\s+there\s+(?:is|are)\b(?!\s+(?:no|nothing|something|an?)\b)
    |\bwhat\s+is\s+of\b
    |\bfor\s+ever\b
    |\bas\s+ever\b
    |\bwhose\s+word\b
    |\bin\s+the\s+manner\s+of\b
    |\bknows?\s+nothing\s+of\b
    |\b(?:is|are|was|were)\s+said\b
    |\banew\b
    |\b(?:comes?|goes|go|taken|brings?|brought)\s+along\b
    |\bwhat\s+nobody\b
    |\blast\s+words\b
    |\bat\s+hand\b
    |\bare\s+ended\b
    |\b(?:colour|recognis|initialis)""",
    re.IGNORECASE | re.VERBOSE,
)


def found_in(name: str, text: str) -> Iterator[str]:
    for match in BANNED.finditer(text):
        yield f"{name}: {match[0]}"


def strings(path: Path) -> Iterator[str]:
    """Messages and docstrings."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize(
    "text",
    [
        "Fields that Slurm heeds",
        "which it is\ntold",
        "a port cannot be had",
        "unheeded",
        "a folder that there\nis",
        "wait for ever",
    ],
)
def test_a_banned_word_is_found(text: str) -> None:
    assert list(found_in("page", text))


@pytest.mark.parametrize("text", ["a host so that there is no reader", "Every run", "for every rank", "as every type"])
def test_plain_english_is_not_found(text: str) -> None:
    assert not list(found_in("page", text))


def test_pages_are_in_plain_english() -> None:
    pages = [ROOT / "README.md", ROOT / "SKILL.md", *sorted((ROOT / "docs").rglob("*.md"))]
    assert [one for page in pages for one in found_in(str(page.relative_to(ROOT)), page.read_text())] == []


def test_messages_and_docstrings_are_in_plain_english() -> None:
    modules = sorted((ROOT / "jobsdk").rglob("*.py"))
    found = [one for path in modules for text in strings(path) for one in found_in(str(path.relative_to(ROOT)), text)]
    assert found == []

"""Ignore rules, against git itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobsdk.snapshot.ignore import Rules

# Pieces that mean something in a pattern, and few others, so that patterns and paths often meet. Negated classes are
# not among them: to pathspec, unlike git, they match a slash too.
PATTERN = st.lists(st.sampled_from(["a", "b", "*", "**", "?", "!", "-", "/", ".", " ", "#", "[ab]", "\\#"]))
NAME = st.text("ab.-! #", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(st.lists(NAME, min_size=1, max_size=3).map("/".join), min_size=1, max_size=20, unique=True)


def ignored(lines: list[str], path: str) -> bool:
    """What a walk from the top, which does not enter ignored folders, would make of the file `path`."""
    rules = Rules.parse("\n".join(lines) + "\n", ".gitignore")
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        rule = rules.decide("/".join(parts[:depth]), folder=depth < len(parts))
        if rule and not rule.negated:
            return True
    return False


@pytest.mark.parametrize(
    ("lines", "path", "expected"),
    [
        (["bb", "!/"], "bb/a", True),
        (["/ "], "a", False),
        (["*.log"], "a/b.log", True),
        (["*.log", "!keep.log"], "a/keep.log", False),
        (["!keep.log", "*.log"], "a/keep.log", True),
        (["/top"], "a/top", False),
        (["/top"], "top/a", True),
        (["folder/"], "folder", False),
        (["folder/"], "a/folder/b", True),
        (["a/*", "!a/keep"], "a/keep", False),
        (["a/", "!a/keep"], "a/keep", True),
        (["a/**/z"], "a/z", True),
        (["a/**/z"], "a/b/c/z", True),
        (["a/**"], "a/b/c", True),
        (["**/z"], "b/c/z", True),
        (["*", "!*/", "!*.py"], "a/b/c.py", False),
        (["*", "!*/", "!*.py"], "a/b/c.txt", True),
        (["# a"], "# a", False),
        (["\\# a"], "# a", True),
        (["\\!a"], "!a", True),
        (["trailing  "], "trailing", True),
        (["trailing\\ "], "trailing ", True),
        (["windows\r"], "windows", True),
        (["\ufeffbom"], "bom", True),
        (["[a-c]x"], "bx", True),
        (["[!a-c]x"], "bx", False),
        (["[broken"], "[broken", False),
        (["a.c"], "abc", False),
    ],
)
def test_rules(lines: list[str], path: str, expected: bool) -> None:
    assert ignored(lines, path) is expected


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
@settings(max_examples=150, deadline=None)
@given(lines=st.lists(PATTERN.map("".join), min_size=1, max_size=4), paths=PATHS)
def test_the_same_as_git(lines: list[str], paths: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, ".gitignore").write_text("\n".join(lines) + "\n")
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", "init", "-q", folder], check=True, env=environment)
        asked = subprocess.run(
            ["git", "-C", folder, "check-ignore", "--no-index", "-z", "--stdin"],
            input="\0".join(paths).encode(),
            env=environment,
            capture_output=True,
        )
        assert asked.returncode in (0, 1), asked.stderr
        by_git = set(asked.stdout.decode().split("\0")[:-1])
    assert {path for path in paths if ignored(lines, path)} == by_git


def test_the_rule_says_where_it_stands() -> None:
    rule = Rules.parse("# comment\n\n!*.log\n", ".gitignore").decide("a/x.log", folder=False)
    assert rule is not None
    assert (rule.line, rule.pattern, rule.negated) == (3, "*.log", True)

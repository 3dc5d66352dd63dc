"""Ignore files in git's format: which rule of a `.gitignore` or `.amlignore` decides on a path.

pathspec translates the patterns. A path is asked about on its own, as a walk that does not enter ignored folders needs
it: a rule for a folder says nothing about what lies in the folder. pathspec's `check_file` does not tell the two apart,
and another ignore file may decide on what lies there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Rule(NamedTuple):
    """One line of an ignore file."""

    pattern: str  # as written
    line: int  # from 1
    negated: bool  # begins with `!`: what matches is kept
    by_name: bool  # holds no `/` but a final one: about the last part of a path
    regex: re.Pattern[str]  # for paths whose folders end with `/`

    @property
    def literal(self) -> bool:
        """Whether the last part of the pattern names one file or folder, without wildcards."""
        return not any(mark in self.pattern.rstrip("/").rpartition("/")[2] for mark in "*?[")

    def matches(self, path: str) -> bool:
        """Whether the rule is about `path` itself, not about a folder above it."""
        text = path[path.rfind("/", 0, -1) + 1 :] if self.by_name else path
        found = self.regex.search(text)
        if found is None:
            return False
        if self.regex.groups:  # the only one is the slash after a folder that the pattern names
            return found.end(1) in (-1, len(text))
        # `folder/**` is about what lies in the folder, however deep.
        return not self.regex.pattern.endswith("/") or found.end() < len(text)


class Rules:
    """The rules of one ignore file; `origin` names it in reasons. Later rules win over earlier ones."""

    def __init__(self, rules: Iterable[Rule], origin: str) -> None:
        self.rules = list(rules)
        self.origin = origin
        # Most paths match no rule at all, which one search can tell.
        patterns = (re.sub(r"\(\?P<\w+>", "(?:", rule.regex.pattern) for rule in self.rules)
        self._any = re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or "(?!)")

    @classmethod
    def parse(cls, text: str, origin: str) -> Rules:
        lines = enumerate(text.removeprefix("\ufeff").split("\n"), start=1)
        return cls((rule for number, line in lines if (rule := _rule(line.removesuffix("\r"), number))), origin)

    def only_named(self) -> Rules:
        """Of the rules that begin with `!`, those without wildcards: they match what the file names to be kept."""
        return Rules([rule for rule in self.rules if rule.negated and rule.literal], self.origin)

    def decide(self, path: str, folder: bool) -> Rule | None:
        """The rule that decides on `path` (relative to the ignore file's folder, POSIX), None if none does."""
        text = path + "/" if folder else path
        if not self._any.search(text):
            return None
        return next((rule for rule in reversed(self.rules) if rule.matches(text)), None)


def _rule(line: str, number: int) -> Rule | None:
    """The rule of a line; None for blank lines, comments, and patterns that can match nothing."""
    from pathspec.patterns.gitignore.base import GitIgnorePatternError
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    try:
        pattern = GitIgnoreSpecPattern(line)
    except GitIgnorePatternError:
        return None
    if pattern.include is None or pattern.regex is None:
        return None
    written = line.removeprefix("!")
    if not written.rstrip(" ").strip("/"):
        return None  # a slash alone names nothing to git, and everything to pathspec
    return Rule(written, number, not pattern.include, "/" not in written.rstrip("/"), pattern.regex)

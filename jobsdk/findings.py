"""Findings: what is wrong in a job, where, and how to fix it. All are collected before any is reported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

Path = tuple[str | int, ...]

#: How many findings of one severity about one field of a job are told one by one.
MANY = 100

#: The longest that one finding is as text, in characters.
LIMIT = 400


class Finding(NamedTuple):
    """One error or warning about a job.

    `path` leads to the field, as in ("resources", "instance_count"); `file`, `line` and `column` (both from 1) say
    where it was written and are None where that is not known.
    """

    severity: str
    path: Path
    message: str
    fix: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None

    @property
    def is_error(self) -> bool:
        """Whether the job cannot run because of it."""
        return self.severity == "error"

    def __str__(self) -> str:
        place = "" if self.file is None else f"{shorten(self.file, 120, keep_end=True)}:"
        if self.line is not None:
            place += f"{self.line}:{self.column}:"
        where = shorten(dotted(self.path), 80)
        head = " ".join(filter(None, (place, f"{self.severity}:", where and f"{where}:")))
        fix = f" Fix: {self.fix}" if self.fix else ""
        message = shorten(self.message, max(60, LIMIT - len(head) - len(fix) - 2))
        message += "." if fix and message[-1:] not in ".?!" else ""
        return shorten(f"{head} {message}{fix}", LIMIT)

    def to_dict(self) -> dict[str, Any]:
        """The finding as a record for programs."""
        return {
            "path": dotted(self.path),
            "line": self.line,
            "column": self.column,
            "file": self.file,
            "severity": self.severity,
            "message": self.message,
            "suggestion": self.fix,
        }


class SourceLocation(NamedTuple):
    """Where something is written. `line` and `column` count from 1 and are None where there is no text."""

    file: str
    line: int | None = None
    column: int | None = None


class Places(Protocol):
    """Knows where the fields of a job were written."""

    def find(self, path: Path, *, key: bool = False, within: str = "", nth: int = 0) -> SourceLocation | None:
        """The place of the value at `path` (its key; the `nth` text `within` it, from 0), else of what encloses it."""

    def without(self, path: Path) -> Places:
        """The places without those at and under `path`, which has been given another value."""


class Report:
    """Collects findings. `places` gives them their line and column; `strict` turns tolerated keys into errors."""

    def __init__(self, places: Places | None = None, *, strict: bool = False) -> None:
        self.findings: list[Finding] = []
        self.places = places
        self.strict = strict

    def error(
        self, path: Path, message: str, fix: str = "", *, key: bool = False, within: str = "", nth: int = 0
    ) -> None:
        """Add an error. `key`: the key is at fault, not its value; `within`: the part of the text at fault.

        `nth` tells which one, from 0, if the text has the part several times.
        """
        self._add("error", path, message, fix, key, within, nth)

    def warn(
        self, path: Path, message: str, fix: str = "", *, key: bool = False, within: str = "", nth: int = 0
    ) -> None:
        """Add a warning; the arguments are those of `error`."""
        self._add("warning", path, message, fix, key, within, nth)

    def tolerate(self, path: Path, message: str, fix: str = "", *, key: bool = False) -> None:
        """Add a warning, or an error in a strict report."""
        self._add("error" if self.strict else "warning", path, message, fix, key)

    def _add(
        self, severity: str, path: Path, message: str, fix: str, key: bool, within: str = "", nth: int = 0
    ) -> None:
        place = self.places.find(path, key=key, within=within, nth=nth) if self.places else None
        if place is None:
            fix = in_python(fix)
        self.findings.append(Finding(severity, path, message, fix, *(place or ())))

    @property
    def errors(self) -> int:
        """How many errors there are so far."""
        return sum(finding.is_error for finding in self.findings)


def in_python(fix: str) -> str:
    """A fix for a job file as one for Python: 'chief: true' is chief=True there."""
    fix = re.sub(r"'(\w+): \{(\w+): (\w+)\}'", r"\1={'\2': '\3'}", fix)
    fix = re.sub(r"write '(name|NAME): (value|AMOUNT)' lines under it", r"pass a dict: {'\1': \2}", fix)
    return re.sub(r"'([a-z_]+): ([^'{}]+)'", lambda match: f"{match[1]}={_python_text(match[2])}", fix)


def _python_text(value: str) -> str:
    known = {"true": "True", "false": "False", "...": "..."}
    return known.get(value, value if value.isdecimal() else repr(value))


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings once each, in the order of the file. Those without a place keep their order, at the end.

    Of more than `MANY` of one severity about one field, the rest is only counted.
    """
    counts: dict[tuple[str, Path], int] = {}
    told = []
    for finding in sorted(dict.fromkeys(findings), key=lambda f: (f.line is None, f.line or 0, f.column or 0)):
        kind = finding.severity, finding.path[:1]
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= MANY:
            told.append(finding)
    rest = [(kind, count - MANY) for kind, count in counts.items() if count > MANY]
    return told + [Finding(*kind, f"and {count:,} more like these") for kind, count in rest]


def dotted(path: Path) -> str:
    """The path as a user writes it: a.b.c."""
    return ".".join(map(str, path))


def shorten(text: str, limit: int, *, keep_end: bool = False) -> str:
    """The text on one line and in at most `limit` characters."""
    text = " ".join(text[: 4 * limit].split()) if not keep_end else text
    if len(text) <= limit:
        return text
    return "..." + text[3 - limit :] if keep_end else text[: limit - 3] + "..."


def show(value: object, limit: int = 60) -> str:
    """A value as messages show it; never long, and never slow for a huge value."""
    if isinstance(value, str):
        from jobsdk.bootstrap.spec.secrets import redacted

        return repr(shorten(redacted(value[: 4 * limit]), limit))
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of many digits"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple | set):
        return "a list"
    return f"an object of type {type(value).__name__}"


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be, or None."""
    if not isinstance(name, str) or not name or len(name) > 80:
        return None
    plain = {_plain(candidate): candidate for candidate in known}
    if _plain(name) in plain:
        return plain[_plain(name)]
    import difflib

    close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.65)
    return plain[close[0]] if close else None


def meant(name: object, known: Iterable[str], otherwise: str) -> str:
    """The fix for an unknown name: the nearest known one, else `otherwise`."""
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else otherwise


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


def one_of(names: Sequence[str]) -> str:
    """The names as a sentence has them: a, b or c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"

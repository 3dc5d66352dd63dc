"""Kinds of values that the fields of a job take.

A kind turns what a user gave (a Python value, or what YAML holds) into the value that the model keeps. The same kind
judges typed constructors, assignments, dicts, YAML and overrides, so that all give the same verdict. A kind never
raises: it adds findings to the report and returns `INVALID`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jobsdk.errors import ValidationError
from jobsdk.findings import Path, Report, nearest, one_of, show
from jobsdk.job.paths import is_local

Rewrite = Callable[[str], str]  # what `dump` applies to every local path, which may begin with `file:`
Schema = dict[str, Any]


class _Invalid:
    """What a kind returns in place of a value that it refused."""

    def __repr__(self) -> str:
        return "INVALID"

    def __reduce__(self) -> str:
        return "INVALID"


INVALID = _Invalid()


class Kind:
    """The base of kinds. `says` names the kind in messages."""

    says = "a value"

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        """The value to keep, or INVALID after reporting why not."""
        raise NotImplementedError

    def schema(self) -> Schema:
        """The JSON Schema of what `structure` takes from a file."""
        raise NotImplementedError

    def dump(self, value: Any, rewrite: Rewrite | None = None) -> Any:
        """The value as plain data. `rewrite` is applied to every local path in it."""
        return value

    def refuse(self, value: Any, path: Path, report: Report, fix: str = "") -> Any:
        """Reports that `value` is not of this kind."""
        report.error(path, f"must be {self.says}, got {show(value)}", fix)
        return INVALID


class Text(Kind):
    """Text; of a form (`pattern`, whole text) or one of some `choices` (any letter case, `aliases` too)."""

    says = "text"

    def __init__(
        self,
        pattern: str | None = None,
        *,
        says: str = "",
        fix: str = "",
        choices: Sequence[str] = (),
        aliases: Mapping[str, str] | None = None,
        empty: bool = True,
    ) -> None:
        self.pattern = pattern
        self.choices = tuple(choices)
        self.aliases = dict(aliases or {})
        self.fix = fix
        self.empty = empty
        if says or choices:
            self.says = says or one_of(self.choices)

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if not isinstance(value, str):
            quotable = isinstance(value, bool | int | float) and not self.choices
            return self.refuse(value, path, report, f"put it in quotes: '{show(value)}'" if quotable else self.fix)
        text = str.__str__(value)
        if not self.choices:
            return text if self._well_formed(text, path, report) else INVALID
        name = text.strip().lower()
        for choice in self.choices:
            if name == choice.lower():
                return choice
        if name in self.aliases:
            return self.aliases[name]
        near = nearest(name, [*self.choices, *self.aliases])
        return self.refuse(value, path, report, f"did you mean '{self.aliases.get(near, near)}'?" if near else self.fix)

    def _well_formed(self, text: str, path: Path, report: Report) -> bool:
        if not storable(text):
            report.error(path, "holds a character that no file or process can take (NUL or half a surrogate pair)")
            return False
        if not text.strip() and not self.empty:
            report.error(path, "must not be empty", self.fix)
            return False
        if self.pattern and not re.fullmatch(self.pattern, text):
            self.refuse(text, path, report, self.fix)
            return False
        return True

    def schema(self) -> Schema:
        if self.choices:
            names = [*self.choices, *self.aliases]
            return {"anyOf": [{"enum": list(self.choices)}, {"type": "string", "pattern": any_case(names)}]}
        if self.pattern:
            return {"type": "string", "pattern": f"^(?:{self.pattern})$"}
        return {"type": "string"} if self.empty else {"type": "string", "pattern": r"\S"}


class TypeName(Text):
    """The `type` of a model: one name, with other names that people write for it."""

    def __init__(self, name: str, *aliases: str, fix: str = "") -> None:
        super().__init__(choices=(name,), aliases=dict.fromkeys(aliases, name), fix=fix)


class LocalPath(Text):
    """A path on this machine, relative to the job file (or in Python to the working directory); or a URI."""

    says = "a path"

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        value = path_text(value)
        return super().structure(value, path, report)

    def dump(self, value: Any, rewrite: Rewrite | None = None) -> Any:
        return rewrite(value) if rewrite and isinstance(value, str) and is_local(value) else value


#: Far beyond any cluster: what is larger is a typo, and would take hours and gigabytes before it failed.
MOST_NODES, MOST_PROCESSES, MOST_RANKS = 100_000, 10_000, 1_000_000


class Integer(Kind):
    """A whole number from `minimum` to `maximum`: an int, 2.0, or text of exactly an int; neither 2.7 nor true."""

    says = "a whole number"

    def __init__(
        self, minimum: int | None = None, maximum: int | None = None, fix: str = "write a whole number"
    ) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.fix = fix

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        number = int(value) if isinstance(value, float) and value.is_integer() else whole(value)
        if number is None:
            return self.refuse(value, path, report, self.fix)
        if self.minimum is not None and number < self.minimum:
            report.error(path, f"must be at least {self.minimum}, got {show(number)}", self._bounds())
            return INVALID
        if self.maximum is not None and number > self.maximum:
            report.error(path, f"must be at most {self.maximum}, got {show(number)}", self._bounds())
            return INVALID
        return number

    def _bounds(self) -> str:
        if self.maximum is None:
            return f"write {self.minimum} or more"
        return f"write a number from {self.minimum} to {self.maximum}"

    def schema(self) -> Schema:
        number: Schema = {"type": "integer"}
        if self.minimum is not None:
            number["minimum"] = self.minimum
        if self.maximum is not None:
            number["maximum"] = self.maximum
        digits = r"\+?0*[1-9][0-9]*" if self.minimum == 1 else r"\+?[0-9]+|-0+" if self.minimum == 0 else "[+-]?[0-9]+"
        return {"anyOf": [number, {"type": "string", "pattern": rf"^\s*(?:{digits})\s*$"}]}


class Flag(Kind):
    """true or false, also as 1, 0 or a word such as yes, as azure-ai-ml takes them."""

    says = "true or false"
    _TRUE = ("true", "t", "yes", "y", "on", "1")
    _FALSE = ("false", "f", "no", "n", "off", "0")

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if isinstance(value, bool):
            return value
        word = str(value).lower() if isinstance(value, str | int) else ""
        return word in self._TRUE if word in self._TRUE + self._FALSE else self.refuse(value, path, report)

    def schema(self) -> Schema:
        words = {"type": "string", "pattern": any_case((*self._TRUE, *self._FALSE))}
        return {"anyOf": [{"type": "boolean"}, {"enum": [0, 1]}, words]}


class AsText(Kind):
    """Free text: any scalar, kept as text. `warn_bool`: true and false get a warning, since they become 'True'."""

    says = "text or a number"

    def __init__(self, *, none: bool = False, warn_bool: bool = False) -> None:
        self.none = none
        self.warn_bool = warn_bool

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if value is None and self.none:
            return None
        if isinstance(value, str):
            return Text().structure(value, path, report)
        if not is_scalar(value):
            fix = "write '' for an empty value" if value is None else "write it as one text in quotes"
            return self.refuse(value, path, report, fix)
        if isinstance(value, bool) and self.warn_bool:
            written = str(value).lower()
            report.warn(path, f"{written} becomes the text '{value}'", f"write '{written}' or '{value}' in quotes")
        return str(value)

    def schema(self) -> Schema:
        return {"type": ["string", "number", "boolean", *(["null"] if self.none else [])]}


class Anything(Kind):
    """Plain data of any shape: what JSON can hold."""

    says = "plain data"

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        return self._plain(value, path, report, 0)

    def _plain(self, value: Any, path: Path, report: Report, depth: int) -> Any:
        if depth > 30:
            report.error(path[:8], "is nested too deeply")
            return INVALID
        if isinstance(value, Mapping):
            return {str(key): self._plain(item, (*path, str(key)), report, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(item, (*path, index), report, depth + 1) for index, item in enumerate(value)]
        if isinstance(value, str):
            return Text().structure(value, path, report)
        return value if value is None or is_scalar(value) else self.refuse(value, path, report)

    def schema(self) -> Schema:
        return {}

    def dump(self, value: Any, rewrite: Rewrite | None = None) -> Any:
        if isinstance(value, dict):
            return {key: self.dump(item) for key, item in value.items()}
        return [self.dump(item) for item in value] if isinstance(value, list) else value


class PlainMapping(Anything):
    """A mapping with any content."""

    says = "a mapping"

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        return (
            super().structure(value, path, report) if isinstance(value, Mapping) else self.refuse(value, path, report)
        )

    def schema(self) -> Schema:
        return {"type": "object"}


class Items(dict[str, Any]):
    """A mapping of a job that judges what is put into it. Entries can be read as attributes too."""

    _kind: MappingOf
    _notes: dict[str, list[tuple[str, str]]]

    def __init__(self, kind: MappingOf, items: Mapping[str, Any], notes: dict[str, list[tuple[str, str]]]) -> None:
        super().__init__(items)
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_notes", notes)

    def __setitem__(self, key: str, value: Any) -> None:
        report = Report()
        judged = self._kind.structure({key: value}, (), report)
        ValidationError.raise_for(report)
        super().__setitem__(*next(iter(judged.items())))
        self._notes.pop(key, None)
        self._notes.update(judged._notes)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **values: Any) -> None:
        for key, value in dict(*args, **values).items():
            self[key] = value

    def __ior__(self, other: Any) -> Items:  # type: ignore[override,misc]
        self.update(other)
        return self

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name.startswith("_"):  # asked for by copy, pickle and notebooks, not by people
            raise AttributeError(name)
        near = nearest(name, self)
        hint = f"did you mean '{near}'?" if near else f"there are {', '.join(self)}" if self else "it is empty"
        raise AttributeError(f"there is no '{name}' here; {hint}")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(name)
        del self[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return Items, (self._kind, dict(self), self._notes)

    def __deepcopy__(self, memo: dict[int, Any]) -> Items:
        import copy

        return Items(self._kind, copy.deepcopy(dict(self), memo), copy.deepcopy(self._notes, memo))


class MappingOf(Kind):
    """A mapping from names to values of one kind; `key_pattern` and `key_says` give the form of the names."""

    says = "a mapping"

    def __init__(
        self, kind: Kind, *, key_pattern: str | None = None, key_says: str = "", key_fix: str = "rename it"
    ) -> None:
        self.kind = kind
        self.key_pattern = key_pattern
        self.key_says = key_says
        self.key_fix = key_fix

    def empty(self) -> Items:
        """A mapping of this kind with nothing in it."""
        return Items(self, {}, {})

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if not isinstance(value, Mapping):
            return self.refuse(value, path, report, "write 'name: value' lines under it")
        items: dict[str, Any] = {}
        notes: dict[str, list[tuple[str, str]]] = {}
        for key, item in value.items():
            name = key if isinstance(key, str) else str(key)
            where = (*path, name)
            if not storable(name) or (self.key_pattern and not re.fullmatch(self.key_pattern, name)):
                report.error(
                    where, f"the name must be {self.key_says or 'text'}, got {show(key)}", self.key_fix, key=True
                )
            before = len(report.findings)
            items[name] = self.kind.structure(item, where, report)
            fresh = [f for f in report.findings[before:] if not f.is_error and f.path == where]
            if fresh:
                notes[name] = [(f.message, f.fix) for f in fresh]
            elif isinstance(value, Items) and name in value._notes:
                notes[name] = value._notes[name]
                for note in notes[name]:
                    report.warn(where, *note)
        return Items(self, items, notes)

    def schema(self) -> Schema:
        schema: Schema = {"type": "object", "additionalProperties": self.kind.schema()}
        if self.key_pattern:
            schema["propertyNames"] = {"pattern": f"^(?:{self.key_pattern})$"}
        return schema

    def dump(self, value: Any, rewrite: Rewrite | None = None) -> Any:
        return {key: self.kind.dump(item, rewrite) for key, item in value.items()}


class ListOf(Kind):
    """A list of values of one kind. With `single`, one value alone is taken and kept as it is."""

    says = "a list"

    def __init__(self, kind: Kind, *, single: bool = False) -> None:
        self.kind = kind
        self.single = single
        if single:
            self.says = f"{kind.says} or a list"

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if isinstance(value, list | tuple):
            return [self.kind.structure(item, (*path, index), report) for index, item in enumerate(value)]
        if self.single and not isinstance(value, Mapping):
            return self.kind.structure(value, path, report)
        return self.refuse(value, path, report)

    def schema(self) -> Schema:
        schema: Schema = {"type": "array", "items": self.kind.schema()}
        return {"anyOf": [self.kind.schema(), schema]} if self.single else schema

    def dump(self, value: Any, rewrite: Rewrite | None = None) -> Any:
        return [self.kind.dump(item, rewrite) for item in value] if isinstance(value, list) else value


class PathOrMapping(LocalPath):
    """The path of a YAML file, or the content of such a file written in place."""

    says = "a path or a mapping"

    def __init__(self, *, empty: bool = True, in_code: bool = False) -> None:
        super().__init__(empty=empty)
        self.in_code = in_code  # relative to the code folder, so the same wherever the job file lies

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if isinstance(value, Mapping):
            return PlainMapping().structure(value, path, report)
        return super().structure(value, path, report)

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "string"}, {"type": "object"}]}

    def dump(self, value: Any, rewrite: Rewrite | None = None) -> Any:
        if isinstance(value, dict):
            return PlainMapping().dump(value)
        return value if self.in_code else super().dump(value, rewrite)


def whole(value: Any) -> int | None:
    """The whole number that `value` is or exactly spells, or None. bool is no number here."""
    if isinstance(value, (bool, float)):
        return None
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", value) else None
    try:
        return int(value.__index__())
    except (AttributeError, TypeError, ValueError):
        return None


def is_scalar(value: Any) -> bool:
    """Whether the value is text, a finite number, or a bool."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | bool | int) and not (isinstance(value, int) and value.bit_length() > 2000)


def storable(text: str) -> bool:
    """Whether the text can go into a file, an argument and an environment variable."""
    return "\0" not in text and (text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text))


def path_text(value: Any) -> Any:
    """A path object as text; anything else as it is."""
    if isinstance(value, os.PathLike):
        text = os.fspath(value)
        return text if isinstance(text, str) else os.fsdecode(text)
    return value


def any_case(names: Iterable[str]) -> str:
    """A regular expression for any of the names in any letter case; JSON Schema knows no flag for it."""
    spelt = (
        "".join(f"[{char.lower()}{char.upper()}]" if char.isalpha() else re.escape(char) for char in name)
        for name in names
    )
    return f"^(?:{'|'.join(spelt)})$"

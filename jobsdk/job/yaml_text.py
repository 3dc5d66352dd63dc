"""YAML text: reading it with the position of every value, and writing it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from jobsdk.findings import Finding, Path, SourceLocation, show

#: The most values that a file may have after its aliases are followed, and the deepest that they may be nested.
VALUE_LIMIT = 100_000
DEPTH_LIMIT = 40

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_SCALARS = {f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "value")}
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_UNREADABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Positions:
    """Where every key and value of a file stands; a `Places`."""

    def __init__(self, file: str, text: str = "") -> None:
        self.file = file
        self._lines = _BREAK.split(text)
        self._keys: dict[Path, SourceLocation] = {}
        self._values: dict[Path, SourceLocation] = {}
        self._ends: dict[Path, SourceLocation] = {}

    def note(self, path: Path, value: Any, key: Any = None) -> None:
        """Remembers the places of a value's node and of its key's node."""
        self._values[path] = self.at(value.start_mark)
        self._ends[path] = self.at(value.end_mark)
        if key is not None:
            self._keys[path] = self.at(key.start_mark)

    def at(self, mark: Any) -> SourceLocation:
        """The place of a mark of the YAML parser."""
        return SourceLocation(self.file, mark.line + 1, mark.column + 1)

    def find(self, path: Path, *, key: bool = False, within: str = "", nth: int = 0) -> SourceLocation | None:
        """As of `Places`."""
        for length in range(len(path), -1, -1):
            head = path[:length]
            place = (self._keys.get(head) if key else None) or self._values.get(head)
            if place is not None:
                return self._within(place, path, within, nth) if within and length == len(path) else place
        return SourceLocation(self.file) if self.file else None

    def _within(self, place: SourceLocation, path: Path, text: str, nth: int) -> SourceLocation:
        end = self._ends.get(path)
        if place.line is None or place.column is None or end is None or end.line is None:
            return place
        for number in range(place.line - 1, min(end.line, len(self._lines))):
            start = place.column - 1 if number == place.line - 1 else 0
            stop = end.column - 1 if number == end.line - 1 and end.column else None
            while (column := self._lines[number].find(text, start, stop)) >= 0:
                if not nth:
                    return SourceLocation(self.file, number + 1, column + 1)
                nth -= 1
                start = column + len(text)
        return place

    def without(self, path: Path) -> Positions:
        """As of `Places`."""
        return self.replace(path, None)

    def replace(self, path: Path, place: SourceLocation | None) -> Positions:
        """The positions with `place` for everything at and under `path`."""
        positions = Positions(self.file)
        positions._lines = self._lines
        positions._keys = {at: known for at, known in self._keys.items() if at[: len(path)] != path}
        positions._values = {at: known for at, known in self._values.items() if at[: len(path)] != path}
        positions._ends = self._ends
        if place is not None:
            positions._values[path] = place
        return positions


def decode(content: bytes | str, label: str, problems: list[Finding]) -> str:
    """The text of a file: UTF-8, or UTF-16 with its mark."""
    try:
        text = content if isinstance(content, str) else content.decode(_encoding(content))
    except UnicodeDecodeError as error:
        before = content[: error.start] if isinstance(content, bytes) else b""
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        problems.append(Finding("error", (), "is not UTF-8 text", "save the file as UTF-8", label, line, column))
        return ""
    bad = _UNREADABLE.search(text)
    if bad:
        lines = _BREAK.split(text[: bad.start()])
        message = f"holds the character U+{ord(bad[0]):04X}, which YAML cannot hold"
        fix = 'remove it, or write it as an escape in "double quotes"'
        problems.append(Finding("error", (), message, fix, label, len(lines), len(lines[-1]) + 1))
    return text


def _encoding(content: bytes) -> str:
    return "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def parse(text: str, positions: Positions, problems: list[Finding], path: Path = (), *, or_text: bool = False) -> Any:
    """The data of YAML text at `path`, with the position of each value; what is wrong goes to `problems`.

    With `or_text`, text that is no YAML is returned as it is.
    """
    loader = _Loader(text)
    try:
        if _is_too_deep(text, positions, problems):
            return None
        documents: list[Any] = []
        while loader.check_node() and len(documents) < 2:
            node = loader.get_node()
            if not (isinstance(node, yaml.ScalarNode) and not node.value and not node.style):
                documents.append(node)
        if len(documents) > 1:
            place = positions.at(documents[1].start_mark)
            message, fix = "a second document begins here", "keep one job in a file"
            problems.append(Finding("error", (), message, fix, *place))
        return _Builder(positions, problems).build(documents[0], path, 0) if documents else None
    except yaml.YAMLError as error:
        if or_text:
            return text
        problems.append(_syntax(error, text, positions))
    except ValueError as error:
        problems.append(Finding("error", (), f"is no YAML: {error}", "", positions.file))
    except _Stop:
        pass
    finally:
        loader.dispose()
    return None


def _is_too_deep(text: str, positions: Positions, problems: list[Finding]) -> bool:
    """Whether the text is nested deeper than allowed. libyaml would compose it by recursion, and end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_LIMIT:
            message = f"is nested more than {DEPTH_LIMIT} levels deep, which no job is"
            problems.append(Finding("error", (), message, "", *positions.at(event.start_mark)))
            return True
    return False


def _syntax(error: yaml.YAMLError, text: str, positions: Positions) -> Finding:
    """What the YAML parser says, in words of ours where they are clearer."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return Finding("error", (), f"is no YAML: {error}", "", positions.file)
    mark = error.problem_mark or error.context_mark
    place = positions.at(mark) if mark else SourceLocation(positions.file)
    lines = _BREAK.split(text)
    line = lines[place.line - 1] if place.line and place.line <= len(lines) else ""
    problem = str(error.problem or error)
    if "\t" in line[: (place.column or 1)] and not line[: (place.column or 1)].strip():
        return Finding("error", (), "a tab indents this line", "indent with spaces; YAML allows no tabs there", *place)
    if "mapping values are not allowed" in problem:
        message, fix = _colon(lines, place)
        return Finding("error", (), message, fix, *place)
    context = f" {error.context}" if error.context else ""
    return Finding("error", (), f"the YAML cannot be read{context}: {problem}", "", *place)


def _colon(lines: list[str], place: SourceLocation) -> tuple[str, str]:
    """What a `:` that YAML does not expect means: a key that is alone in its line is indented wrongly."""
    number = place.line or 1
    line = lines[number - 1] if number <= len(lines) else ""
    if line.count(": ") + line.rstrip().endswith(":") == 1 and line[: (place.column or 1) - 1].strip().isidentifier():
        above = next((at for at in range(number - 1, 0, -1) if lines[at - 1].strip()), None)
        if above is not None:
            return "this key is indented differently from its neighbors", f"align it with line {above}"
    return "this line has a second ':'", "put the value in quotes"


def _keeps_text(path: Path) -> bool:
    """Whether numbers at the path are kept as text, and so as they are written: 010 and 1.10 are neither 8 nor 1.1."""
    if path[:1] in (("environment",), ("outputs",)) and path[-1:] == ("version",):
        return True
    inner = path[1:] if path[:1] == ("environment",) else path
    return len(inner) == 2 and inner[0] in ("tags", "properties", "environment_variables")


class _Stop(Exception):
    """Ends building; the problem has been noted."""


class _Builder:
    """Makes plain data of YAML nodes. Dates stay text, and keys are text as written."""

    def __init__(self, positions: Positions, problems: list[Finding]) -> None:
        self._positions = positions
        self._problems = problems
        self._values = 0
        self._constructor = yaml.constructor.SafeConstructor()

    def build(self, node: Any, path: Path, depth: int, key: Any = None) -> Any:
        """The data of a node."""
        self._values += 1
        if self._values > VALUE_LIMIT:
            self._stop(node, path, f"has more than {VALUE_LIMIT:,} values once its aliases are followed")
        if depth > DEPTH_LIMIT:
            self._stop(node, path[:4], f"is nested more than {DEPTH_LIMIT} levels deep")
        self._positions.note(path, node, key)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.build(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return self._scalar(node, path)
        tag = str(node.tag).replace(_TAG, "!!")
        self._problem(node, path, f"the tag {show(tag)} has no meaning in a job file", "write a plain value")
        return None

    def _scalar(self, node: Any, path: Path) -> Any:
        name = node.tag[len(_TAG) :]
        try:
            if name == "null":
                return None
            if name == "bool":
                return self._constructor.bool_values[node.value.lower()]
            if name in ("int", "float") and _keeps_text(path):
                return node.value
            if name in ("int", "float") and len(node.value) < 400:
                made = self._constructor
                return made.construct_yaml_int(node) if name == "int" else made.construct_yaml_float(node)
        except (ValueError, KeyError, IndexError, OverflowError):
            pass
        else:
            if name not in ("int", "float"):
                return node.value
        self._problem(node, path, f"{show(node.value)} cannot be read as a value of type {name}", "put it in quotes")
        return None

    def _mapping(self, node: Any, path: Path, depth: int) -> dict[str, Any]:
        data: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                self._merge(value, path, depth, merged)
            elif not isinstance(key, yaml.ScalarNode):
                self._problem(key, path, "a key must be plain text", "remove the brackets or braces, or use quotes")
            elif key.value in lines:
                first = lines[key.value]
                where = (*path, key.value)
                self._problem(key, where, f"is given twice, first in line {first}", "keep one of the two")
            else:
                lines[key.value] = key.start_mark.line + 1
                data[key.value] = self.build(value, (*path, key.value), depth + 1, key)
        return {**merged, **data} if merged else data

    def _merge(self, node: Any, path: Path, depth: int, merged: dict[str, Any]) -> None:
        """Adds what `<<` brings in; of several mappings the first wins, as YAML has it."""
        several = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for each in several:
            if not isinstance(each, yaml.MappingNode):
                self._problem(each, path, "'<<' takes a mapping or a list of mappings", "give it the alias of one")
                continue
            brought = self.build(each, path, depth + 1)
            for name, value in (brought or {}).items():  # nothing where the mapping itself was refused
                merged.setdefault(name, value)

    def _problem(self, node: Any, path: Path, message: str, fix: str) -> None:
        self._problems.append(Finding("error", path, message, fix, *self._positions.at(node.start_mark)))

    def _stop(self, node: Any, path: Path, message: str) -> None:
        self._problem(node, path, message, "write the job without it")
        raise _Stop


def write(data: Mapping[str, Any]) -> str:
    """Plain data as the text of a job file; text of several lines is written as such."""
    return str(
        yaml.dump(
            dict(data), Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=1 << 20
        )
    )


class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes everything in full, and text of several lines line by line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar(f"{_TAG}str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, _represent_text)

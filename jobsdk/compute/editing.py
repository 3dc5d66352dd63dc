"""Writing computes.yml: an entry is added to the text, and everything else in it, comments too, stays as it is."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobsdk import compute as computes
from jobsdk.errors import ComputeError


def add(file: Path, name: str, kind: str, settings: Mapping[str, Any]) -> None:
    """Add the compute `name` to a file, which is made if there is none.

    Raises ComputeError for a name that is there already, for settings that the type does not take, and for a file
    that cannot be read or is written in a way in which nothing can be added safely.
    """
    if not name.strip():
        raise ComputeError("a compute needs a name")
    computes.type_of(kind)(name, settings)
    entry = {"type": kind, **settings}
    try:
        before = file.read_bytes().decode() if file.exists() else ""
    except (OSError, ValueError) as error:
        raise ComputeError(f"{file}: cannot be read: {error}") from None
    content = computes.read(file, before.encode())
    if name in (content.get("computes") or {}):
        raise ComputeError(f"{file} has a compute {name} already. Fix: change it there, or take another name")
    expected = {**content, "computes": {**(content.get("computes") or {}), name: entry}}
    after = _added(before, name, entry)
    if computes.read(file, after.encode()) != expected:  # a way of writing that was not thought of
        text = "\n".join(_block({name: entry}, "  "))
        raise ComputeError(f"{file}: nothing can be added to it safely. Fix: add it by hand:\ncomputes:\n{text}")
    _write(file, after)


def _added(text: str, name: str, entry: Mapping[str, Any]) -> str:
    """The text of a file with one more compute."""
    import yaml

    root = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return _with_newline(text) + "\n".join(["computes:", *_block({name: entry}, "  "), ""])
    found = next((pair for pair in root.value if pair[0].value == "computes"), None)
    if found is None:
        if root.flow_style:
            return _into_braces(text, root, {"computes": {name: entry}})
        at = _line_after(text, _last(root))
        return _with_newline(text[:at]) + "\n".join(["computes:", *_block({name: entry}, "  "), ""]) + text[at:]
    key, value = found
    if isinstance(value, yaml.MappingNode) and value.flow_style:
        return _into_braces(text, value, {name: entry})
    is_block = isinstance(value, yaml.MappingNode)
    indent = " " * (value.start_mark.column if is_block else key.start_mark.column + 2)
    at = _line_after(text, _last(value) if is_block else key.end_mark.index)
    return _with_newline(text[:at]) + "\n".join([*_block({name: entry}, indent), ""]) + text[at:]


def _into_braces(text: str, node: Any, more: Mapping[str, Any]) -> str:
    """The text with `more` at the end of a mapping that is written as {a: b}."""
    comma, at = "", node.end_mark.index - 1
    if node.value:  # after the last value, behind which there may be a comma, a comment, an end of line
        comma, at = ", ", node.value[-1][1].end_mark.index
    return text[:at] + comma + json.dumps(more, ensure_ascii=False)[1:-1] + text[at:]


def _last(node: Any) -> int:
    """Where the last value of a node ends: its own mark may lie behind the comments that follow."""
    import yaml

    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(node, yaml.MappingNode) else last
    return int(node.end_mark.index)


def _line_after(text: str, index: int) -> int:
    """The beginning of the line after the one that holds the character before `index`."""
    end = text.find("\n", max(0, index - 1))
    return len(text) if end < 0 else end + 1


def _block(mapping: Mapping[str, Any], indent: str) -> list[str]:
    """A mapping as indented lines of YAML."""
    import yaml

    text = yaml.safe_dump(dict(mapping), sort_keys=False, allow_unicode=True, width=120)
    return [indent + line for line in text.splitlines()]


def _with_newline(text: str) -> str:
    return text + "\n" if text and not text.endswith("\n") else text


def _write(file: Path, text: str) -> None:
    """Put the text in the file's place at once. Raises ComputeError."""
    target = Path(os.path.realpath(file))
    partly = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        try:
            partly.write_bytes(text.encode())
            if mode is not None:
                partly.chmod(mode)
            partly.replace(target)
        finally:
            partly.unlink(missing_ok=True)
    except OSError as error:
        raise ComputeError(f"{file}: cannot be written: {error.strerror}") from error

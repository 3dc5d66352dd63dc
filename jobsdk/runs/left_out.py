"""What a run's copy of the code lacks, and whether that is why the run has failed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsdk.snapshot.listing import LeftOut

if TYPE_CHECKING:
    from jobsdk.runs.folder import RunFolder

_MODULE = re.compile(r"No module named '?([\w.]+)")
_FILE_CLASSES = ("file_not_found", "import_error", "not_executable")
_NO_FILE = re.compile(r"No such file|not found|cannot open|can't open|does not exist", re.IGNORECASE)
_PATHS = re.compile(r"""(?<!\w)'([^']+)'|"([^"]+)"|([^\s:'"]+): No such file""")
_LAST = 3  # lines of output in which a missing file is looked for


class Missing(NamedTuple):
    """A path that the run needed and its copy of the code lacks."""

    message: str
    advice: str


def of_run(folder: RunFolder) -> list[LeftOut]:
    """What was not copied with the code of a run."""
    items = folder.read_json("snapshot.json").get("left_out") or []
    return [LeftOut(one["path"], one["reason"], False, one.get("rule", "")) for one in items]


def missing(folder: RunFolder, cause: Mapping[str, Any]) -> Missing | None:
    """What the failure needed, if it was left out of the code."""
    said = [str(cause.get("error") or ""), *map(str, (cause.get("last_lines") or [])[-_LAST:])]
    needed = list(_needed(cause, said))
    if not needed:
        return None
    roots = tuple(filter(None, (str(folder.code), folder.facts().get("working_dir"))))
    for item in of_run(folder):
        if any(_is_in(path, item.path, roots) for path in needed):
            return Missing(f"{item.path} was left out of the code ({item.rule or item.reason})", _advice(item))
    return None


def _needed(cause: Mapping[str, Any], said: list[str]) -> Iterator[str]:
    """The paths that a failure may be about: of a module each file and folder that would bring it."""
    for text in said:
        module = _MODULE.search(text)
        if module is not None:
            parts = module[1].split(".")
            for stop in range(1, len(parts) + 1):
                path = "/".join(parts[:stop])
                yield from (path, f"{path}.py")
        elif cause.get("class") in _FILE_CLASSES or _NO_FILE.search(text):
            yield from (next(filter(None, match.groups())) for match in _PATHS.finditer(text))


def _is_in(path: str, left_out: str, roots: tuple[str, ...]) -> bool:
    """Whether a path is what was left out, or lies in it."""
    for root in roots:
        path = path.removeprefix(root.rstrip("/") + "/")
    return f"{os.path.normpath(path)}/".startswith(left_out.rstrip("/") + "/")


def _advice(item: LeftOut) -> str:
    """How to have it copied: a line in the .amlignore that wins over the rule."""
    file = item.rule.rpartition(":")[0]
    folder = "" if os.path.isabs(file) else os.path.dirname(file)
    line = f"!{os.path.relpath(item.path, folder or '.')}" + "/" * item.path.endswith("/")
    where = os.path.join(folder, ".amlignore")
    return f"add the line {line} to {where} in the code folder, or make it an input if it is data"

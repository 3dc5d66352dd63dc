"""References to inputs and outputs in a command: `${{inputs.x}}`, `${{outputs.y}}` and optional `$[[ ... ]]`.

The forms are Azure ML's, its older `{inputs.x}` among them. They are replaced as text, as its service does it; the
result is read by a shell, and by nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

#: The namespaces that a command job knows.
NAMESPACES = ("inputs", "outputs")

_EXPRESSION = re.compile(r"\$\{\{(?P<body>[^{}]*)\}\}")
#: Azure ML's older form, by azure-ai-ml's own pattern: it sends `${{...}}` in its place.
_OLDER = re.compile(r"(?<!\{)\{(?P<older>(?:inputs|outputs|search_space)\.[^}]*)\}(?!\})")
_EITHER = re.compile(f"{_EXPRESSION.pattern}|{_OLDER.pattern}")
_NAME = re.compile(r"\s*(?P<namespace>inputs|outputs)\.(?P<name>[A-Za-z0-9_.-]+)\s*")
#: What resembles the older form, but stays as it is.
_RESEMBLING = re.compile(r"(?<!\{)\{\s+(?P<namespace>inputs|outputs)\.(?P<name>[A-Za-z0-9_.-]+)\s*\}(?!\})")


class Ref(NamedTuple):
    """A reference to an input or output. `offset` is where it begins in the text."""

    namespace: str
    name: str
    offset: int


Part = str | Ref


class Problem(NamedTuple):
    """Something in a command that is not a reference though it looks like one; `text`, at `offset`, is at fault."""

    severity: str
    text: str
    message: str
    fix: str
    offset: int


def parse(text: str) -> tuple[Part, ...]:
    """The text in parts: plain text, and references. What is no proper reference stays plain text."""
    parts: list[Part] = []
    end = 0
    for match in _EITHER.finditer(text):
        name = _NAME.fullmatch(_body(match))
        if name is None:
            continue
        if match.start() > end:
            parts.append(text[end : match.start()])
        parts.append(Ref(name["namespace"], name["name"], match.start()))
        end = match.end()
    if end < len(text):
        parts.append(text[end:])
    return tuple(parts)


def _body(match: re.Match[str]) -> str:
    return match["older"] if match["body"] is None else match["body"]


def current(text: str) -> str:
    """The text with `${{...}}` in place of each reference in the older form."""
    return _OLDER.sub(r"${{\g<older>}}", text)


def written(text: str, offset: int) -> str:
    """The reference at `offset`, as the user wrote it."""
    end = "}}" if text[offset] == "$" else "}"
    return text[offset : text.index(end, offset) + len(end)]


def _groups(text: str) -> Iterator[tuple[int, int]]:
    """Where each `$[[ ... ]]` begins and ends."""
    end = 0
    while (start := text.find("$[[", end)) >= 0 and (close := text.find("]]", start)) >= 0:
        end = close + 2
        yield start, end


def references(text: str) -> Iterator[tuple[Ref, bool]]:
    """Every reference of the text, and whether it stands in `$[[ ]]`."""
    groups = _groups(text)
    nowhere = (len(text), len(text) + 1)
    start, end = next(groups, nowhere)
    for part in parse(text):
        if isinstance(part, Ref):
            while part.offset >= end:
                start, end = next(groups, nowhere)
            yield part, part.offset > start


def render_optional(text: str, present_names: Container[str]) -> str:
    """The text without its `$[[ ]]` marks; a group that names an input which is not present is left out whole."""
    pieces, end = [], 0
    for start, stop in _groups(text):
        body = text[start + 3 : stop - 2]
        absent = any(
            isinstance(part, Ref) and part.namespace == "inputs" and part.name not in present_names
            for part in parse(body)
        )
        pieces += [text[end:start], "" if absent else body]
        end = stop
    return "".join([*pieces, text[end:]])


def text_of(value: str | int | float | bool) -> str:
    """A literal as a command shows it: as Azure ML does, True is "True" and 1e-5 is "1e-05"."""
    return str(value)


def problems(text: str) -> Iterator[Problem]:
    """What in the text looks like an expression and is none."""
    for match in re.finditer(r"\$\{\{", text):
        expression = _EXPRESSION.match(text, match.start())
        if expression is None:
            part = text[match.start() : match.start() + 24].split("\n")[0]
            message, fix = f"'{part}' is not closed by '}}}}'", "write it as ${{inputs.name}}"
            yield Problem("error", part, message, fix, match.start())
        elif _NAME.fullmatch(expression["body"]) is None:
            yield _misnamed(expression[0], expression["body"].strip(), match.start())
    closed = max((end for _, end in _groups(text)), default=0)
    if (start := text.find("$[[", closed)) >= 0:
        part = text[start : start + 24].split("\n")[0]
        message, fix = f"'{part}' is not closed by ']]'", "write it as $[[--option ${{inputs.name}}]]"
        yield Problem("error", part, message, fix, start)
    for match in _EITHER.finditer(text):
        if match["older"] is not None:
            yield _older(match, text)
    for match in _RESEMBLING.finditer(text):
        meant = f"${{{{{match['namespace']}.{match['name']}}}}}"
        message, fix = f"'{match[0]}' is left as it is", f"if it is a reference, write {meant}"
        yield Problem("warning", match[0], message, fix, match.start())


def _older(match: re.Match[str], text: str) -> Problem:
    """What to say of a reference in the older form, which is one on every compute."""
    name = _NAME.fullmatch(match["older"])
    if name is None:
        found = _misnamed(match[0], match["older"].strip(), match.start())
        return found._replace(fix=f"{found.fix}; for text that is no reference, put a space after '{{'")
    meant = f"${{{{{name['namespace']}.{name['name']}}}}}"
    start = match.start() - text[: match.start()].endswith("$")
    whole = text[start : match.end()]
    message = f"'{whole}' is read as " + ("'$' and " if whole.startswith("$") else "") + meant
    return Problem("warning", whole, message, f"write {meant}", start)


def _misnamed(whole: str, body: str, offset: int) -> Problem:
    from jobsdk.findings import nearest, shorten

    namespace, dot, name = body.partition(".")
    shown = shorten(whole, 60)
    if namespace in ("parent", "search_space"):
        return Problem("error", whole, f"'{shown}' has a meaning only in a pipeline or a sweep", "use inputs", offset)
    near = nearest(namespace, NAMESPACES)
    if near and dot and re.fullmatch(r"[\w.-]+", name) and namespace not in NAMESPACES:
        fix = f"did you mean ${{{{{near}.{name}}}}}?"
    else:
        fix = "write ${{inputs.name}} or ${{outputs.name}}"
    return Problem("error", whole, f"'{shown}' names nothing", fix, offset)


def quotes_at(text: str, offsets: Iterable[int]) -> Iterator[str]:
    """The quote that encloses each of the offsets (in rising order) in a shell's eyes: `'`, `"`, or nothing.

    A comment ends with its line; quotes inside `$( )` inside quotes are read as if on one level.
    """
    quote = ""
    position = 0
    for offset in offsets:
        while position < offset:
            char = text[position]
            if quote:
                if char == "\\" and quote == '"':
                    position += 1
                elif char == quote:
                    quote = ""
            elif char == "\\":
                position += 1
            elif char in "'\"":
                quote = char
            elif char == "#" and (position == 0 or text[position - 1] in " \t\n;"):
                end = text.find("\n", position, offset)
                if end < 0:
                    break
                position = end
            position += 1
        yield quote


def breaks(value: str, quote: str) -> bool:
    """Whether a shell would split or interpret `value` where it stands inside this quote ("" for none)."""
    if quote == "'":
        return "'" in value
    if quote == '"':
        return any(char in value for char in '"$`\\')
    return not value or re.fullmatch(r"[\w@%+=:,./-]*", value) is None

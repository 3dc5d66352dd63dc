"""What reaches a terminal: text and colors only, whoever has written it; and how much of it a line has room for."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer

# -- nothing but text and colors -------------------------------------------------------------------------------------

_STRING = r"[^\x07\x1b\x80-\x9f\n]*(?:\x07|\x9c|\x1b\\)?"  # the rest of a title, a link, a text for the clipboard ...
_CONTROL = re.compile(
    r"(?P<color>\x1b\[[0-9;:]{0,48}m)"
    r"|(?:\x1b\[|\x9b)[0-?]{0,48}[ -/]{0,8}[@-~]"  # moves the cursor, clears, changes modes
    rf"|(?P<string>(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]){_STRING})"
    r"|\x1b[ -/]{0,8}[0-~]?"
    # Other control characters, and those that turn the direction of writing.
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_REST = re.compile(_STRING)
_UNENDED = re.compile(r"(?:\x1b(?:\[[0-?]{0,48})?|\x9b[0-?]{0,48})[ -/]{0,8}\Z")
_LONGEST = 64  # characters, more than what is unended can have


class Filter:
    """Lets text, tabs, ends of lines, carriage returns and colors (SGR) pass, and no other control sequence, also where
    it comes in several pieces."""

    def __init__(self) -> None:
        self._held = ""  # the beginning of what may become a sequence
        self._in_string = False

    def __call__(self, text: str) -> str:
        text = self._held + text
        self._held = ""
        if self._in_string:
            rest = _REST.match(text)
            assert rest is not None  # it may be empty
            self._in_string = rest.end() == len(text) and not _ends_string(rest[0])
            text = text[rest.end() :]
        unended = _UNENDED.search(text, max(0, len(text) - _LONGEST))
        if unended is not None:
            self._held, text = unended[0], text[: unended.start()]
        return _CONTROL.sub(self._kept, text)

    def _kept(self, found: re.Match[str]) -> str:
        string = found["string"]
        if string and found.end() == len(found.string) and not self._held and not _ends_string(string):
            self._in_string = True
        return found["color"] or ""


def _ends_string(text: str) -> bool:
    return text.endswith(("\x07", "\x9c", "\x1b\\"))


class Guard(io.BufferedIOBase):
    """Writes to a terminal what `Filter` lets pass. It is never in the way of closing it."""

    def __init__(self, terminal: io.RawIOBase | io.BufferedIOBase, encoding: str = "utf-8") -> None:
        self._terminal = terminal
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._filter = Filter()

    def write(self, data: Buffer, /) -> int:
        given = bytes(data)
        left = memoryview(self._filter(self._decoder.decode(given)).encode(self._encoding, "replace"))
        while left:
            left = left[self._terminal.write(left) or 0 :]  # Python's unbuffered stdout may take only a part
        return len(given)

    def flush(self) -> None:
        self._terminal.flush()

    def fileno(self) -> int:
        return self._terminal.fileno()

    def isatty(self) -> bool:
        return self._terminal.isatty()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True


def guarded(stream: TextIO) -> TextIO:
    """The stream, or what writes to it through a `Guard` where it is a terminal."""
    buffer = getattr(stream, "buffer", None)
    if buffer is None or isinstance(buffer, Guard) or not stream.isatty():
        return stream
    stream.flush()
    encoding = stream.encoding or "utf-8"
    guard: Any = Guard(buffer, encoding)
    return io.TextIOWrapper(guard, encoding, stream.errors, line_buffering=True, write_through=True)


@contextlib.contextmanager
def guard_output() -> Iterator[None]:
    """Whatever this process writes to stdout and stderr passes a `Guard` where they are terminals."""
    guards = {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        guard = guarded(stream)
        if guard is not stream:
            guards[name] = stream, guard
            setattr(sys, name, guard)
    try:
        yield
    finally:
        for name, (stream, guard) in guards.items():
            if getattr(sys, name) is guard:  # click puts another one there when nobody reads any more
                setattr(sys, name, stream)


# -- a line ----------------------------------------------------------------------------------------------------------


def columns(out: object) -> int:
    """The columns of the terminal that `out` writes to; 80 where that is not known."""
    try:
        return os.get_terminal_size(out.fileno()).columns or 80  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return 80


def painted(pieces: Iterable[tuple[str, str]], room: int) -> bytes:
    """As much of the words, in their colors, as has room in so many columns of a terminal."""
    line = ""
    for words, color in pieces:
        cut = 0
        while cut < len(words) and (wide := _width(words[cut])) <= room:
            cut, room = cut + 1, room - wide
        if cut < len(words):
            room = 0  # nothing narrower from further on
        line += f"{color}{words[:cut]}\x1b[0m" if color and cut else words[:cut]
    return line.encode("utf-8", "replace")


def blank(line: bytes) -> bytes:
    """What wipes out a line that `painted` gave: spaces over it, since a sequence that erases would not pass."""
    return b"\r%s\r" % (b" " * sum(map(_width, _CONTROL.sub("", line.decode()))))


def _width(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):  # drawn onto the one before, or not at all
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1

"""One line of a terminal: how much of some words has room in it."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable


def columns(out: object) -> int:
    """The columns of the terminal that `out` writes to; 80 where that is not known."""
    try:
        return os.get_terminal_size(out.fileno()).columns or 80  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return 80


def painted(pieces: Iterable[tuple[str, str]], room: int) -> bytes:
    """As much of the words, in their colours, as has room in so many columns of a terminal."""
    line = ""
    for words, colour in pieces:
        cut = 0
        while cut < len(words) and (wide := _width(words[cut])) <= room:
            cut, room = cut + 1, room - wide
        if cut < len(words):
            room = 0  # nothing narrower from further on
        line += f"{colour}{words[:cut]}\x1b[0m" if colour and cut else words[:cut]
    return line.encode("utf-8", "replace")


def _width(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):  # drawn onto the one before, or not at all
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1

"""One line of a terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from jobsdk.terminal import columns, painted


@pytest.mark.parametrize(
    ("pieces", "room", "line"),
    [
        ([("abc", ""), ("def", "")], 4, "abcd"),
        ([("日本語", "")], 5, "日本"),
        ([("日本", ""), ("x", "")], 3, "日"),  # and not x, which stands behind
        ([("e\N{COMBINING ACUTE ACCENT}ab", "")], 2, "e\N{COMBINING ACUTE ACCENT}a"),
        ([("ab", "\x1b[2m"), ("cd", "\x1b[32m")], 3, "\x1b[2mab\x1b[0m\x1b[32mc\x1b[0m"),
        ([("ab", "\x1b[2m")], 0, ""),
    ],
)
def test_as_much_as_has_room(pieces: list[tuple[str, str]], room: int, line: str) -> None:
    assert painted(pieces, room).decode() == line


def test_columns() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 33, 0, 0))
    with os.fdopen(theirs, "wb") as terminal:
        assert columns(terminal) == 33
    os.close(ours)
    assert columns(io.BytesIO()) == 80

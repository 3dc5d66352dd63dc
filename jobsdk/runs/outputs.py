"""What is in a folder that a job wrote to, read without following links: one might lead to the reader's own files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from jobsdk.bootstrap.transport.extraction import NOT_REGULAR, LeftOut, stays_inside


class Entry(NamedTuple):
    """A folder; or a regular `file`, which its reader closes; or a `link` that stays inside; or what was `left_out`."""

    path: str  # from the top on
    file: BinaryIO | None = None
    link: str | None = None
    left_out: LeftOut | None = None


def entries(top: Path) -> Iterator[Entry]:
    """Everything below the folder `top`, or `top` itself ("." then) where it is no folder; nothing where it is missing.

    The target of a link is rewritten where it stays inside and does not say so. What cannot be read is left out.
    """
    if not os.path.lexists(top):
        return
    if os.path.islink(top) or not os.path.isdir(top):
        parent = os.open(top.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield _entry(top, ".", str(top.parent), top.name, parent)
        finally:
            os.close(parent)
        return
    errors: list[OSError] = []
    for above, folders, names, handle in os.fwalk(top, onerror=errors.append):
        folders.sort()
        below = os.path.relpath(above, top)
        yield Entry(below)
        for name in sorted([*names, *(name for name in folders if os.path.islink(os.path.join(above, name)))]):
            yield _entry(top, os.path.normpath(os.path.join(below, name)), above, name, handle)
    for error in errors:
        path = os.path.relpath(str(error.filename), top) if error.filename else "."
        yield Entry(path, left_out=LeftOut(path, error.strerror or "it cannot be read"))


def _entry(top: Path, path: str, above: str, name: str, folder: int) -> Entry:
    try:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(facts.st_mode):
            return _link(top, path, above, name, folder)
        if stat.S_ISREG(facts.st_mode):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = open(os.open(name, flags, dir_fd=folder), "rb")  # noqa: SIM115
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return Entry(path, file=file)
            file.close()  # it was replaced meanwhile
    except OSError as error:
        return Entry(path, left_out=LeftOut(path, error.strerror or str(error)))
    return Entry(path, left_out=LeftOut(path, NOT_REGULAR))


def _link(top: Path, path: str, above: str, name: str, folder: int) -> Entry:
    target, depth = os.readlink(name, dir_fd=folder), path.count("/")
    if not stays_inside(depth, target):
        real, here = os.path.realpath(os.path.join(above, name)), os.path.realpath(top)
        if real == here or real.startswith(here + "/"):
            target = os.path.relpath(real, os.path.realpath(above))
    if path == "." or not stays_inside(depth, target):
        return Entry(path, left_out=LeftOut(path, f"a link that leads out of the folder, to {target!a}"))
    return Entry(path, link=target)

"""Putting together what several machines have of one output."""

from __future__ import annotations

import filecmp
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from jobsdk.bootstrap.transport.extraction import LeftOut
from jobsdk.compute.hosts.remote import RemoteHost
from jobsdk.errors import ComputeError


def gather(sources: Sequence[tuple[int, RemoteHost, str]], target: Path) -> list[LeftOut]:
    """Fetch one output from (node, machine, path there) of each to `target`, which is whole if it is there; what was
    left out now.

    Files of the first that has them keep their names; another file of the same name becomes NAME.node-K. Raises
    ComputeError.
    """
    if target.exists():
        return []
    target.parent.mkdir(parents=True, exist_ok=True)
    left: list[LeftOut] = []
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetched-") as folder:
        whole = Path(folder) / "whole"
        for node, host, path in sources:
            part = Path(folder) / str(node)
            left += host.fetch_what_is_there({path: part}).get(path, [])
            if part.is_symlink() or part.is_file():
                _merge_file(part, whole, node)
            elif part.exists():
                _merge(part, whole, node)
        if not os.path.lexists(whole):
            return left
        try:
            os.rename(whole, target)
        except OSError as error:
            if not target.exists():  # else somebody else was faster
                raise ComputeError(f"cannot write {target}: {error.strerror}") from error
    return left


def _merge(part: Path, whole: Path, node: int) -> None:
    whole.mkdir(parents=True, exist_ok=True)
    for entry in sorted(part.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            _merge(entry, whole / entry.name, node)
        else:
            _merge_file(entry, whole / entry.name, node)


def _merge_file(file: Path, place: Path, node: int) -> None:
    if os.path.lexists(place):
        if _same(file, place):
            return
        place = place.with_name(f"{place.name}.node-{node}")
    shutil.move(file, place)


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and os.readlink(one) == os.readlink(other)
    return other.is_file() and filecmp.cmp(one, other, shallow=False)

"""Archives as an attacker would write them."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

#: A member: its kind, its name, and what it leads to or holds.
Member = tuple[bytes, str, str]

FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
FIFO, DEVICE = tarfile.FIFOTYPE, tarfile.CHRTYPE


def packed(members: Sequence[Member]) -> bytes:
    """A tar file of these members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for kind, name, given in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.mode = 0o6777
            if kind == FILE:
                content = os.fsencode(given)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
                continue
            if kind in (LINK, HARD):
                member.linkname = given
            archive.addfile(member)
    return buffer.getvalue()


def _state(folder: Path, but: Sequence[Path]) -> dict[str, tuple[object, ...]]:
    """All that is in a folder apart from what is below `but`: kinds, modes, contents and targets."""
    found: dict[str, tuple[object, ...]] = {}
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if Path(above, name) not in but]
        for name in (*folders, *names):
            path = os.path.join(above, name)
            if Path(path) in but:
                continue
            facts = os.lstat(path)
            content = os.readlink(path) if os.path.islink(path) else ""
            if os.path.isfile(path) and not content:
                content = Path(path).read_bytes().hex()
            found[path] = (facts.st_mode, facts.st_nlink if os.path.isfile(path) else 0, content)
    return found


@contextmanager
def untouched(folder: Path, *targets: Path) -> Iterator[None]:
    """Nothing in the folder changes apart from the targets, and no link in a target leads out of it."""
    before = _state(folder, targets)
    yield
    assert _state(folder, targets) == before
    for target in targets:
        assert not target.is_symlink()
        for above, folders, names in os.walk(target):
            for path in (Path(above, name) for name in (*folders, *names)):
                assert path.is_symlink() or path.is_dir() or path.is_file(), f"{path} is a special file"
                assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(target)), f"{path} leads out"
                assert path.is_symlink() or not path.is_file() or not path.stat().st_mode & 0o7022

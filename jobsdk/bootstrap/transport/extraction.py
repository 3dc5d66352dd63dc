"""Unpacking an archive that somebody else wrote: whatever its members say, nothing outside of the target is written.

Each member is opened relative to its folder's descriptor, one path component at a time and without following links, so
no link can redirect a later member. This file also travels on its own (see `far_end`): it imports no other module of
the bootstrap.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
import zlib
from typing import IO, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

_CHUNK = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
NOT_REGULAR = "not a regular file"

Parts = Tuple[str, ...]


class Refused(tarfile.TarError):
    """No honest sender writes such a member; the message names it."""


class LeftOut(NamedTuple):
    """A file that was not copied, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return "%s (%s)" % (self.path if self.path.isprintable() else ascii(self.path), self.reason)


class Extracted(NamedTuple):
    """The targets (their keys) that something was written to, and the members that were left out."""

    came: Set[str]
    left_out: List[LeftOut]


def extract(
    archive: tarfile.TarFile, targets: Union[str, Mapping[str, str]], keep: bool = False, rights: int = 0o777
) -> Extracted:
    """Unpack `archive` into the folder `targets`; with a mapping each member goes to the target that the first part of
    its name is the key of, and may also be that target as a file.

    Links that lead out of the target and special files are left out. A file that exists is replaced, or with `keep`
    stays. No file gets a permission that `rights` lacks. Raises OSError, tarfile.TarError.
    """
    done = Extracted(set(), [])
    with contextlib.ExitStack() as stack:
        trees: Dict[str, Tree] = {}
        files: Dict[Parts, Tuple[Tree, Parts]] = {}
        try:
            for member in archive:
                member.mode &= rights
                parts = key, *rest = _parts(member.name, targets)
                if key not in trees:
                    trees[key] = stack.enter_context(Tree(targets if isinstance(targets, str) else targets[key]))
                left = _place(archive, member, trees[key], tuple(rest), parts, files, keep)
                if left:
                    done.left_out.append(LeftOut(member.name, left))
                else:
                    done.came.add(key)
        except (ValueError, OverflowError, EOFError, zlib.error) as error:
            raise Refused("it is no whole tar file: %s" % error) from error
    return done


def _parts(name: str, targets: Union[str, Mapping[str, str]]) -> Parts:
    """The key of the target ("" of a single one), and the path below it."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Refused("it has a member outside its folder: %s" % ascii(name))
    if isinstance(targets, str):
        return ("", *parts)
    if not parts or parts[0] not in targets:
        raise Refused("it has a member that was not asked for: %s" % ascii(name))
    return parts


def _place(
    archive: tarfile.TarFile, member: tarfile.TarInfo, tree: Tree, rest: Parts, parts: Parts,
    files: Dict[Parts, Tuple[Tree, Parts]], keep: bool,
) -> str:  # fmt: skip
    """Write one member; why it was left out, or "". `files` are the regular files so far, for hard links."""
    if member.isdir():
        tree.folder(rest)
        return ""
    if not rest and (parts == ("",) or member.issym()):
        raise Refused("%s itself is no folder" % ascii(member.name))
    if member.issym() and not stays_inside(len(rest) - 1, member.linkname):
        return "a link that leads out of the folder, to %s" % ascii(member.linkname)
    if not (member.isreg() or member.issym() or member.islnk()):
        return NOT_REGULAR
    if keep and tree.has(rest):
        if tree.is_file(rest):
            files[parts] = tree, rest
        return ""
    if member.issym():
        files.pop(parts, None)
        tree.link(rest, member.linkname)
        return ""
    if member.islnk():
        source = files.get(_source(member.linkname, parts))
        if source is None:
            names = ascii(member.name), ascii(member.linkname)
            raise Refused("%s is a hard link to %s, which is no earlier file of the archive" % names)
        if source != (tree, rest):
            tree.hard_link(rest, *source)
    else:
        content = archive.extractfile(member)
        if content is None or member.sparse is not None:  # a few bytes of a sparse file can fill any disk
            raise Refused("it has a sparse file: %s" % ascii(member.name))
        tree.write(rest, content, member.mode, member.mtime)
    files[parts] = tree, rest
    return ""


def _source(name: str, parts: Parts) -> Parts:
    found = tuple(part for part in name.split("/") if part not in ("", "."))
    return ("", *found) if parts[0] == "" else found


def stays_inside(depth: int, target: str) -> bool:
    """Whether a link in a folder `depth` levels below the top leads to a place below the top, whatever else is there.

    Only leading `..` are allowed: what a later one leads to depends on other links.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    return bool(target) and not target.startswith("/") and "\0" not in target and ".." not in parts[up:] and up <= depth


class Tree:
    """A file, or a folder and everything below it, that is written without ever following a link.

    Where `path` itself lies is looked up once; links above it are followed.
    """

    def __init__(self, path: str) -> None:
        above, self._name = os.path.split(os.path.abspath(path))
        self._path = path
        os.makedirs(above, exist_ok=True)
        self._above = os.open(above, _FOLDER)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._above)

    def folder(self, parts: Sequence[str]) -> None:
        """Make a folder, and those above it."""
        with self._opened([*parts, ""]):
            pass

    def write(self, parts: Sequence[str], content: IO[bytes], mode: int, mtime: float) -> None:
        """Write a file. It is not writable for others, and keeps nothing of the special bits."""
        with self._opened(parts, is_new=True) as (folder, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(name, flags, mode & 0o755 | 0o600, dir_fd=folder), "wb") as file:
                shutil.copyfileobj(content, file, _CHUNK)
                file.flush()
                with contextlib.suppress(OSError, OverflowError, ValueError):  # a time that the file system cannot hold
                    os.utime(file.fileno(), (mtime, mtime))

    def link(self, parts: Sequence[str], target: str) -> None:
        """Make a symbolic link."""
        with self._opened(parts, is_new=True) as (folder, name):
            os.symlink(target, name, dir_fd=folder)

    def hard_link(self, parts: Sequence[str], other: Tree, source: Sequence[str]) -> None:
        """Make a second name of a regular file of this or another tree."""
        with other._opened(source) as (there, known), self._opened(parts, is_new=True) as (folder, name):
            if not stat.S_ISREG(os.stat(known, dir_fd=there, follow_symlinks=False).st_mode):
                raise Refused("%s is no file any more" % ascii("/".join(source)))
            os.link(known, name, src_dir_fd=there, dst_dir_fd=folder, follow_symlinks=False)

    def has(self, parts: Sequence[str]) -> bool:
        """Whether something has this name."""
        return self._facts(parts) is not None

    def is_file(self, parts: Sequence[str]) -> bool:
        """Whether it is a regular file."""
        facts = self._facts(parts)
        return facts is not None and stat.S_ISREG(facts.st_mode)

    def _facts(self, parts: Sequence[str]) -> Optional[os.stat_result]:
        with self._opened(parts) as (folder, name):
            try:
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return None

    @contextlib.contextmanager
    def _opened(self, parts: Sequence[str], is_new: bool = False) -> Iterator[Tuple[int, str]]:
        """The open folder of a path, made where it is missing, and the path's last part; `is_new` clears its place."""
        *above, name = [self._name, *parts]
        folder = os.dup(self._above)
        try:
            for one in above:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(one, dir_fd=folder)
                below = os.open(one, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = below
            if is_new:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
            yield folder, name
        except OSError as error:
            if not isinstance(error.filename, str) or "/" in error.filename:
                raise
            raise OSError(error.errno, error.strerror, os.path.join(self._path, *parts)) from error
        finally:
            os.close(folder)

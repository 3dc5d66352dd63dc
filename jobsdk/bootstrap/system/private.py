"""Who may read what jobsdk writes: the mode of a folder that jobsdk makes decides for all that it writes there.

Folders of runs, stores of code and caches are 0700 unless the compute's `folder_mode` says otherwise. Files and folders
inside get the same rights, whatever the umask: in a folder of mode 0750 files are 0640, programs 0750. A folder that
others may write was not made by jobsdk (a volume of an engine): there the umask decides, as for any program.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Callable, Iterator, Optional

#: Of new folders.
FOLDER_MODE = 0o700
_OF_OTHERS = 0o002  # see above

_users_umask: Optional[int] = None  # while this process has another one


def replace(path: str, content: bytes) -> None:
    """Replace a file as a whole: readers see the old or the new one, never a part. Raises OSError."""
    temporary = "%s.%s.%d.tmp" % (path, os.uname().nodename, os.getpid())  # nodes may share the folder
    with open(temporary, "wb", opener=opener) as file:
        file.write(content)
    os.replace(temporary, path)


def make_folder(path: str, mode: int = FOLDER_MODE) -> None:
    """Make a folder unless it exists, and the folders above it that are missing. All that are made get `mode`.

    Raises OSError.
    """
    _make_all(path, lambda above: mode)


def make_within(path: str) -> None:
    """Make a folder inside one that jobsdk made, with the rights of that one. Raises OSError."""
    _make_all(path, _mode_inside)


def _make_all(path: str, mode_in: Callable[[str], Optional[int]]) -> None:
    path = path.rstrip("/") or "/"
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above:
        _make_all(above, mode_in)
    mode = mode_in(above)
    if mode is None:
        os.makedirs(path, exist_ok=True)
    else:
        _make(path, mode)


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=opener)`: a new file gets the rights of its folder."""
    return open_file(path, flags)


def open_file(path: str, flags: int, *, executable: bool = False) -> int:
    """As `os.open`: a new file gets the rights of its folder. Raises OSError."""
    flags |= os.O_CLOEXEC
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    mode = _mode_inside(os.path.dirname(path))
    if mode is None:
        return os.open(path, flags, 0o777 if executable else 0o666)
    mode &= 0o777 if executable else 0o666
    if not mode & 0o077:
        return os.open(path, flags, mode)
    # The umask may remove permissions that the folder grants: create exclusively, and set the mode of new files.
    while True:
        if not flags & os.O_EXCL:
            try:
                return os.open(path, flags & ~os.O_CREAT)
            except FileNotFoundError:
                if os.path.islink(path):  # to a file that is not there yet
                    return os.open(path, flags, mode)
        try:
            number = os.open(path, flags | os.O_EXCL, mode)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            continue
        os.fchmod(number, mode)
        return number


def follow(folder: str) -> None:
    """From now on this process, one of jobsdk's own, makes files and folders with the rights of a run's folder.

    The folder is made if it is missing. What the process starts for the user has the user's umask: see `users_umask`.
    Raises OSError.
    """
    global _users_umask
    make_folder(folder)
    mode = stat.S_IMODE(os.stat(folder).st_mode)
    if not mode & _OF_OTHERS:
        before = os.umask(~mode & 0o777)
        if _users_umask is None:
            _users_umask = before


@contextlib.contextmanager
def users_umask() -> Iterator[None]:
    """The umask for what is the user's own: programs, and outputs outside of the run's folder."""
    if _users_umask is None:
        yield
        return
    ours = os.umask(_users_umask)
    try:
        yield
    finally:
        os.umask(ours)


def _make(path: str, mode: int) -> None:
    try:
        os.mkdir(path, mode & 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    else:
        os.chmod(path, mode)


def _mode_inside(folder: str) -> Optional[int]:
    """The rights for what is made in a folder; None where the umask decides."""
    mode = stat.S_IMODE(os.stat(folder or ".").st_mode)
    return None if mode & _OF_OTHERS else mode

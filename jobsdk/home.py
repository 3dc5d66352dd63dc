"""Where jobsdk keeps what it writes on this machine: runs, caches and the history."""

from __future__ import annotations

import os
from pathlib import Path

from jobsdk.bootstrap.system import private
from jobsdk.errors import JobsdkError


def home() -> Path:
    """Where runs, caches and the history are: `$JOBSDK_HOME`, else `jobsdk` in the XDG data home."""
    chosen = os.environ.get("JOBSDK_HOME")
    if chosen:
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification: a relative path there is to be ignored.
    return (Path(data) if os.path.isabs(data) else Path.home() / ".local/share") / "jobsdk"


def make_folder(folder: Path, mode: int = private.FOLDER_MODE) -> Path:
    """Make a folder in `home()` that others cannot read, and return it. Raises JobsdkError if it cannot be made."""
    try:
        private.make_folder(str(folder), mode)
    except OSError as error:
        fix = f"set JOBSDK_HOME (now {os.environ.get('JOBSDK_HOME') or 'not set'}) to a folder that can be written"
        raise JobsdkError(f"{folder} cannot be made: {error.strerror}. Fix: {fix}") from None
    return folder


def runs_folder() -> Path:
    return home() / "runs"


class locked:
    """`with locked(path):` one process or thread at a time. The kernel frees the lock of one that dies."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        import fcntl

        self._file = private.open_file(str(self._path), os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

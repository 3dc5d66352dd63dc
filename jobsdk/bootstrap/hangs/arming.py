"""Making every Python of the ranks able to say where it is, and to import jobsdk.train: see armed/sitecustomize.py."""

from __future__ import annotations

import os
import signal

from ..spec import paths
from ..system import private

#: What asks for the stacks (None: not on this system), and the name of the memory file that takes them.
SIGNAL = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else None
MEMORY_FILE = "/memfd:jobsdk-stacks"

#: Where the archive has the modules of `jobsdk.train`, and the file there that names them.
HELPERS, LIST = "helpers", "list"

_HERE = os.path.dirname(os.path.abspath(__file__))


def prepare(run_dir: str) -> None:
    """Put what is to be imported into the run's folder. Where that fails the ranks run as well, but without it."""
    armed, ours = paths.armed(run_dir), os.path.join(_HERE, "armed")
    package = paths.helpers(run_dir) + "/jobsdk"
    try:
        if os.path.isdir(ours):  # links, so that what Python has compiled is there already
            _link(ours, armed)
            os.makedirs(package, exist_ok=True)
            _link(ours + "/helpers.py", package + "/__init__.py")
            _link(os.path.join(os.path.dirname(os.path.dirname(_HERE)), "train"), package + "/train")
            return
        # Python would import it from inside the archive too, but that takes it several milliseconds.
        _write(ours + "/sitecustomize.py", armed + "/sitecustomize.py")
        _write(ours + "/helpers.py", package + "/__init__.py")
        for name in _content("%s/%s/%s" % (_HERE, HELPERS, LIST)).decode().split():
            _write("%s/%s/%s" % (_HERE, HELPERS, name), "%s/train/%s" % (package, name))
    except OSError:
        pass  # the disk is full, or the folder is gone


def _link(target: str, path: str) -> None:
    try:
        os.symlink(target, path)
    except FileExistsError:
        pass  # another node of this machine has done it


def _write(name: str, path: str) -> None:
    """Write a file of the archive; another node of this machine may do it at the same time."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    private.replace(path, _content(name))


def _content(name: str) -> bytes:
    content: bytes = __loader__.get_data(name)  # type: ignore[name-defined]
    return content

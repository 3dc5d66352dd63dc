"""Making every Python of the ranks able to say where it is: see armed/sitecustomize.py."""

from __future__ import annotations

import os
import signal

from . import layout

#: What asks for the stacks (None: not on this system), and the name of the memory file that takes them.
SIGNAL = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else None
MEMORY_FILE = "/memfd:jobsdk-stacks"

_HERE = os.path.dirname(os.path.abspath(__file__))


def prepare(run_dir: str) -> None:
    """Put the folder that arms into the run's folder. Where that fails the ranks run as well, but are not armed."""
    folder, ours = layout.armed(run_dir), os.path.join(_HERE, "armed")
    try:
        if os.path.isdir(ours):  # a link, so that what Python has compiled is there already
            os.symlink(ours, folder)
            return
        # Python would import it from inside the archive too, but that takes it several milliseconds.
        os.makedirs(folder, exist_ok=True)
        temporary = "%s/%d.tmp" % (folder, os.getpid())
        with open(temporary, "wb") as file:
            file.write(__loader__.get_data(ours + "/sitecustomize.py"))  # type: ignore[name-defined]
        os.replace(temporary, folder + "/sitecustomize.py")
    except OSError:
        pass  # another node of this machine has done it, or the disk is full

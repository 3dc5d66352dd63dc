"""A node's own `ssh`, `rsh` and `pdsh`, which lead to the job's other nodes without sshd or keys, and `jobsdk-rank`.

They are two-line scripts in a private folder of the run, which stands first on the PATH of launchers and ranks. Beside
them is what they need to join the control port, in a file that only this user can read.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import TYPE_CHECKING, NamedTuple

from ..distributions import open_mpi
from ..launchers import base
from ..spec import events
from ..spec.variables import RANK

if TYPE_CHECKING:
    pass

#: Which folder a program is from, and under which name it was called.
SHELL, NAME = "JOBSDK_SHELL", "JOBSDK_SHELL_NAME"
_CONTROL = "control.json"
_VERBS = {"ssh": "sh", "rsh": "sh", open_mpi.SSH: "sh", "pdsh": "pdsh", RANK: "rank"}


class ShimConfig(NamedTuple):
    """Where a program was called: on which node, and how node 0 is found from there."""

    folder: str
    node: int
    address: str
    port: int
    token: str


def write(place: ShimConfig) -> None:
    """Make the folder of one node."""
    os.makedirs(place.folder, exist_ok=True)
    _write("%s/%s" % (place.folder, _CONTROL), json.dumps(place._asdict()), 0o600)
    for name, verb in _VERBS.items():
        own = " ".join(shlex.quote(word) for word in base.own_argv(verb))
        words = {"shell": shlex.quote(place.folder), "name": name, "own": own}
        _write("%s/%s" % (place.folder, name), _SCRIPT % words, 0o700)


def forget(folder: str) -> None:
    """The run is over: nobody is to join any more."""
    try:
        os.unlink("%s/%s" % (folder, _CONTROL))
    except OSError:
        pass


def place() -> ShimConfig:
    """Ends the program with ssh's own code where it is none of these, or where the run is over."""
    try:
        content = events.read_json("%s/%s" % (os.environ[SHELL], _CONTROL))
    except (KeyError, OSError):
        sys.stderr.write("jobsdk: remote shell: there is no running job that this belongs to\n")
        sys.exit(255)
    return ShimConfig(**content)


_SCRIPT = """#!/bin/sh
%(shell_name)s=%%(shell)s %(name_name)s=%%(name)s exec %%(own)s "$@"
""" % {"shell_name": SHELL, "name_name": NAME}


def _write(path: str, text: str, mode: int) -> None:
    """Whole, at one moment: an earlier start's may be in use."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "w") as file:
        file.write(text)
    os.replace(temporary, path)

"""Which process is a node's bootstrap: written down so that no later process of the same number is taken for it."""

from __future__ import annotations

import os
from typing import List, Optional

from ..system import processes
from . import events

_PREFIX, _SUFFIX = "bootstrap-", ".json"


def write(run_dir: str, rank: int, pid: int) -> None:
    """Note that `pid` is the bootstrap of a node that has its folder here."""
    content = {"pid": pid, "start": processes.start_time(pid), "boot": machine()}
    events.write_json("%s/%s%d%s" % (run_dir, _PREFIX, rank, _SUFFIX), content)


def pid_of(run_dir: str, rank: int) -> Optional[int]:
    """The pid of a node's bootstrap, if it lives on this machine."""
    try:
        known = events.read_json("%s/%s%d%s" % (run_dir, _PREFIX, rank, _SUFFIX))
    except (OSError, ValueError):
        return None
    if known["start"] is None or known["boot"] != machine():  # it had ended by the time it was noted
        return None
    return int(known["pid"]) if processes.start_time(known["pid"]) == known["start"] else None


def ranks(run_dir: str) -> List[int]:
    """The nodes whose bootstraps were started with this folder, by whatever machine."""
    names = [name for name in os.listdir(run_dir) if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    return sorted(int(name[len(_PREFIX) : -len(_SUFFIX)]) for name in names)


def living(run_dir: str) -> List[int]:
    """The nodes whose bootstraps live on this machine."""
    return [rank for rank in ranks(run_dir) if pid_of(run_dir, rank) is not None]


def machine() -> str:
    """What tells this start of this machine from all others."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return "%s %s" % (os.uname().nodename, file.read().strip())
    except OSError:
        return os.uname().nodename

"""What Linux tells of processes under /proc. Elsewhere nothing is known, and all is empty."""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, Optional


class Stat:
    """One process; `name` is its first 15 bytes, `state` one letter, `ticks` its CPU time in clock ticks, with that
    of its children that have ended; `started` is in clock ticks since boot, and tells a process from a later one with
    the same pid."""

    __slots__ = ("name", "parent", "pid", "started", "state", "ticks")

    def __init__(self, pid: int, name: str, state: str, parent: int, ticks: int, started: int) -> None:
        self.pid = pid
        self.name = name
        self.state = state
        self.parent = parent
        self.ticks = ticks
        self.started = started

    @property
    def is_zombie(self) -> bool:
        return self.state in "ZX"


def stat(pid: int) -> Optional[Stat]:
    """None where there is no such process, or no longer."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            # The name in parentheses may hold anything, so the fields count from the last ")".
            head, _, tail = file.read().rpartition(b")")
        fields = tail.split()
        name = head.partition(b"(")[2].decode("utf-8", "replace")
        return Stat(pid, name, fields[0].decode(), int(fields[1]), sum(map(int, fields[11:15])), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def table() -> Dict[int, Stat]:
    """Every process that has not ended, by one look at all."""
    try:
        found = [stat(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    return {one.pid: one for one in found if one is not None and not one.is_zombie}


def trees(everything: Dict[int, Stat], roots: Iterable[int]) -> Dict[int, List[Stat]]:
    """The living processes at and below each root: parents before their children, older before younger."""
    children: Dict[int, List[int]] = {}
    for pid in sorted(everything):
        children.setdefault(everything[pid].parent, []).append(pid)
    return {root: _tree(everything, children, root) for root in roots}


def _tree(everything: Dict[int, Stat], children: Dict[int, List[int]], root: int) -> List[Stat]:
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        if pid in everything:
            found.append(everything[pid])
        queue += reversed(children.get(pid, []))
    return found


def field(pid: int, name: str, thread: Optional[int] = None) -> int:
    """A set of signals out of a process' (or a thread's) `status`, as a mask; 0 where it is not known."""
    path = "/proc/%d/status" % pid if thread is None else "/proc/%d/task/%d/status" % (pid, thread)
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(name.encode() + b":"):
                    return int(line.split()[1], 16)
    except (OSError, ValueError, IndexError):
        pass
    return 0


def has(mask: int, signum: int) -> bool:
    """Whether a signal is in such a set."""
    return bool(mask >> (signum - 1) & 1)


def threads(pid: int) -> List[int]:
    try:
        return [int(name) for name in os.listdir("/proc/%d/task" % pid)]
    except OSError:
        return []


def words(pid: int) -> List[str]:
    """The command line; empty for a kernel thread, and for a process that has ended."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []


def link(pid: int, name: str) -> str:
    """What a link like `exe` or `fd/3` leads to; empty where that may not be known."""
    try:
        return os.readlink("/proc/%d/%s" % (pid, name))
    except OSError:
        return ""

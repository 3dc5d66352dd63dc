"""Which MPI library a running command has loaded, seen from outside, with no help from its code.

A program whose MPI library is not of the family of the mpirun that started it finds no other process: most libraries
then make every rank a world of size 1 and say nothing, and the job trains N times the same model with code 0.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Callable, Dict, NamedTuple, Optional, Set

from .. import distributions
from ..control.loop import Loop
from ..system import processes
from .mpirun import HYDRA, OPENMPI, Program

if TYPE_CHECKING:
    from ..spec.plan import Plan

#: The names under which libraries are linked to; what follows (40.30.4) is a matter of releases.
_FAMILIES = {
    b"libmpi.so.40": OPENMPI,  # 3 to 5
    b"libmpi.so.20": OPENMPI,  # 2
    b"libmpi.so.12": HYDRA,  # MPICH, Intel MPI, MVAPICH
    b"libmpich.so.12": HYDRA,  # MPICH of Debian
}
_MAPPED = re.compile(rb" (/[^\n]*/(libmpi(?:ch)?\.so\.\d+)[.\d]*)(?: \(deleted\))?$", re.MULTILINE)

_OFTEN, _SELDOM = 0.025, 5.0  # seconds between two looks, at first and in the end
_SHARE = 0.005  # at most this part of one core's time goes into looking through /proc


class Library(NamedTuple):
    """An MPI library that a process has loaded."""

    family: str
    path: str


def loaded(pid: int) -> Optional[Library]:
    """The MPI library of one process; None without one, or where the process cannot be looked into."""
    try:
        with open("/proc/%d/maps" % pid, "rb") as file:
            maps = file.read()
    except OSError:
        return None
    for path, name in _MAPPED.findall(maps):
        if name in _FAMILIES:
            return Library(_FAMILIES[name], path.decode(errors="replace"))
    return None


class _Tree:
    """The processes below a command that has just been started.

    Every process of the machine is looked at once only, when it is new: on a large node there are thousands.
    """

    def __init__(self, root: int) -> None:
        self.pids = [root]
        self._seen: Set[int] = {pid for pid in _all_pids() if pid <= root}
        self._due = 0.0

    def look(self) -> None:
        began = time.monotonic()
        if began < self._due:
            return
        there = _all_pids()
        for pid in sorted(there - self._seen):
            if processes.parent(pid) in self.pids:
                self.pids.append(pid)
        self._seen = there
        self._due = began + (time.monotonic() - began) / _SHARE


class Watch:
    """Looks for the MPI library of a command's process tree until there is one; `found` gets it, once.

    A process is read only when the size of what it has mapped has changed, so that a look costs a few microseconds.
    """

    def __init__(self, loop: Loop, pid: int, found: Callable[[Library], None]) -> None:
        self._loop = loop
        self._found = found
        self._began = time.monotonic()
        self._tree = _Tree(pid)
        self._sizes: Dict[int, bytes] = {}
        self._look()

    def _look(self) -> None:
        self._tree.look()
        for pid in list(self._tree.pids):
            size = _mapped_size(pid)
            if size is None:
                self._tree.pids.remove(pid)
            elif size != self._sizes.get(pid):
                self._sizes[pid] = size
                library = loaded(pid)
                if library is not None:
                    self._found(library)
                    return
        if self._tree.pids:  # else the command has ended, or this system has no /proc
            pause = max(_OFTEN, (time.monotonic() - self._began) / 200)
            self._loop.later(min(_SELDOM, pause), self._look)


def _all_pids() -> Set[int]:
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdigit()}
    except OSError:
        return set()


def _mapped_size(pid: int) -> Optional[bytes]:
    """Pages that a process has mapped, as text."""
    try:
        with open("/proc/%d/statm" % pid, "rb") as file:
            return file.read().partition(b" ")[0]
    except OSError:
        return None


def mismatch(library: Library, launcher: Program) -> str:
    """What is wrong with this pair and what to do about it, in words."""
    ways = "set launcher: hydra" if library.family == HYDRA else "set launcher: openmpi"
    if launcher.family == HYDRA:
        ways += ", or MPI4PY_LIBMPI to the libmpi.so.12 of MPICH"
    return (
        "%s is loaded, of another family than %s, which started it: each rank is a world of size 1; "
        "%s (locally the mpirun beside jobsdk's own Python comes first)" % (library.path, launcher, ways)
    )


def watch_rank(plan: Plan, loop: Loop, pid: int, rank: int, warn: Callable[[str], None]) -> None:
    """Warn of an MPI library in a rank that no mpirun started. Rank 0 speaks for all."""
    if rank == 0 and distributions.of(plan).world_size() > 1:
        Watch(loop, pid, lambda library: warn(warning(library)))


def watch_launched(loop: Loop, pid: int, launcher: Program, failed: Callable[[str, str], None]) -> None:
    """Have a rank fail that has loaded a library of another family than the mpirun that started it."""

    def found(library: Library) -> None:
        if library.family != launcher.family:
            failed("mpi_library", mismatch(library, launcher))

    Watch(loop, pid, found)


def warning(library: Library) -> str:
    """For `launcher: direct`. Not an error: a script may import an MPI library and have no need of a world."""
    return (
        "rank 0 has loaded %s, but with launcher: direct no mpirun starts the ranks, and MPI sees worlds of size 1; "
        "set launcher: mpirun if the script communicates through MPI" % library.path
    )

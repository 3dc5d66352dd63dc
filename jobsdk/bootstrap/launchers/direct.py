"""`launcher: direct`: the bootstrap starts the ranks itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from .base import Launcher

if TYPE_CHECKING:
    from ..control.loop import Loop


class Direct(Launcher):
    def rank_began(self, loop: Loop, pid: int, rank: int, warn: Callable[[str], None]) -> None:
        """Without an mpirun, ranks that load an MPI library are worlds of size 1."""
        if self.uses_mpi:
            from . import mpi_library

            mpi_library.watch_rank(self.plan, loop, pid, rank, warn)

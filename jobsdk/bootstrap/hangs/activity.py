"""Whether anything is still done on this node, by what can be seen from outside: output, and CPU time."""

from __future__ import annotations

import os
from typing import Dict, Iterable, Optional

from ..system import files, procfs

#: CPU time of one process, as a share of one core, that still counts as none. Idle libraries wake up: NCCL's and
#: Gloo's watchdogs every 100 ms, gRPC's and OpenMP's threads, a notebook's or a tracker's heartbeat; measured together
#: they stay below 1 %. A training step, a data loader, a compiler take tens of percent. A rank that spins while it
#: waits (MPI, a CUDA stream) cannot be told from one that works.
IDLE_SHARE = 0.02
_TICK = os.sysconf("SC_CLK_TCK")


class Watch:
    """Counts the seconds in which no log has grown and no process has computed. `look` is to be called often: in less
    than half of the time that counts as a hang."""

    def __init__(self) -> None:
        self._looked: Optional[float] = None
        self._since = 0.0
        self._sizes: Dict[str, int] = {}
        self._ticks: Dict[int, int] = {}

    def forget(self) -> None:
        """Start over, because nothing can be said of the time since the last look."""
        self._looked = None

    def look(self, now: float, pids: Iterable[int], logs: Iterable[str]) -> float:
        """For how many seconds nothing has been done; 0 at the first look. `now` is a clock's seconds, `pids` all
        living processes, those that ranks have started too. One read of a small file for each."""
        sizes = {log: files.size(log) for log in logs}
        ticks = {}
        for pid in pids:
            stat = procfs.stat(pid)
            if stat is not None:
                ticks[pid] = stat.ticks
        if self._looked is None or sizes != self._sizes or self._computed(now - self._looked, ticks):
            self._since = now
        self._looked, self._sizes, self._ticks = now, sizes, ticks
        return now - self._since

    def _computed(self, seconds: float, ticks: Dict[int, int]) -> bool:
        """Whether one process used its share. What children used that have ended counts as their parent's, so that
        many short commands count; a new process has all it used since the last look."""
        most = max(1.0, IDLE_SHARE * seconds * _TICK)  # one tick more or less says nothing
        return any(used - self._ticks.get(pid, 0) > most for pid, used in ticks.items())

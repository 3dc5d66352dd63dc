"""Where the ranks of a node are, and whether they are still doing anything; node 0 gets the answer."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..control.loop import Loop
from ..spec import paths
from ..system import processes

if TYPE_CHECKING:  # what few jobs need is imported where it is used
    from ..spec.messages import ToNode0
    from .activity import Watch

#: Seconds without output and work after which a job without a `hang_timeout` gets a warning: half of the time after
#: which NCCL's own watchdog aborts (10 minutes in torch).
HANG_WARNING_S = 300.0
_MOST = 4 << 20  # characters of an answer; the control port takes 16 MiB

Send = Callable[["ToNode0"], None]


class Whereabouts:
    """Of all attempts. `send` tells node 0."""

    def __init__(self, loop: Loop, run_dir: str, node_rank: int, send: Send) -> None:
        self._loop = loop
        self._node_rank = node_rank
        self._folder = paths.node_logs(run_dir, node_rank)
        self._send = send
        self._taking: Dict[int, Tuple[int, str]] = {}  # processes that take stacks: the question's number, the file
        self._spared: Set[int] = set()  # processes of ours that copy files
        self._watch: Optional[Watch] = None

    def watch(self, limit: float, logs: Callable[[], List[str]]) -> None:
        """Tell node 0, again and again, while nothing has been done here for `limit` seconds.

        `logs` gives the files that the ranks write to.
        """
        from .activity import Watch

        watch, pause = Watch(), min(5.0, limit / 5)
        self._watch = watch
        looked = time.monotonic()

        def look() -> None:
            nonlocal looked
            stood_still, looked = time.monotonic() - looked > 2 * pause + 1.0, time.monotonic()
            if self._watch is watch:
                if stood_still:  # all of it, as under `docker pause`: that nothing was done means nothing
                    watch.forget()
                idle = watch.look(time.monotonic(), self.others(processes.descendants(os.getpid())), logs())
                if idle >= limit:
                    self._send({"type": "idle", "again": 2.5 * pause})
                self._loop.later(pause, look)

        look()

    def close(self) -> None:
        self._watch = None

    def take(self, number: int, places: Mapping[str, Sequence[Any]]) -> None:
        """Where are the ranks that run here? Another process looks, so that this one goes on."""
        from . import query, stacks

        mine, names = set(processes.descendants(os.getpid())), (self._node_rank, socket.gethostname())
        here = {int(rank): pid for rank, (pid, where) in places.items() if where in names and pid in mine}
        path = "%s/stacks-%d.%d.tmp" % (self._folder, number, os.getpid())
        self._taking[stacks.start(path, here, query.PATIENCE_S * 0.8)] = number, path

    def taken(self, pid: int) -> bool:
        """Whether `pid`, which has ended, was the one that looked; what it found is then told."""
        self._spared.discard(pid)
        if pid not in self._taking:
            return False
        number, path = self._taking.pop(pid)
        found: Any = {}
        try:
            with open(path) as file:
                found = json.load(file)["ranks"]
            os.unlink(path)
        except (OSError, ValueError):
            pass
        for most in (32, 1, 0):  # threads of each process; a message must not be too long
            text = json.dumps(found)
            if len(text) < _MOST:
                break
            for one in (one for ranks in found.values() for one in ranks):
                one["threads"] = one["threads"][:most]
        self._send({"type": "stacks", "number": number, "ranks": found if len(text) < _MOST else {}})
        return True

    def others(self, pids: List[int]) -> List[int]:
        """Those of some processes that are not ours."""
        return [pid for pid in pids if pid not in self._taking and pid not in self._spared]

    def spare(self, pid: int, rests: bool = True) -> None:
        """A process of ours does nothing for the ranks, and goes on when they end; or it works for them again."""
        (self._spared.add if rests else self._spared.discard)(pid)

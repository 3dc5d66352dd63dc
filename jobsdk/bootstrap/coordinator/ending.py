"""The last things that node 0 does: the report, the last word to all, and going when they have gone."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Callable, Optional

from ..control.loop import Loop
from ..control.server import ControlServer
from ..spec import events, exit_codes, mlflow_store, paths, plan_file
from .journal import Journal

if TYPE_CHECKING:
    from ..failures.report import Outcome
    from ..spec.messages import HandedOver, Standing
    from ..spec.report import RunReport

_PATIENCE_S = 2.0  # seconds for which the others are waited for


class Ending:
    """`ended(exit_code)` is called once, when every other node has gone."""

    def __init__(
        self, loop: Loop, run_dir: str, server: ControlServer, journal: Journal, ended: Callable[[int], None]
    ) -> None:
        self._loop = loop
        self._run_dir = run_dir
        self._server = server
        self._journal = journal
        self._ended = ended

    def finish(self, outcome: Outcome, report: RunReport, ended: float) -> None:
        """Write the report, and end the job on all nodes."""
        mlflow_store.finish(report["run"], self._run_dir, outcome.status, ended)
        events.write_report(self._run_dir, report)
        plan_file.forget_secrets(self._run_dir)
        self._journal.ended(outcome)
        self._leave(outcome.exit_code)

    def hand_over(self, standing: Optional[Standing]) -> None:
        """Node 0 must go. The others join the next one with the `standing`; without one, whoever starts bootstraps
        starts over, knowing from the events where the job is."""
        if standing is not None:
            self._leave(exit_codes.PREEMPTED, {"type": "handed_over", "standing": standing})
            return
        try:
            os.close(os.open(paths.handed_over_mark(self._run_dir), os.O_WRONLY | os.O_CREAT, 0o666))
        except OSError:
            pass  # a full disk; the event may have found room
        self.give_up()

    def give_up(self) -> None:
        """End on all nodes, and leave the last word to somebody else."""
        self._leave(exit_codes.PREEMPTED)

    def _leave(self, exit_code: int, last: Optional[HandedOver] = None) -> None:
        """The others close once they have read the last word; node 0's own connection is ours to close."""
        finish = {"type": "finish", "exit_code": exit_code}
        self._server.broadcast(last or finish)
        self._server.broadcast(finish, "spare")
        self._server.close()
        deadline = time.monotonic() + _PATIENCE_S

        def leave() -> None:
            if all(peer.number == 0 for peer in self._server.peers) or time.monotonic() > deadline:
                self._ended(exit_code)
            else:
                self._loop.later(0.01, leave)

        leave()

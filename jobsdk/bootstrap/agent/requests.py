"""What a client asks of a running job by putting a file into its folder: `requests/cancel`, `requests/stacks-ID`."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ..control.loop import Loop
from ..spec import events

if TYPE_CHECKING:
    from ..coordinator.coordinator import Coordinator
    from ..hangs.query import Answer
    from ..spec.plan import Plan

_EVERY_S = 0.5  # seconds between two looks
_STACKS = "stacks-"


class Requests:
    """Node 0 of a cluster looks for them; under the local compute's supervisor they come by its lifeline."""

    def __init__(self, loop: Loop, run_dir: str, plan: Plan, coordinator: Coordinator) -> None:
        self._run_dir = run_dir
        self._plan = plan
        self._coordinator = coordinator
        loop.every(_EVERY_S, self._look)

    def _look(self) -> None:
        folder = self._run_dir + "/requests"
        try:
            names = os.listdir(folder)
            for name in names:
                os.unlink("%s/%s" % (folder, name))
        except OSError:
            return  # nobody has ever asked; or it is being asked this very moment
        for name in names:
            if name == "cancel":
                self._coordinator.cancel()
            elif name.startswith(_STACKS):
                answer_stacks(self._coordinator, self._plan, self._run_dir, name[len(_STACKS) :])


def answer_stacks(coordinator: Coordinator, plan: Plan, run_dir: str, request: str) -> None:
    """Have `stacks-REQUEST.json` written into the run's folder: where all ranks are."""
    from ..hangs import query
    from ..spec import secrets

    def write(answer: Answer) -> None:
        content = dict(answer, id=request, time=time.time(), groups=query.grouped(answer))
        path = "%s/stacks-%s.json" % (run_dir, request)
        try:
            events.write_json(path, secrets.redactor(plan, os.environ).data(content))
        except OSError:
            pass  # a full disk: who asked is told that there is no answer

    coordinator.take_stacks(write)

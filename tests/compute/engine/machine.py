"""An engine without an engine: its nodes are held by the driver itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

from jobsdk.bootstrap.spec.plan import Plan
from jobsdk.compute.base import Spec
from jobsdk.compute.engine import EngineCompute
from jobsdk.compute.engine.hold import Hold, foreign
from jobsdk.compute.engine.node import HeldNode
from jobsdk.findings import Finding
from jobsdk.job.command import CommandJob
from jobsdk.planning.placement import Placement


class MachineCompute(EngineCompute):
    type: ClassVar[str] = "machine"
    settings_known: ClassVar = {"session": "whether this process drives its runs"}

    def findings(self, job: CommandJob, plan: Plan, at: Placement, *, build_env: bool = False) -> Sequence[Finding]:
        return []

    def compile(
        self, job: CommandJob, plan: Plan, at: Placement, *, in_place: bool = False, build_env: bool = False
    ) -> Spec:
        code = str(job.resolve(job.code)) if job.code is not None else None
        return {"compute": self.name, "type": self.type, "code": code}

    def prepare(self, spec: Spec, warn: object) -> None:
        pass

    def has_session(self) -> bool:
        return bool(self.settings.get("session"))

    def drive(self, hold: Hold) -> None:
        files = hold.files()
        nodes = {rank: HeldNode(hold.run.name, files, foreign()) for rank in range(hold.plan["nodes"])}
        try:
            offers = [held.offer("127.0.0.1") for held in nodes.values()]
            hold.tell("allocated", nodes=len(nodes))
            for rank, held in nodes.items():
                held.start(rank, offers[0], [f"host-{rank}" for rank in nodes], {"FOLDER": held.folder})
            if os.environ.get("FAULT") == "driver":
                raise RuntimeError("no more of this")
            while pumped(hold, nodes):
                pass
            for held in nodes.values():
                hold.leave(held.leavings())
        finally:
            for held in nodes.values():
                held.close()


def pumped(hold: Hold, nodes: Mapping[int, HeldNode]) -> bool:
    """Bring in what nodes of this very process, by rank, have written; whether any still runs."""
    runs = False
    for rank, held in nodes.items():
        lines = held.lines(0.05)
        hold.take(rank, lines)
        runs = runs or held.code is None or bool(lines)
    for request in hold.asked():
        with contextlib.suppress(KeyError):
            nodes[0].ask(request)
    return runs

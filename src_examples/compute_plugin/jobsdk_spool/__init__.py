"""A compute of machines that share a folder: each runs a worker, which takes tickets from there, one for each node."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from jobsdk.plugin import (
    CANCEL_MARK,
    Check,
    CommandJob,
    Compute,
    ComputeError,
    EngineEnd,
    Finding,
    Host,
    Pace,
    Placement,
    Plan,
    RunFolder,
    Spec,
    Warn,
    copy_code,
    finish,
    job_rules,
    locked,
    make_parcel,
)

_GONE = "the worker that ran node 0 was killed, or its machine failed"


class SpoolCompute(Compute):
    """Every node is a ticket in `folder`. The workers must see `$JOBSDK_HOME`, too, at the same path."""

    type: ClassVar[str] = "spool"
    pace: ClassVar[Pace] = Pace(0.5, 2.0)
    settings_known: ClassVar[Mapping[str, str]] = {"folder": "the folder that the workers watch"}

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        super().__init__(name, settings)  # refuses settings that are not known
        if not os.path.isabs(settings.get("folder", "")):
            raise ComputeError(f"compute {name}: there is no folder. Fix: folder: /PATH/THAT/ALL/SEE")
        self.folder = Path(settings["folder"])

    # -- before there is a run: pure -----------------------------------------------------------------------------

    def findings(self, job: CommandJob, plan: Plan, at: Placement, *, build_env: bool = False) -> list[Finding]:
        return [
            *job_rules.what_none_can(self.name, job, plan, "give a folder that all machines see"),
            *job_rules.ignored_fields(self.name, job),
            *job_rules.ignored_outputs(self.name, job, plan),
        ]

    def compile(
        self, job: CommandJob, plan: Plan, at: Placement, *, in_place: bool = False, build_env: bool = False
    ) -> Spec:
        code = str(job.resolve(job.code)) if job.code is not None else None
        tickets = [f"{plan['run']}.{rank}.json" for rank in range(plan["nodes"])]
        return {"compute": self.name, "type": self.type, "code": code, "tickets": tickets}

    # -- the run -------------------------------------------------------------------------------------------------

    def prepare(self, spec: Spec, warn: Warn) -> None:
        if not self.folder.is_dir():
            raise ComputeError(f"there is no folder {self.folder}. Fix: make it, and start workers there")

    def submit(self, spec: Spec, run: RunFolder, warn: Warn) -> None:
        code = run.path / "source"
        code.mkdir()
        if spec["code"] is not None:
            for text in copy_code(Path(spec["code"]), code).listing.warnings:
                warn(text)
        parts = make_parcel(run)  # the bootstrap, the plan, secrets, and a token that is new
        Host().write(str(run.path), parts.files, private=parts.private)
        for rank, name in enumerate(spec["tickets"]):
            variables = {"JOBSDK_NODE_RANK": str(rank), "JOBSDK_CODE": str(code)}
            text = json.dumps({"rank": rank, "run_dir": str(run.path), "variables": variables})
            (self.folder / f"{name}.new").write_text(text)
            (self.folder / f"{name}.new").rename(self.folder / name)  # whole, or not there
        run.append_event("queued", message=f"{len(spec['tickets'])} tickets in {self.folder}")

    def ask(self, run: RunFolder, request: str) -> None:
        Host().write(str(run.path), {f"requests/{request}": b""})  # node 0 looks there

    def cancel(self, run: RunFolder, by: str) -> None:
        if self.status(run).is_terminal:
            return
        run.append_event("cancel_requested", by=by)
        Host().write(str(run.path), {CANCEL_MARK: b""})
        self.ask(run, "cancel")
        self.refresh(run)

    def refresh(self, run: RunFolder) -> None:
        """The nodes write into the run's folder by themselves; left to say is what becomes of one that cannot."""
        with locked(run.path / "refresh.lock"):
            state = run.recorded_state()
            if state.is_terminal or self._is_held(run):
                return
            state = run.recorded_state()  # node 0 may have had its last word between our two looks
            has_begun = (run.path / "control").exists()
            if state.is_terminal or not (has_begun or state.status == "CancelRequested"):
                return
            for name in run.read_json("native.json")["tickets"]:
                (self.folder / name).unlink(missing_ok=True)
            finish(run, EngineEnd.lost(_GONE, 0), began=state.started or state.submitted)

    def _is_held(self, run: RunFolder) -> bool:
        """Whether a worker has node 0's ticket: it keeps it locked as long as the node runs."""
        try:
            with open(self.folder / run.read_json("native.json")["tickets"][0]) as ticket:
                fcntl.flock(ticket, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError) as error:
            return isinstance(error, BlockingIOError)
        return False

    def check(self) -> list[Check]:
        there = self.folder.is_dir()
        workers = [path.stem for path in self.folder.glob("*.worker")] if there else []
        return [
            Check("folder", there, str(self.folder), "" if there else "make it"),
            Check(
                "workers", bool(workers), ", ".join(workers) or "none", "" if workers else "start one on each machine"
            ),
        ]

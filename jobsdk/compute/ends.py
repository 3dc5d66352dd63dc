"""How an engine ended a run: every compute says it with `EngineEnd`, and `finish` writes it down.

The module travels with Ray's driver to clusters where jobsdk is not installed: standard library only, Python 3.8 or
later. What `finish` needs of jobsdk it imports when it is called, which is never on a cluster.
"""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, cast

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.report import RunReport
    from jobsdk.runs.folder import RunFolder

# As in `jobsdk.bootstrap.spec.exit_codes`; the last is a shell's for SIGKILL.
CANCELED, TIMED_OUT, LOST, PREEMPTED, NOT_STARTED, FAULT, NO_PROGRESS, KILLED = 130, 124, 125, 143, 126, 70, 80, 137


class EngineEnd(NamedTuple):
    """How the engine ended a run, or kept it from starting. Never a success: only the bootstraps report one."""

    status: str
    exit_code: int
    #: the class of the cause; empty for a run that was canceled, which has none
    failure_class: str
    #: what happened, in one line
    message: str
    #: the node to blame, where one is known
    node: Optional[int] = None
    #: that node's host
    host: Optional[str] = None
    #: the last lines of the engine's own output, where nothing else says why
    last_lines: Optional[List[str]] = None

    @classmethod
    def canceled(cls, message: str = "cancelled on request") -> EngineEnd:
        return cls("Canceled", CANCELED, "", message)

    @classmethod
    def lost(cls, message: str, node: Optional[int] = None) -> EngineEnd:
        return cls("Lost", LOST, "node_lost", message, node)

    @classmethod
    def preempted(cls, message: str, node: Optional[int] = None) -> EngineEnd:
        return cls("Preempted", PREEMPTED, "preempted", message, node)

    @classmethod
    def timed_out(cls, message: str) -> EngineEnd:
        return cls("TimedOut", TIMED_OUT, "timeout", message)

    @classmethod
    def out_of_memory(cls, message: str, node: Optional[int] = None) -> EngineEnd:
        return cls("Failed", KILLED, "out_of_memory", message, node)

    @classmethod
    def failed(cls, message: str, node: Optional[int] = None, *, exit_code: int = NOT_STARTED) -> EngineEnd:
        """Without an exit code: nothing could be started."""
        return cls("Failed", exit_code, "bootstrap_error", message, node)

    @classmethod
    def fault(cls, error: BaseException) -> EngineEnd:
        """The process that drove the run failed itself."""
        words = "the driver of the run failed: %s: %s" % (type(error).__name__, str(error).strip()[:300])
        return cls.failed(words, exit_code=FAULT)

    def explains(self, report: Mapping[str, Any]) -> bool:
        """Whether it says why a node was lost that node 0 could only miss, or that got a SIGTERM."""
        cause = report.get("cause") or {}
        known = cause.get("class")
        if self.node != cause.get("node") or self.failure_class in ("bootstrap_error", known):
            return False
        return known in ("node_lost", "never_started", "preempted")


class EngineEnded(Exception):
    """The engine ended the run, or it never began; what node 0 has reported, if anything, counts more."""

    def __init__(self, end: EngineEnd) -> None:
        super().__init__(end.message)
        self.end = end


def finish(
    run: RunFolder,
    end: Optional[EngineEnd],
    report: Mapping[str, Any] = MappingProxyType({}),
    began: Optional[float] = None,
) -> None:
    """Write down how a run ended: as `end` says, or, where that is None, as node 0's `report` does.

    With both, only what became of the ranks is taken from the report. Without a report, a run that was to be canceled
    has ended as such. `began` is when the run began, where that is not when its first rank was started.
    """
    from jobsdk.bootstrap.failures import fallback_report
    from jobsdk.bootstrap.spec import events, exit_codes, plan_file

    folder = str(run.path)
    if end is None:
        events.write_report(folder, cast("RunReport", report))
        status, code = report.get("status", "Lost"), report.get("exit_code", exit_codes.LOST)
        message = report.get("message", "")
        events.note(folder, "ended", t=report["ended"], status=status, exit_code=code, message=message)
    else:
        state = run.recorded_state()
        if state.status == "CancelRequested" and not report:
            end = EngineEnd.canceled()
        facts: Dict[str, Any] = {"class": end.failure_class, "host": end.host}
        if end.last_lines is not None:
            facts["last_lines"] = end.last_lines
        fallback_report.write_end(
            folder, run.plan(), end.status, end.exit_code, end.message, end.node,
            began or state.started or time.time(), facts=facts, left=report,
        )  # fmt: skip
    plan_file.forget_secrets(folder)

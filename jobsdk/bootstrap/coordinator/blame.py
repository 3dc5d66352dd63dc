"""How failures are recorded, and how long the others have to show whether they caused them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Optional, cast

from ..spec import exit_codes

if TYPE_CHECKING:
    from ..hangs.query import Answer
    from ..spec.plan import Plan
    from ..spec.report import RankEnd

#: Seconds between the first failure and the end of all: failures that caused it, or that it caused, show themselves.
BLAME_WINDOW_S = 0.2
#: The same where what has failed only tells of others, which may be slow to end; or where a launcher has killed ranks,
#: which says why when it ends itself.
LONG_BLAME_WINDOW_S = 1.5


def hold_s(failure: RankEnd) -> float:
    """Seconds that all go on after this failure."""
    from ..failures import classify  # few jobs fail

    return BLAME_WINDOW_S if classify.speaks_for_itself(failure) else LONG_BLAME_WINDOW_S


def unreported(
    kind: str, message: str, node: Optional[int], *, exit_code: int = exit_codes.LOST, **more: Any
) -> RankEnd:
    """A failure that no process has reported itself, such as a lost node; `kind` is its class."""
    end = {"t": time.time(), "node": node, "rank": None, "exit_code": exit_code, "class": kind}
    return cast("RankEnd", dict(end, message=message, **more))


def never_joined(run_dir: str, node: int, code: Optional[int]) -> RankEnd:
    """Why the bootstrap of a node ended (with that code, if it is known) before it joined."""
    from ..spec import events

    said = events.said_by(run_dir, node)
    if code == exit_codes.PREEMPTED:
        text = "node %d got a SIGTERM before it joined" % node
        return unreported("preempted", text, node, exit_code=code)
    if said is not None:
        return unreported("bootstrap_error", said["message"], node, exit_code=said["exit_code"], final=True)
    return unreported("never_started", "the bootstrap of node %d ended before it joined" % node, node, final=True)


def standstill(plan: Plan, answer: Answer) -> str:
    """A warning: nothing was done for long, in a job without a `hang_timeout`."""
    from ..hangs import query, watch

    where = ": " + "; ".join(query.grouped(answer)[:3])
    text = (
        "no rank has written output or used the processor for %g s%s. The job goes on. Fix: hang_timeout ends it then"
    )
    return text % (plan.get("hang_warning_s", watch.HANG_WARNING_S), where.rstrip(": "))


def hang(plan: Plan, answer: Answer) -> RankEnd:
    """That nothing was done for too long, with where the ranks are."""
    from ..hangs import query

    where = query.grouped(answer)
    text = "no rank wrote output or used the processor for %g s" % (plan["hang_timeout_s"] or 0)
    if where:
        text += ": " + "; ".join(where[:3])
    return unreported("hang", text, None, exit_code=exit_codes.TIMED_OUT, stacks=where)


def timed_out(plan: Plan, answer: Answer) -> RankEnd:
    """That the job's time is up, with where the ranks are."""
    from ..failures import report
    from ..hangs import query

    return {**report.timed_out(plan), "t": time.time(), "stacks": query.grouped(answer)}

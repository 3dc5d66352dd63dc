"""A job that its engine has started again as a whole (Slurm requeues it): where it stands, by what it wrote before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional

from ..coordinator import restarts
from ..failures import fallback_report
from ..spec import events, exit_codes

if TYPE_CHECKING:
    from ..spec.plan import Plan
    from ..spec.report import Cause


class Standing(NamedTuple):
    """`restart`: how often the job has been started before; `used`: what of the budgets (restarts.Used)."""

    restart: int
    used: Optional[List[int]]


def standing(run_dir: str, plan: Plan, starts: int) -> Optional[Standing]:
    """For node 0 of the start after the engine has started the job again `starts` times; None if the job is over.

    A start that node 0 handed over when it was taken away has been decided on by then; so has one for which it was
    waiting for a lost node when the engine began anew. Any other was ended by the engine without a word of ours, as
    after the failure of a machine: that is a lost node, and decided on here.
    """
    earlier = events.of(run_dir, "restart")
    number = earlier[-1]["restart"] if earlier else 0
    used = earlier[-1]["used"] if earlier else None
    if events.of(run_dir, "ended"):
        return None
    taken_up = {event["restart"] for event in events.of(run_dir, "taken_up")}
    decided = sum(_is_of_engine(event) or event["restart"] in taken_up for event in earlier)
    if decided >= starts:
        return Standing(number, used)
    begun = {event.get("restart") for event in events.of(run_dir, "started")}
    if earlier and not _is_of_engine(earlier[-1]) and number not in begun | taken_up:
        events.note(run_dir, "taken_up", restart=number)
        return Standing(number, used)
    text = "the engine ended the job and started it again, as it does after the failure of a machine"
    cause: Cause = {"class": "node_lost", "exit_code": exit_codes.LOST, "message": text, "node": None, "rank": None}
    decision = restarts.decide(plan, cause, (), restarts.Used(*(used or ())))
    if not decision.again:
        why = "%s; %s" % (text, decision.why) if decision.why else text
        fallback_report.write_end(run_dir, plan, "Lost", exit_codes.LOST, why, 0, time.time())
        return None
    summary = dict(restarts.summary(cause), time=time.time(), decision=decision.why, round=number)
    events.note(run_dir, "restart", restart=number + 1, decision=decision.why, message=text, used=decision.used,
                delay=0.0, summary=summary, started_by_engine=starts)  # fmt: skip
    return Standing(number + 1, list(decision.used))


def _is_of_engine(restart: Dict[str, Any]) -> bool:
    """Whether it was for the engine to start the job again."""
    return bool(restart.get("handed_over") or restart.get("started_by_engine"))

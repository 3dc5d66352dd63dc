"""A job whose node 0 went without a word: whether it is started again, by what it wrote before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Sequence, Tuple

from ..coordinator import restarts
from ..failures import fallback_report
from ..spec import events, exit_codes

if TYPE_CHECKING:
    from ..spec import messages
    from ..spec.event import Event, Facts
    from ..spec.plan import Plan
    from ..spec.report import Cause


class Standing(NamedTuple):
    """`restart`: how often the job has been started before; `used`: what of the budgets (restarts.Used)."""

    restart: int
    used: Optional[Sequence[int]]


def under_supervisor(
    run_dir: str, plan: Plan, end: Tuple[int, Optional[int]], node: int, message: str
) -> Optional[Tuple[Standing, float]]:
    """For the local compute, whose bootstrap of node 0 has gone with `end`, its exit code and signal: where the job
    stands, and the seconds until it is started again; None if it is over. `node` and `message` say which bootstrap
    went first, and how."""
    code, signum = end
    earlier = events.of(run_dir, "restart")
    if earlier and end == (exit_codes.PREEMPTED, None):  # it has decided so before it went
        return Standing(earlier[-1]["restart"], earlier[-1]["used"]), earlier[-1]["delay"]
    if signum is None and code != exit_codes.FAULT:
        return None  # it has brought the job to its end, and only could not write that down
    decision, number = _decided(run_dir, plan, earlier, message, node, {})
    return (Standing(number, list(decision.used)), decision.delay) if decision.again else None


def standing(run_dir: str, plan: Plan, starts: int) -> Optional[Standing]:
    """For node 0 of the start after the engine has started the job again `starts` times; None if the job is over.

    A start that node 0 handed over when it was taken away has been decided on by then; so has one for which it was
    waiting for a lost node when the engine started again. Any other was ended by the engine without a word of ours, as
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
    decision, number = _decided(run_dir, plan, earlier, text, None, {"delay": 0.0, "started_by_engine": starts})
    if not decision.again:
        why = "%s; %s" % (text, decision.why) if decision.why else text
        fallback_report.write_end(run_dir, plan, "Lost", exit_codes.LOST, why, 0, time.time())
        return None
    return Standing(number, list(decision.used))


def replaced(plan: Plan, times: Optional[str]) -> Optional[messages.Standing]:
    """Where a job stands for a node 0 that knows only how often it was replaced; None: never.

    Each time counts as a preemption as long as the budget for those lasts, then as the loss of a node.
    """
    earlier = int(times or "0") - 1
    if earlier < 0:
        return None
    preemptions = min(earlier, plan["restarts"]["max_preemptions"])
    used = restarts.Used(restarts=earlier - preemptions, preemptions=preemptions)
    kind = "preempted" if earlier < plan["restarts"]["max_preemptions"] else "node_lost"
    return {"restart": earlier, "is_due": False, "lost_as": kind, "used": used, "restarts": [], "started": time.time()}


def _decided(
    run_dir: str, plan: Plan, earlier: List[Event], message: str, node: Optional[int], facts: Facts
) -> Tuple[restarts.Decision, int]:
    """What is decided on a start that was lost, and the next one's number. A restart is noted, with further `facts`."""
    number, used = (earlier[-1]["restart"], earlier[-1]["used"]) if earlier else (0, None)
    cause: Cause = {"class": "node_lost", "exit_code": exit_codes.LOST, "message": message, "node": node, "rank": None}
    decision = restarts.decide(plan, cause, (), restarts.Used(*(used or ())))
    if decision.again:
        summary = restarts.summary(cause)
        summary["time"], summary["decision"], summary["round"] = time.time(), decision.why, number
        known: Facts = {
            "restart": number + 1, "decision": decision.why, "message": message, "used": decision.used,
            "summary": summary, "delay": decision.delay,
        }  # fmt: skip
        known.update(facts)
        events.note(run_dir, "restart", **known)
    return decision, number + 1


def _is_of_engine(restart: Event) -> bool:
    """Whether it was for the engine to start the job again."""
    return bool(restart.get("handed_over") or restart.get("started_by_engine"))

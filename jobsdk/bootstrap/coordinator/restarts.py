"""Whether a job that has failed is started again. Pure, but for `matches`, which reads a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional, Sequence, Union, cast

if TYPE_CHECKING:
    from ..spec.plan import Plan
    from ..spec.report import Cause, RestartSummary

Rule = Union[int, str]  # an exit code, a class of failures, or a pattern for the output

_LONGEST_DELAY_S = 300.0  # seconds
_PORT_RETRIES = 3

#: What would go wrong again in the same way, unless `retry_on` names it: it is said at once instead.
LASTING = frozenset(("syntax_error", "import_error", "command_not_found", "not_executable", "bootstrap_error"))


#: What ends an attempt through no fault of the command, and may keep its reports from node 0.
_OF_NODES = frozenset(("node_lost", "never_started", "preempted"))


class Used(NamedTuple):
    """What of the budgets has been used.

    `step` is the latest that any attempt reported, -1 without one; `stuck` counts the attempts since then that failed
    at an earlier one.
    """

    restarts: int = 0
    preemptions: int = 0
    ports: int = 0
    stuck: int = 0
    step: int = -1


class Decision(NamedTuple):
    """`again`: whether to start again, after `delay` seconds; `why` in words; `used` counts this restart.

    `no_progress`: not again, because earlier restarts did not help.
    """

    again: bool
    why: str
    delay: float
    used: Used
    no_progress: bool = False


def decide(plan: Plan, cause: Cause, matched: Sequence[str], used: Used, step: Optional[int] = None) -> Decision:
    """What to do about a failure.

    `matched` are the patterns of the job's rules that the failed ranks' output has, `step` is the latest that the
    attempt reported: -1 without one, None if that is not known.
    """
    rules = plan["restarts"]
    if cause["class"] == "port_in_use" and cause.get("port_is_ours") and used.ports < _PORT_RETRIES:
        now = used._replace(ports=used.ports + 1)
        return Decision(True, "started again with other ports (%d of %d)" % (now.ports, _PORT_RETRIES), 0.0, now)
    used = _counted(cause, used, step)
    if cause["class"] == "preempted":
        most, now = rules["max_preemptions"], used._replace(preemptions=used.preemptions + 1)
        return _within(most, now.preemptions, "max_preemptions", _delay(rules, 1), used, now)
    most, now = rules["max"], used._replace(restarts=used.restarts + 1)
    if most:
        rule = _first(rules["never_retry_on"], cause, matched)
        if rule is not None:
            return Decision(False, "not restarted: never_retry_on has %r" % (rule,), 0.0, used)
        wanted = _first(rules["retry_on"], cause, matched)
        if rules["retry_on"] and wanted is None:
            return Decision(False, "not restarted: nothing in retry_on fits it", 0.0, used)
        if cause["class"] in LASTING and wanted is None:
            text = "not restarted: it would fail again in the same way (retry_on: %s restarts it all the same)"
            return Decision(False, text % cause["class"], 0.0, used)
    decision = _within(most, now.restarts, "max_restarts", _delay(rules, _in_a_row(now)), used, now)
    limit = rules.get("max_no_progress", 0)
    if decision.again and limit and used.stuck >= limit:
        text = "not restarted: max_no_progress = %d is used up, and step %d is still the latest" % (limit, used.step)
        return Decision(False, text, 0.0, used, no_progress=True)
    return decision


def _counted(cause: Cause, used: Used, step: Optional[int]) -> Used:
    """`used` after an attempt that came to `step`. A job that never reports a step is never stuck."""
    if step is not None and step > used.step:
        return used._replace(stuck=0, step=step)
    if step is None or used.step < 0 or cause["class"] in _OF_NODES:
        return used
    return used._replace(stuck=used.stuck + 1)


def _in_a_row(now: Used) -> int:
    """The number of this restart among those without progress between them; without any report, among all."""
    return now.restarts if now.step < 0 else now.stuck + 1


def _within(most: int, number: int, name: str, delay: float, used: Used, now: Used) -> Decision:
    if number <= most:
        when = "after %g s" % delay if delay else "at once"
        return Decision(True, "restarted %s (%d of %d)" % (when, number, most), delay, now)
    why = "not restarted: %s = %d is used up" % (name, most) if most else ""
    return Decision(False, why, 0.0, used)


def _delay(rules: Mapping[str, Any], number: int) -> float:
    """Each wait is twice as long as the one before; unless the job says otherwise the first restart comes at once."""
    first = rules["delay_s"]
    if first is None and number == 1:
        return 0.0
    return float(min(_LONGEST_DELAY_S, (0.5 if first is None else first) * 2.0 ** min(number - 1, 20)))


def _first(rules: Sequence[Rule], cause: Cause, matched: Sequence[str]) -> Any:
    """The first rule that fits; None if none does."""
    for rule in rules:
        if rule == cause["exit_code"] or rule == cause["class"] or rule in matched:
            return rule
    return None


def summary(record: Mapping[str, Any]) -> RestartSummary:
    """What of a cause is kept for each restart."""
    keys = ("class", "message", "node", "rank", "exit_code")
    return cast("RestartSummary", {key: record.get(key) for key in keys})

"""How a job ended: status, exit code, the root cause, and what became of every rank. Pure."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, cast

from .. import distributions
from ..spec import exit_codes
from ..spec.text import ranges
from . import classify

if TYPE_CHECKING:
    from ..spec.plan import Plan
    from ..spec.report import Cause, Evidence, Others, RankEnd, RankRecord, RestartSummary, RunReport

#: The states of a failure that is no fault of the command, by the class of the cause.
_STATES = {
    "node_lost": ("Lost", exit_codes.LOST), "never_started": ("Lost", exit_codes.LOST),
    "ray_missing": ("Lost", exit_codes.LOST),
    "preempted": ("Preempted", exit_codes.PREEMPTED),
    "hang": ("TimedOut", exit_codes.TIMED_OUT), "timeout": ("TimedOut", exit_codes.TIMED_OUT),
}  # fmt: skip

#: What a rank fails of that waits for others in vain.
_NEED_OTHERS = ("peer_lost", "collective_timeout", "rendezvous_timeout")


class Outcome(NamedTuple):
    """How the ranks' last start ended. `cause` is None for a job that has completed or was cancelled."""

    status: str
    exit_code: int
    message: str
    cause: Optional[Cause]


def outcome(plan: Plan, reason: Optional[str], ends: Mapping[int, RankEnd], failures: Sequence[RankEnd]) -> Outcome:
    """`reason` is why all were stopped, `ends` the end of each rank, `failures` what went wrong, in any order."""
    if reason == "cancelled":
        return Outcome("Canceled", exit_codes.CANCELED, "cancelled on request", None)
    if not failures and reason == "timeout":
        failures = [timed_out(plan)]
    if failures:
        return _failed(plan, failures, ends)
    expected = distributions.of(plan).world_size()
    silent = [rank for rank in range(expected) if not _succeeded(ends.get(rank), reason)]
    if silent:
        text = "no success was reported by rank(s) %s" % ", ".join(str(rank) for rank in silent[:20])
        return _failed(plan, [{"class": "unreported", "message": text, "exit_code": 1, "t": 0.0}], ends)
    who = "all %d ranks" % expected if expected > 1 else "its rank"
    return Outcome("Completed", 0, "%s ended with code 0" % who, None)


def without_progress(result: Outcome) -> Outcome:
    """The same end of a job whose restarts did not help."""
    assert result.cause is not None
    cause = cast("Cause", {**result.cause, "class": "no_progress"})
    return result._replace(status="Failed", exit_code=exit_codes.NO_PROGRESS, cause=cause)


def timed_out(plan: Plan) -> RankEnd:
    """The failure of a job that has used up its time."""
    text = "the job was stopped after limits.timeout = %s s" % plan["timeout_s"]
    return {"class": "timeout", "message": text, "exit_code": exit_codes.TIMED_OUT, "t": 0.0}


def _succeeded(end: Optional[RankEnd], reason: Optional[str]) -> bool:
    return end is not None and (end["exit_code"] == 0 or (reason == "complete" and end["stopped"]))


def _failed(plan: Plan, failures: Sequence[RankEnd], ends: Mapping[int, RankEnd]) -> Outcome:
    first = min(failures, key=classify.likelihood)
    cause = judged(plan, first)
    cause["ranks"] = sorted(
        {rank for one in failures for rank in [one.get("rank")] if rank is not None and classify.same_error(one, first)}
    )
    done = [rank for rank, end in sorted(ends.items()) if end["exit_code"] == 0 and not end["stopped"]]
    if done and cause["class"] in _NEED_OTHERS:
        _blame(cause, done)
    status, code = _STATES.get(cause["class"], ("Failed", first["exit_code"]))
    return Outcome(status, code, cause["message"], cause)


def _blame(cause: Cause, done: Sequence[int]) -> None:
    """Nothing has failed but what waited for ranks that had ended well: say which."""
    who = "rank%s %s" % ("s" if len(done) > 1 else "", ranges(done, 8))
    what, _, error = cause["message"].partition(": ")
    cause["message"] = "%s after %s had ended with code 0: %s" % (what, who, error)
    cause["advice"] = "%s left while others needed it: all must make the same collective calls, equally often" % who


def judged(plan: Plan, record: RankEnd) -> Cause:
    """A failure as the report has it: its class, in words, with advice."""
    verdict = classify.judge(record)
    keys = ("node", "rank", "pid", "host", "exit_code", "signal", "traceback", "error", "last_lines", "stacks")
    cause = cast("Cause", {key: record.get(key) for key in keys})
    cause["class"] = verdict["class"]
    said, error = record.get("message"), record.get("error")
    if said and error and error not in said:
        said += ": " + error
    cause["message"] = said or "%s %s" % (name_of(plan, record), verdict["words"])
    cause["advice"] = verdict["advice"]
    cause["time"] = record["t"]
    evidence: Evidence = record.get("evidence") or {}
    cause["evidence"] = evidence
    port = verdict.get("port")
    ours = evidence.get("ports") or []
    cause["port_is_ours"] = (
        verdict["class"] == "port_in_use"
        and bool(ours)
        and (port in ours or (port is None and not distributions.of(plan).names_ports))
    )
    role = role_of(plan, record.get("rank"))
    if role is not None:
        cause["role"], cause["role_index"] = role
    return cause


def role_of(plan: Plan, rank: Optional[int]) -> Optional[Tuple[str, int]]:
    """A rank's role and its number in it."""
    if rank is None:
        return None
    if not distributions.of(plan).has_roles:
        return "worker", rank
    return next(((one.role, one.role_index) for one in distributions.of(plan).processes() if one.rank == rank), None)


def name_of(plan: Plan, record: Mapping[str, Any]) -> str:
    """`rank 3 on node 1`, with the role where there are several; or the node, or the job."""
    rank, node = record.get("rank"), record.get("node")
    if rank is None:
        return "the job" if node is None else "node %d" % node
    role = role_of(plan, rank)
    shown = " (%s %d)" % role if role and distributions.of(plan).has_roles else ""
    return "rank %d%s on node %d" % (rank, shown, node if node is not None else 0)


def others(plan: Plan, cause: Optional[Cause], ends: Mapping[int, RankEnd]) -> List[Others]:
    """What became of the ranks that are not the cause, those with the same fate together, most of them first."""
    found: Dict[str, List[int]] = {}
    excepted = {*cause["ranks"], cause.get("rank")} if cause else set()
    for process in distributions.of(plan).processes():
        if process.rank not in excepted:
            found.setdefault(_fate(ends.get(process.rank)), []).append(process.rank)
    return [{"ranks": found[what], "what": what} for what in sorted(found, key=lambda what: -len(found[what]))]


def _fate(end: Optional[RankEnd]) -> str:
    if end is None:
        return "no end reported"
    if end["stopped"]:
        return "killed after the grace time" if end["signal"] == signal.SIGKILL else "stopped by jobsdk"
    if end["exit_code"] == 0:
        return "completed"
    if classify.judge(end)["secondary"]:
        return "lost a peer (exit code %d)" % end["exit_code"]
    return exit_codes.describe(end["exit_code"], end["signal"])


def rank_records(plan: Plan, ends: Mapping[int, RankEnd]) -> Iterable[RankRecord]:
    """A line for each rank."""
    for process in distributions.of(plan).processes():
        end = ends.get(process.rank, {})
        yield {
            "rank": process.rank,
            "node": process.node_rank,
            "role": process.role,
            "pid": end.get("pid"),
            "exit_code": end.get("exit_code"),
            "signal": end.get("signal"),
            "stopped": bool(end.get("stopped")),
            "started": end.get("started"),
            "ended": end.get("t"),
        }


def content(
    plan: Plan,
    result: Outcome,
    ends: Mapping[int, RankEnd],
    times: Mapping[str, Optional[float]],
    decision: str,
    restarts: Sequence[RestartSummary],
) -> RunReport:
    """report.json. `times`: started, stopped and ended, in seconds; `decision`: the decision on a restart."""
    cause, ended = result.cause, times["ended"] or 0.0
    then = []
    if cause is not None:
        stopped = times["stopped"]
        if stopped and cause["time"]:
            then.append("the job was stopped %.2f s later and ended after %.2f s"
                        % (max(0.0, stopped - cause["time"]), max(0.0, ended - cause["time"])))  # fmt: skip
        then += [decision] if decision else []
    return {
        "run": plan["run"],
        "status": result.status,
        "exit_code": result.exit_code,
        "message": result.message,
        "cause": cause,
        "then": "; ".join(then) or None,
        "others": others(plan, cause, ends) if result.status != "Completed" else [],
        "restarts": list(restarts),
        "stacks": cause.get("stacks") if cause else None,
        "ranks": list(rank_records(plan, ends)),
        "started": times["started"],
        "ended": ended,
    }

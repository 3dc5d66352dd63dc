"""How a run on Azure ML ended of which no bootstrap has brought a report: by the ranks' logs and the service's error.

The service names the process whose end it saw first, which is often one that it has killed itself. So the cause is
looked for in what the ranks wrote; the service's word counts for what only it knows, such as a node taken away.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.failures import classify, fallback_report, report, tracebacks
from jobsdk.bootstrap.spec import events, exit_codes, mlflow_store, paths, secrets
from jobsdk.compute.ends import finish

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.bootstrap.spec.report import Cause, Others, RankEnd, RunReport
    from jobsdk.runs.folder import RunFolder


#: What Azure ML's runtime writes for a process that it has killed because another one had failed.
_KILLED = re.compile(r"terminated by the runtime due to failure in other processes", re.IGNORECASE)
_EXIT_CODE = re.compile(r"(?:exit[ _]?codes?|status code|exit status)[\s:=]{0,3}(-?\d{1,3})\b", re.IGNORECASE)
_LOG_FILE = re.compile(r"std_log(?:_process)?_(?:(worker|ps|chief)_)?(\d+)\.txt")
#: 256 - n, as a Python that ends with the negative code of its child: n was a signal.
_NEGATED = {256 - number: number for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM)}
_QUOTE = re.compile(r"(?<=for error details\.) Error: ")
_LONGEST = 300  # characters of the service's words


class _Known(NamedTuple):
    """What some words of the service mean: the class of the cause, how the run ended, and what to do."""

    pattern: str
    kind: str
    status: str
    code: int
    advice: str | None = None
    is_first: bool = False  # whether it comes before what ranks have written, which may be what it led to


_KNOWN = (
    _Known(
        r"preempt|evicted|low.?priority (node|vm)",
        "preempted", "Preempted", exit_codes.PREEMPTED,
        "take dedicated nodes (queue_settings.job_tier, the cluster's priority), or go on from a checkpoint",
        is_first=True,
    ),
    _Known(
        r"max(imum)?[ _]?(run|execution)[ _]?(time|duration)|JobTimeout|exceeded .{0,30}time(out| limit)",
        "timeout", "TimedOut", exit_codes.TIMED_OUT,
        "limits.timeout sets the time",
        is_first=True,
    ),
    _Known(
        r"node.{0,40}(unusable|unhealthy|unreachable|preparation failed|was lost|went down)|NodeFailure",
        "node_lost", "Lost", exit_codes.LOST,
        "submit it again; if it happens often, resize the cluster to get other nodes",
        is_first=True,
    ),
    _Known(
        r"quota|not enough (capacity|cores)|AllocationFailed|SkuNotAvailable|InsufficientCapacity",
        "quota", "Failed", exit_codes.NOT_STARTED,
        "ask for more quota, or take fewer nodes or another instance_type",
    ),
    _Known(
        r"image.{0,60}(pull|build|not found|manifest)|(pull|build).{0,60}image|ImageBuild|docker (pull|login)",
        "image", "Failed", exit_codes.NOT_STARTED,
        "see that the image exists and that the workspace may pull it; the page of the environment has its build's log",
    ),
    _Known(r"out of memory|OutOfMemory|\boom\b|memory limit", "out_of_memory", "Failed", 137),
    _Known(r"no space left|disk (is )?full|DiskFull", "disk_full", "Failed", 1),
    _Known(
        r"data.?capability|DataAccess|data.?mount|failed to mount|StreamAccess|AuthenticationError.{0,80}(blob|data)",
        "data_access", "Failed", exit_codes.NOT_STARTED,
        "see that the job's identity may read its inputs and write its outputs",
    ),
    _Known(
        r"SystemError|ServiceError|InternalServerError",
        "service_error", "Failed", 1,
        "a fault of the service: submit it again, and if it stays, give its support the run's name",
    ),
)  # fmt: skip


def write(
    run: RunFolder,
    plan: Plan,
    *,
    status: str,
    error: Mapping[str, Any] | None = None,
    started: float | None = None,
    ended: float | None = None,
    written: Mapping[int, float] = MappingProxyType({}),
    said: Mapping[int, str] = MappingProxyType({}),
) -> None:
    """Write report.json and the event `ended` of a run that Azure ML says to have ended, unless it has a report.

    `status` and `error` are the service's own. `started`, `ended` and `written` (by rank: when its log was last added
    to) are in seconds since 1970. `said` are the last lines of a node's output that belong to no rank.
    """
    if (run.path / "report.json").exists():
        return
    ended = time.time() if ended is None else ended
    ends, outcome = _judged(run, plan, status, _Service(error), started, ended, written, said)
    times = {"started": started, "stopped": None, "ended": ended}
    restarts = [event["summary"] for event in events.of(str(run.path), "restart")]
    content = report.content(plan, outcome, ends, times, "", restarts)
    if outcome.cause is not None:
        content["others"] = _others(plan, outcome.cause, ends)
    redactor = secrets.redactor(plan, os.environ)
    hidden = {part: redactor.data(content.get(part)) for part in ("message", "cause", "others")}
    content.update(cast("RunReport", hidden))
    mlflow_store.finish(plan["run"], str(run.path), outcome.status, ended)
    finish(run, None, content)


def _judged(
    run: RunFolder,
    plan: Plan,
    status: str,
    service: _Service,
    started: float | None,
    ended: float,
    written: Mapping[int, float],
    said: Mapping[int, str],
) -> tuple[dict[int, RankEnd], report.Outcome]:
    """The end of each rank of which one is known, and that of the run."""
    if status == "Completed":
        size = distributions.of(plan).world_size()
        done: RankEnd = {"exit_code": 0, "signal": None, "stopped": False, "t": ended}
        return dict.fromkeys(range(size), done), report.Outcome(status, 0, f"all {size} ranks completed", None)
    lasted = ended - started if started else 0.0
    is_asked = run.recorded_state().status == "CancelRequested"
    if status == "Canceled" and not (plan["timeout_s"] and lasted >= plan["timeout_s"] and not is_asked):
        return {}, report.Outcome(*fallback_report.CANCELLED, None)
    ends = {rank: end for end in _ends(run, plan, service, written) for rank in [end["rank"]] if rank is not None}
    failures = [end for end in ends.values() if not end["stopped"]]
    if status == "Canceled":
        failures = [report.timed_out(plan)]
    elif service.known and (service.known.is_first or not any(map(classify.speaks_for_itself, failures))):
        failures = [_of_service(service, service.known, failures)]
    elif not failures:
        failures = [_unexplained(run, service, said)]
    outcome = report.outcome(plan, "failure", ends, failures)
    known = service.known
    if outcome.cause is not None and known is not None and outcome.cause["class"] == known.kind:
        outcome.cause["advice"] = known.advice or outcome.cause["advice"]
        outcome = outcome._replace(status=known.status, exit_code=known.code)
    return ends, outcome


# -- what the ranks wrote --------------------------------------------------------------------------------------------


def _ends(run: RunFolder, plan: Plan, service: _Service, written: Mapping[int, float]) -> Iterator[RankEnd]:
    """The end of each rank that failed by what it wrote, or by the service's word, or was killed for another's failure.

    A rank that the service has seen killed by SIGKILL is one of the latter where another one tells why it failed.
    """
    named = _named(plan, service)
    found: list[RankEnd] = []
    restart = run.recorded_state().restarts
    for process in distributions.of(plan).processes():
        log = paths.rank_log(str(run.path), process.node_rank, process.rank, restart)
        words = tracebacks.last_words(log)
        was_killed = any(_KILLED.search(line) for line in words["last_lines"])
        if not (words["error"] or was_killed or process.rank == named):
            continue
        code, signum = service.end if process.rank == named else (None, None)
        found.append(
            cast("RankEnd", {
                "t": written.get(process.rank, 0.0), "node": process.node_rank, "rank": process.rank,
                "pid": None, "host": None, "exit_code": 1 if code is None else code, "signal": signum,
                "stopped": was_killed, **words,
            })
        )  # fmt: skip
    roots = [end for end in found if classify.speaks_for_itself(end)]
    for end in found:
        if end["signal"] == signal.SIGKILL and any(other is not end and other["error"] for other in roots):
            end["stopped"] = True
    code, signum = service.end
    if len(found) == 1 and code is not None:  # the only code that there is
        found[0]["exit_code"], found[0]["signal"] = code, signum
    if service.known is not None and service.known.kind == "out_of_memory":
        for end in found:
            if end["signal"] == signal.SIGKILL:
                end["evidence"] = {"oom": {"source": "Azure ML", "limit": None, "kills": 1}}
    yield from found


def _named(plan: Plan, service: _Service) -> int | None:
    """The rank whose log the service names."""
    match = _LOG_FILE.search(service.text)
    if match is None:
        return 0 if distributions.of(plan).world_size() == 1 and service.end[0] is not None else None
    role, number = match[1], int(match[2])
    for process in distributions.of(plan).processes():
        if (process.rank if role is None else process.role_index) == number and role in (None, process.role):
            return process.rank
    return None


def _others(plan: Plan, cause: Cause | None, ends: Mapping[int, RankEnd]) -> list[Others]:
    """What is known of the ranks that are not the cause, those with the same fate together."""
    found: dict[str, list[int]] = {}
    excepted = {*cause["ranks"], cause.get("rank")} if cause else set()
    for rank in range(distributions.of(plan).world_size()):
        if rank not in excepted:
            found.setdefault(_fate(ends.get(rank)), []).append(rank)
    return [{"ranks": ranks, "what": what} for what, ranks in sorted(found.items(), key=lambda one: -len(one[1]))]


def _fate(end: RankEnd | None) -> str:
    if end is None:
        return "wrote no error"
    if end["stopped"]:
        return "killed by Azure ML"
    return "lost a peer" if classify.judge(end)["secondary"] else f"failed: {(end['error'] or 'no error')[:80]}"


# -- what the service says -------------------------------------------------------------------------------------------


class _Service:
    """The error of a job as the service gives it: codes and messages, each within another."""

    def __init__(self, error: Mapping[str, Any] | None) -> None:
        self.pieces = list(_pieces(error or {}))
        # Of a process of the user's it quotes the end of the log, which is judged where it was written.
        self.text = "\n".join(f"{code}: {_QUOTE.split(message)[0]}" for code, message in self.pieces)
        self.known = next((one for one in _KNOWN if re.search(one.pattern, self.text, re.IGNORECASE)), None)
        self.end = _end(self.text)

    @property
    def words(self) -> str:
        """Its message in one line."""
        said = next((message for _, message in self.pieces if message), "")
        line = " ".join(tracebacks.plain(said).split())
        return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def _pieces(error: Any) -> Iterator[tuple[str, str]]:
    """(code, message), the outermost first."""
    if not isinstance(error, Mapping):
        return
    if "code" in error or "message" in error:
        yield str(error.get("code") or ""), str(error.get("message") or "")
    for key in ("error", "innerError", "innererror"):
        yield from _pieces(error.get(key))
    details = error.get("details")
    for one in details if isinstance(details, list | tuple) else ():
        yield from _pieces(one)


def _end(text: str) -> tuple[int | None, int | None]:
    """(exit code, signal) as the service has seen them."""
    codes = (int(match[1]) for match in _EXIT_CODE.finditer(text))
    found = next((code for code in codes if code and -signal.NSIG < code < 256), None)
    if found is None:
        return None, None
    signum = -found if found < 0 else _NEGATED.get(found, found - 128 if found - 128 == signal.SIGKILL else None)
    return (128 + signum, signum) if signum is not None else (found, None)


def _of_service(service: _Service, known: _Known, failures: list[RankEnd]) -> RankEnd:
    """A failure that only the service knows of; what a rank has to do with it is kept."""
    words = f"Azure ML ended the job: {service.words}" if known.is_first else f"Azure ML: {service.words}"
    at = failures[0] if len(failures) == 1 and not known.is_first else {}
    return {
        "pid": None, "host": None, "t": 0.0, "signal": None, "node": None, "rank": None, **at,
        "exit_code": known.code, "class": known.kind, "message": words,
    }  # fmt: skip


def _unexplained(run: RunFolder, service: _Service, said: Mapping[int, str]) -> RankEnd:
    """No rank has written an error, and the service's words are not known here."""
    began = any(path.stat().st_size for path in run.logs.glob("node-*/rank-*.log"))
    words = [f"Azure ML: {service.words}" if service.words else "Azure ML gives no reason for the failure"]
    words += [f"node {node} said: {line[:_LONGEST]}" for node, line in sorted(said.items()) if line][:1]
    code = service.end[0] or (1 if began else exit_codes.NOT_STARTED)
    return {
        "node": None, "rank": None, "pid": None, "host": None, "signal": None, "t": 0.0, "exit_code": code,
        "class": "exit" if began else "bootstrap_error", "message": "; ".join(words),
    }  # fmt: skip

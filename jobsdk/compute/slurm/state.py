"""What Slurm says of a job, read from `scontrol show job` or, once the controller has forgotten it, from `sacct`."""

from __future__ import annotations

import re
from typing import NamedTuple

from jobsdk.compute.ends import EngineEnd
from jobsdk.compute.hosts.host import Host
from jobsdk.errors import ComputeError

_WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_WITH_NODES = {"RUNNING", "CONFIGURING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}

#: Reasons for waiting (squeue(1), JOB REASON CODES) that do not say by themselves what to do.
_REASONS = {
    "None": "Slurm has not looked at it yet",
    "Resources": "the nodes it asks for are in use",
    "Priority": "other jobs are before it in the queue",
    "BeginTime": "it is started again after a short pause",
    "Dependency": "it waits for another job",
    "PartitionConfig": "it asks for more than the partition gives one job: it will never start. Fix: fewer nodes, less "
    "time, or another partition",
    "PartitionNodeLimit": "it asks for more nodes than the partition gives one job: it will never start. Fix: fewer "
    "nodes, or another partition",
    "PartitionTimeLimit": "it asks for more time than the partition gives: it will never start. Fix: a lower "
    "limits.timeout, or another partition",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs now",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Nodes_required_for_job_are_DOWN": "nodes that it needs are down, drained or reserved",
    "JobHeldUser": "it is held; `scontrol release` lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "Licenses": "it waits for a licence",
    "Reservation": "it waits for its reservation to begin",
    "InvalidAccount": "the account is not valid: it will never start. Fix: set account",
    "InvalidQOS": "the qos is not valid: it will never start. Fix: set qos",
    "launch_failed_requeued_held": "it could not be launched and is held; `scontrol release` tries again",
}


class JobState(NamedTuple):
    """A job as Slurm sees it now."""

    state: str  # in Slurm's words: PENDING, RUNNING, NODE_FAIL, ...
    reason: str = ""
    nodes: str = ""  # those that it has, as a list in Slurm's form
    exit_code: int = 0  # as a shell has it: 128 + n for a signal n
    restarts: int = 0

    @property
    def is_waiting(self) -> bool:
        return self.state in _WAITING

    @property
    def has_nodes(self) -> bool:
        return self.state in _WITH_NODES


def ask(host: Host, job: str) -> JobState | None:
    """What Slurm knows of a job; None where nobody remembers it. Raises ComputeError where Slurm does not answer."""
    answer = host.run(["scontrol", "--oneliner", "show", "job", job], timeout=30)
    if answer.code == 0 and "JobState=" in answer.out:
        return read_scontrol(answer.out)
    if "Invalid job id" not in answer.err + answer.out:
        raise ComputeError(f"Slurm does not answer on {host.name}: {answer.last_words}")
    fields = "State,ExitCode,NodeList,Reason"
    answer = host.run(["sacct", "--jobs", job, "--allocations", "--noheader", "--parsable2", "--format", fields])
    return read_sacct(answer.out) if answer.code == 0 else None  # 1: there is no accounting


def read_scontrol(text: str) -> JobState:
    """The first line of `scontrol --oneliner show job`."""

    def value(key: str) -> str:
        found = re.search(rf"(?:^|\s){key}=(\S*)", text)
        return "" if found is None or found.group(1) == "(null)" else found.group(1)

    reason, restarts = value("Reason"), value("Restarts")
    nodes = value("NodeList")
    return JobState(value("JobState"), reason, nodes, _exit_code(value("ExitCode")), int(restarts or 0))


def read_sacct(text: str) -> JobState | None:
    """What `sacct --parsable2 --format State,ExitCode,NodeList,Reason` says last."""
    lines = text.strip().splitlines()
    if not lines:
        return None
    state, code, nodes, reason = (lines[-1].split("|") + [""] * 3)[:4]
    known = "" if nodes == "None assigned" else nodes
    return JobState(state.split()[0] if state else "", reason, known, _exit_code(code))  # "CANCELLED by 0"


def _exit_code(text: str) -> int:
    """`7:0` is a code, `0:9` a signal."""
    code, _, signum = text.partition(":")
    return 128 + int(signum) if signum.isdigit() and int(signum) else int(code) if code.isdigit() else 0


def reason_in_words(job: str, state: JobState) -> str:
    """Why a job waits, for a person."""
    code = state.reason.strip("()").partition(",")[0] or "None"
    words = _REASONS.get(code)
    said = f"{words} ({code})" if words and code != "None" else words or code
    return f"Slurm job {job}: {said}"


def end(job: str, state: JobState | None, *, cancelled: bool, begun: bool) -> EngineEnd:
    """What the end of a job means for its run. It is never a success: that only the bootstraps can tell.

    `begun`: whether ranks were started, so that there once was a node 0 that should have had the last word.
    """
    if cancelled:
        return EngineEnd.canceled()
    if state is None:
        return EngineEnd.lost(f"Slurm no longer knows job {job}, which ended without a report")
    what = f"Slurm ended job {job} as {state.state}"
    match state.state:
        case "CANCELLED":
            return EngineEnd.canceled(f"Slurm job {job} was cancelled with scancel or by Slurm")
        case "TIMEOUT" | "DEADLINE":
            words = f"{what}: the time that Slurm gives it was used up (--time, or the partition's limit)"
            return EngineEnd.timed_out(words)
        case "PREEMPTED":
            return EngineEnd.preempted(f"{what}: another job needed its nodes")
        case "OUT_OF_MEMORY":
            return EngineEnd.out_of_memory(f"{what}: more memory was used than mem allows")
        case "NODE_FAIL" | "BOOT_FAIL":
            return EngineEnd.lost(f"{what}: a node failed ({state.nodes or 'of unknown name'})")
        case "FAILED" if state.exit_code and not begun:
            words = f"{what} with exit code {state.exit_code}, before its bootstraps could report an end"
            return EngineEnd.failed(words, exit_code=state.exit_code)
    return EngineEnd.lost(f"{what}, but its bootstraps have reported no end")

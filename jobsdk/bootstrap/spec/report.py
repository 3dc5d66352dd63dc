"""How a run ended, as JSON: report.json, and what it is made of. The reference of these formats.

Times are seconds since 1970. Import it for annotations only (`if TYPE_CHECKING`): the bootstrap starts without it.
"""

from __future__ import annotations

from typing import List, Optional, TypedDict

#: `class` is a keyword of Python, so this key is declared as text.
_Classified = TypedDict("_Classified", {"class": str}, total=False)


class Oom(TypedDict):
    #: `cgroup` where a memory limit was hit, `kernel` where the machine's memory was used up; `Azure ML` by its word
    source: str
    #: the limit, in bytes; None where it is not known
    limit: Optional[int]
    #: how many processes the kernel killed
    kills: int


class Disk(TypedDict):
    #: a path on the disk that is full
    path: str
    #: bytes that are left
    free: int
    #: bytes in all
    size: int


class Evidence(TypedDict, total=False):
    #: processes were killed for want of memory
    oom: Oom
    #: a disk is full
    disk: Disk
    #: the network interface that leads to node 0
    interface: str
    #: node 0's address and its first port, as `host:port`
    master: str
    #: the ports that the job gave to the ranks of this attempt
    ports: List[int]


class _Failed(_Classified, total=False):
    #: the number of the node that failed; None if no single node did
    node: Optional[int]
    #: the rank that failed; None if a node or the job did
    rank: Optional[int]
    #: its process id on its node
    pid: Optional[int]
    #: the node's host name
    host: Optional[str]
    #: its exit code; 128 + n for signal n
    exit_code: int
    #: the number of the signal that killed it
    signal: Optional[int]
    #: the last Python traceback in its log
    traceback: Optional[str]
    #: the line of its log that names the exception
    error: Optional[str]


class RankEnd(_Failed, total=False):
    """A failure of a rank, a node or the job, or any end of a rank. All but `t` and `exit_code` may be missing."""

    #: the message's type on the wire: `rank_ended` or `failed`
    type: str
    #: the attempt that it belongs to
    restart: int
    #: when it ended
    t: float
    #: when the rank was started
    started: float
    #: True if it was stopped, by us or by a launcher that we stopped
    stopped: bool
    #: when a rank wrote its last that had failed before it was told to stop
    failed_before: float
    #: what happened, where it is not a plain exit
    message: Optional[str]
    #: the last lines of the log
    last_lines: List[str]
    #: what the node measured of its death
    evidence: Evidence
    #: the latest step that the rank reported, -1 without one; in a job with restarts
    step: int
    #: the library (`mpi4py`, `horovod`) that saw a world of one process in this rank
    world_of_one: str
    #: the patterns of `retry_on` and `never_retry_on` that the log matches
    matched: List[str]
    #: where each group of ranks stood, a line each; of a hang or a timeout
    stacks: Optional[List[str]]
    #: True if the job is not to be started again
    final: bool


class Cause(_Failed, total=False):
    """The first failure: `class` is one of the [classes of failures](failure-classes.md)."""

    #: the last lines of its log
    last_lines: Optional[List[str]]
    #: where each group of ranks stood before a hang or a timeout was ended, a line each
    stacks: Optional[List[str]]
    #: the failure in one line
    message: str
    #: what to do about it, in one line
    advice: Optional[str]
    #: when it failed, in seconds since 1970
    time: float
    #: what the node measured: `oom`, `disk`, `interface`, `master`, `ports`
    evidence: Evidence
    #: True if the port in use is one that jobsdk chose
    port_is_ours: bool
    #: the rank's role: `worker`, or TensorFlow's `chief` or `ps`
    role: str
    #: its number in that role
    role_index: int
    #: all ranks that failed with the same error
    ranks: List[int]


class Others(TypedDict):
    """Ranks that are not the cause and ended alike."""

    #: these ranks
    ranks: List[int]
    #: how they ended, in words
    what: str


class RestartSummary(_Classified, total=False):
    """The cause of an attempt that was followed by another, with its `class`."""

    #: the failure in one line
    message: str
    #: the number of the node that failed; None if no single node did
    node: Optional[int]
    #: the rank that failed; None if a node or the job did
    rank: Optional[int]
    #: its exit code
    exit_code: int
    #: when it failed, in seconds since 1970
    time: float
    #: why the job was started again, in words
    decision: str
    #: the attempt's number, from 0
    round: int


class RankRecord(TypedDict):
    """One rank of the last attempt."""

    #: the rank
    rank: int
    #: its node's number
    node: int
    #: `worker`, or TensorFlow's `chief` or `ps`
    role: str
    #: its process id on its node; None if it did not report its end, as for the following
    pid: Optional[int]
    #: its exit code; 128 + n for signal n
    exit_code: Optional[int]
    #: the number of the signal that killed it
    signal: Optional[int]
    #: True if jobsdk stopped it
    stopped: bool
    #: when it was started, in seconds since 1970
    started: Optional[float]
    #: when it ended, in seconds since 1970
    ended: Optional[float]


class RunReport(TypedDict, total=False):
    """`report.json`, `Run.report` and `JobFailed.report`. A run that has not ended has an empty one."""

    #: the run's name
    run: str
    #: how it ended: `Completed`, `Failed`, `Canceled`, `TimedOut`, `Lost`, `Preempted`
    status: str
    #: the run's [exit code](exit-codes.md)
    exit_code: int
    #: how it ended, in one line
    message: str
    #: the first failure; None for a run that has completed or was cancelled
    cause: Optional[Cause]
    #: what followed the failure, in words
    then: Optional[str]
    #: what became of the other ranks, those with the same end together
    others: List[Others]
    #: the attempts before the last, oldest first
    restarts: List[RestartSummary]
    #: the cause's `stacks`
    stacks: Optional[List[str]]
    #: every rank; empty where nothing is known of them
    ranks: List[RankRecord]
    #: when the ranks of the first attempt were started, in seconds since 1970
    started: Optional[float]
    #: when the run ended, in seconds since 1970
    ended: float

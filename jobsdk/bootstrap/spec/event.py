"""What the events in a run's `events.jsonl` hold. docs/reference/events.md says which event has which facts.

Import it for annotations only (`if TYPE_CHECKING`): the bootstrap starts without it.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, TypedDict, Union

from .messages import PythonFacts
from .report import RestartSummary, RunReport

#: `class`, which is no name for an attribute: the class of a failure.
_Classified = TypedDict("_Classified", {"class": str}, total=False)


class Facts(_Classified, total=False):
    """What a writer may say in an event. Times are in seconds since 1970 by node 0's clock."""

    #: when it happened; the time of writing if the writer does not say
    t: float
    #: who did it: a pid, or a name
    by: Union[int, str]
    message: str
    #: the engine's own number or name of the job
    job: Union[int, str, None]
    #: its number; None in a `failure` of no single node
    node: int
    nodes: Any
    #: its number; None in a `failure` of a node or of the job
    rank: int
    host: str
    hosts: Sequence[str]
    #: of a pod: its name
    pod: str
    #: of `allocated`: by node; of `inventory`: the model of each GPU
    gpus: Any
    pid: int
    #: the start time of a process, in clock ticks since boot
    start: Optional[int]
    #: how long it took
    seconds: float
    #: of an input or output: its name
    name: str
    uri: str
    url: str
    files: int
    bytes: int
    #: the checkpoint within an output; None for the whole output
    checkpoint: Optional[str]
    #: of `queued`: the engine does not take it as it is, so that waiting alone may not help
    refused: bool
    #: nodes that are missing
    missing: Sequence[int]
    master_addr: str
    master_port: int
    #: the attempt's number, from 0
    restart: int
    #: kernel and its release
    system: str
    cores: int
    #: bytes; None where it is not known
    memory: Optional[int]
    #: the version of NVIDIA's driver; None without one
    driver: Optional[str]
    #: of node 0 only; None if no rank has started a Python
    python: Optional[PythonFacts]
    exit_code: int
    signal: Optional[int]
    #: of a rank that jobsdk itself ended
    stopped: bool
    #: of a failure that a node noted without a coordinator
    alone: bool
    #: why all nodes stop: `failure`, `complete`, `timeout` or `cancelled`
    reason: str
    #: why the job starts again, in words
    decision: str
    #: what of the budgets was used (restarts.Used)
    used: Sequence[int]
    #: seconds until the next attempt
    delay: float
    #: the cause of the attempt that ended
    summary: RestartSummary
    #: another bootstrap of node 0 starts the next attempt
    handed_over: bool
    #: how often the engine had started the whole job again
    started_by_engine: int
    #: the report of a node 0 that was taken away
    report: RunReport
    #: people know it already
    told: bool
    status: str
    #: the state that Azure ML's service names
    azureml: Any


class Event(Facts, total=False):
    """One line of the stream, as readers get it."""

    event: str
    #: of an event that came from a node: the node, its life, and where the event ends in that node's own stream
    origin: List[int]

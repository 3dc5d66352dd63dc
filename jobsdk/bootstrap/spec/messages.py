"""What goes over the control port, as JSON: the reference of these formats.

The local compute's supervisor and its bootstraps talk over socket pairs in the same frames: `alive` and `replace`
(`node`) go to the supervisor, `cancel`, `lost` (`node`, `pid`, `code`) and `stacks` (`id`) come from it.

Every message has its `type`. Messages of a node have the attempt that they belong to as `restart`; node 0 ignores those
of an attempt that is over. Ends of ranks and failures are a `RankEnd` of `report`. Times are seconds since 1970 by node
0's clock. Import it for annotations only (`if TYPE_CHECKING`): the bootstrap starts without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Protocol, Sequence, TypedDict, Union

from .report import RankEnd, RestartSummary

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Standing(TypedDict):
    """Where the job stands. Every node keeps the last one, so that another node 0 can go on from there."""

    #: the attempt's number
    restart: int
    #: whether the attempt has been decided on, and is to start; otherwise it had started when node 0 was lost
    is_due: bool
    #: the class of the failure that the loss of node 0 is
    lost_as: str
    #: what of the budgets was used (restarts.Used)
    used: Sequence[int]
    #: the restarts before this attempt, as in the report
    restarts: List[RestartSummary]
    #: when the job first started, seconds since 1970
    started: float


# -- to node 0 ---------------------------------------------------------------------------------------------------------


class Join(TypedDict, total=False):
    """`join`: a node is there."""

    type: str
    restart: int
    #: the node's host name
    host: str
    #: the process id of its bootstrap
    pid: int
    #: its GPUs; None where that is not known
    gpus: Optional[List[str]]
    #: free ports that it offers
    ports: List[int]
    #: its cores
    cores: int
    #: its InfiniBand devices that can be used; None where that is not known
    infiniband: Optional[List[str]]
    #: the name of its pod, where node 0 may need it
    pod: Optional[str]
    #: nothing can be started on it: why follows in a `failed`
    is_broken: bool
    #: of a node that has lost node 0: where the job stood
    standing: Optional[Standing]
    #: the node's end of its connection to node 0; node 0 adds it
    address: str
    #: node 0's end of that connection; node 0 adds it
    reached: str


class Ready(TypedDict):
    """`ready`: a node waits for the next attempt, and offers ports for it."""

    type: str
    ports: List[int]


class _Rank(TypedDict):
    type: str
    #: when it happened
    t: float
    node: int
    rank: int


class RankSaid(_Rank, total=False):
    """`first_output` and `metric`: a rank has written something, or reported something, for the first time."""

    restart: int


class RankStarted(RankSaid, total=False):
    """`rank_started`."""

    #: the process id on its node
    pid: int
    #: the host; only of a rank that another's launcher has started
    host: str


class Quiet(TypedDict):
    """`quiet`: nothing of the attempt runs on a node any more."""

    type: str
    #: how many commands of other nodes it was asked to run; fewer than node 0 knows of: another one is on its way
    shells: int


class Warned(TypedDict):
    """`warning`."""

    type: str
    message: str


class Idle(TypedDict):
    """`idle`: no rank of a node has done anything for the hang timeout."""

    type: str
    #: seconds for which that holds: then the node says it again, or it is no longer so
    again: float


class StacksTaken(TypedDict):
    """`stacks`: where the ranks of a node are."""

    type: str
    #: the question's number
    number: int
    #: by rank: its processes, each with its threads
    ranks: Dict[str, List[Dict[str, Any]]]


class ShellFacts(TypedDict("_From", {"from": int}, total=False), total=False):
    """What a message of the remote shell may have; `from` is the node of who asks, in `open`."""

    #: `open`: the node, by any of its names, and the shell command
    host: str
    command: str
    #: `data`, and what node 0 or a node says of `taken`: 1 is stdout, 2 stderr; stdin has none
    stream: int
    #: `data`: base64
    data: str
    #: `taken`: the bytes that were written to their end
    count: int
    signal: int
    #: `refused`, `unknown`: why
    message: str
    #: `ended`
    exit_code: int


class Shell(ShellFacts):
    """`shell`, both ways: a command of one process that runs on another node. See `remote_shell.sessions`."""

    type: str
    session: str
    what: str


class SendShell(Protocol):
    """Sends messages of one session."""

    def __call__(self, what: str, **facts: Unpack[ShellFacts]) -> None: ...


class _PythonFacts(TypedDict):
    executable: str
    version: str


class PythonFacts(_PythonFacts, total=False):
    """The Python of the ranks."""

    #: the version of each installed package; in an event, where packages.json does not have them
    packages: Dict[str, str]


class Inventory(TypedDict, total=False):
    """`inventory`: what a node has."""

    type: str
    #: kernel and its release
    system: str
    cores: int
    #: bytes; None where it is not known
    memory: Optional[int]
    #: the model of each GPU
    gpus: List[str]
    #: the version of NVIDIA's driver; None without one
    driver: Optional[str]
    #: of node 0 only; None if no rank has started a Python
    python: Optional[PythonFacts]


class Uploaded(TypedDict, total=False):
    """`uploaded`: a node has copied an output to its object store, or has none to copy."""

    type: str
    #: the output; not there where the node has none
    name: str
    #: where it is now
    url: str
    #: the checkpoint in it that is uploaded before the ranks have ended, by the folder of its parts
    checkpoint: str
    #: whether the node has uploaded everything that `upload` asks for
    last: bool
    files: int
    bytes: int
    seconds: float
    #: why it could not be uploaded
    error: str


class Plain(TypedDict):
    """A message without content: `cancel`, `clustered`, `facts` and `spare` to node 0, `noted` from there."""

    type: str


ToNode0 = Union[
    Inventory, Join, Ready, RankSaid, RankStarted, RankEnd, Quiet, Warned, Idle, StacksTaken, Shell, Uploaded, Plain
]  # fmt: skip

# -- from node 0 -------------------------------------------------------------------------------------------------------


class Start(TypedDict, total=False):
    """`start`: all nodes are there. Every node gets the same."""

    type: str
    restart: int
    #: the address of each node
    addresses: List[str]
    #: the ports that each node offered
    ports: List[List[int]]
    #: the InfiniBand devices that all nodes may use; None: what a rank finds counts
    infiniband: Optional[List[str]]
    #: where the job stands
    standing: Standing
    #: the receiver's cores; only for a rank that another's launcher has started
    cores: int
    #: the receiver's GPUs; likewise
    gpus: Optional[List[str]]


class Stop(TypedDict):
    """`stop`: end what runs."""

    type: str
    #: `failure`, `complete`, `timeout` or `cancelled`
    reason: Optional[str]


class Again(TypedDict):
    """`again`: be ready for another attempt."""

    type: str
    restart: int


class TakeStacks(TypedDict):
    """`stacks`: say where the ranks are."""

    type: str
    number: int
    #: by rank: its process id, and the node that started it, or the host where a launcher did
    places: Mapping[str, Sequence[Any]]


class ClusterStep(TypedDict):
    """`cluster`: `join` the job's own cluster, or `run` the command, as all nodes have joined."""

    type: str
    what: str


class Finish(TypedDict):
    """`finish`: the job has ended."""

    type: str
    exit_code: int


class Upload(TypedDict):
    """`upload`: copy the outputs that go to object stores, as no rank runs any more."""

    type: str


class HandedOver(TypedDict):
    """`handed_over`: node 0 goes, and another bootstrap of it starts the job again."""

    type: str
    standing: Standing


class Take(TypedDict):
    """`take`: a spare node takes the place of a lost one."""

    type: str
    #: the number of the lost node
    node: int


class Refused(TypedDict):
    """`refused`: the node has no place here."""

    type: str
    reason: str

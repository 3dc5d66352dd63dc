"""What goes over the control port of the preflight, as JSON: the reference of these formats.

Every message has its `type`. Import it for annotations only (`if TYPE_CHECKING`): the bootstrap starts without it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, TypedDict

# -- to node 0 ---------------------------------------------------------------------------------------------------------


class AskTime(TypedDict):
    """`time`: what does node 0's clock say?"""

    type: str
    #: by the clock of the node
    sent: float


class Here(TypedDict):
    """`here`: what a node is like, and where it listens."""

    type: str
    #: `preflight.machine.facts`
    facts: Mapping[str, Any]
    address: str
    #: for connections of all nodes
    port: int
    #: for the measurement of bandwidth
    station: int
    #: the interface that routes to node 0, and its MTU
    interface: Optional[str]
    mtu: Optional[int]
    #: all its addresses
    own: List[str]


class Clock(TypedDict):
    """How far a node's clock is ahead of node 0's, and the time there and back in which that was found, in seconds."""

    offset: float
    rtt: float


class _Target(TypedDict):
    to: int
    #: its address and port
    at: str


class Reached(_Target, total=False):
    """A connection to another node: `ms`, or the error and its stage, `connect` or `receive`."""

    ms: float
    error: str
    stage: str


class _Looked(TypedDict, total=False):
    reached: List[Reached]
    #: by node: what is wrong with its name
    names: Dict[str, str]
    clock: Clock


class Result(_Looked):
    """`result`: what a node found of the others."""

    type: str


class PortTaken(TypedDict):
    """Why node 0 could not listen on MASTER_PORT."""

    port: int
    why: str


class NodeReport(Here, _Looked, total=False):
    """What node 0 knows of a node: `here`, and then `result`."""

    port_taken: PortTaken


#: What came from one node of the ring to the next one: `gbps`, or an error.
RingLink = TypedDict("RingLink", {"from": int, "to": int, "gbps": float, "error": str}, total=False)


class Streamed(TypedDict):
    """`streamed`: a round of the ring is over for a node; of one that received nothing there is no link."""

    type: str
    link: Optional[RingLink]


class AllReduce(TypedDict, total=False):
    """What torch's all-reduce came to; only node 0 knows a rate."""

    backend: str
    gbps: float
    bytes: int
    error: str


class Reduced(TypedDict):
    """`reduced`."""

    type: str
    said: AllReduce


class _Ring(TypedDict):
    links: List[RingLink]


class Measured(_Ring, total=False):
    """The bandwidth between the nodes."""

    all_reduce: AllReduce


# -- from node 0 -------------------------------------------------------------------------------------------------------


class Time(AskTime):
    """`time`."""

    #: by node 0's clock
    at: float


class ProbedNode(TypedDict):
    """A node as the others hear of it."""

    address: str
    port: int
    station: int
    own: List[str]
    host: str


class Probe(TypedDict):
    """`probe`: connect to all nodes, and look up their names."""

    type: str
    nodes: Dict[str, ProbedNode]


class Stream(TypedDict):
    """`stream`: a round of the ring."""

    type: str
    order: List[int]
    senders: List[int]


class Reduce(TypedDict):
    """`reduce`: measure torch's all-reduce."""

    type: str
    backend: str
    port: int

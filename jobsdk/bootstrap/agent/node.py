"""Where a bootstrap is: which node of which run, and how it reaches node 0."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Sequence

if TYPE_CHECKING:
    from ..spec.messages import Standing


class Node(NamedTuple):
    """Found out by `detect`, or given by the local compute's supervisor."""

    rank: int
    control_addresses: Sequence[str]  # where node 0 may be reached
    control_ports: Sequence[int]  # where its control port may be: it takes the first that is free
    token: bytes
    run_dir: str
    io_dir: str  # a name of run_dir that is one word for a shell
    working_dir: str
    nodes_here: int = 1  # how many nodes of the job share this machine
    gpus: Optional[List[str]] = None
    lifeline: Optional[socket.socket] = None  # to and from a local supervisor
    listener: Optional[socket.socket] = None  # node 0 only: the control port, bound already
    hosts: Optional[List[str]] = None  # the names of all nodes, where they are known before they join
    restart: int = 0  # how often the job was started before node 0's bootstrap was
    broken: Optional[str] = None  # why nothing can be started here; node 0 is to hear of it
    used: Optional[Sequence[int]] = None  # what of the budgets for restarts was used by then (restarts.Used)
    returns: bool = False  # whether somebody starts the whole job again when this node is taken away
    replaced: bool = False  # whether every node that is lost gets another bootstrap, also node 0
    standing: Optional[Standing] = None  # of a node 0 that replaces another: where the job stands, if no node knows
    pod: Optional[str] = None  # the name of its pod, where node 0 may declare pods of lost machines failed
    judged: bool = False  # whether somebody else says how the job ended when this node 0 is taken away

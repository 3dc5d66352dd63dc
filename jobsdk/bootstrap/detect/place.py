"""Where a bootstrap is, as each detector says it."""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Tuple


class NodeIdentity(NamedTuple):
    """Where a bootstrap is: its node's rank, and where node 0 listens."""

    rank: int
    addresses: List[str]  # of node 0: names or numbers; any of them may be wrong as long as one is right
    ports: List[int]  # of the control port: node 0 takes the first that is free
    hosts: Optional[List[str]] = None  # the nodes' names in their order, where they are known
    starts: int = 0  # how often the engine itself has started the whole job again (Slurm: requeued it)
    returns: bool = False  # whether the engine does so when it takes node 0 away
    judges: bool = False  # whether only the engine knows why it takes node 0 away: a cancellation, a limit, another job


class NotDetected(Exception):
    """No detector knows this place, or what it says is incomplete."""


def control(text: str) -> Tuple[List[str], List[int]]:
    """The addresses and the ports in a value of JOBSDK_CONTROL. Raises ValueError."""
    left, right = text.split()
    addresses = [address.strip("[]") for address in left.split(",") if address]
    ports = [int(port) for port in right.split(",") if port]
    if not addresses or not ports or not all(0 < port < 65536 for port in ports):
        raise ValueError(text)
    return addresses, ports

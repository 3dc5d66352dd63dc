"""Which node of the job is this? Each way of knowing is one small function of the environment."""

from __future__ import annotations

import os
from typing import Callable, List, Mapping, NamedTuple, Optional

from . import launchers


class Place(NamedTuple):
    """Where a bootstrap is: its node's rank, and where node 0 listens."""

    rank: int
    control_address: str
    control_port: int


class NotDetected(Exception):
    """No detector knows this place, or what it says is incomplete."""


def explicit(environment: Mapping[str, str]) -> Optional[Place]:
    """JOBSDK_NODE_RANK and JOBSDK_CONTROL ("address port" of node 0), set by whoever starts the bootstraps."""
    if "JOBSDK_NODE_RANK" not in environment:
        return None
    try:
        address, port = environment[launchers.CONTROL].split()
        return Place(int(environment["JOBSDK_NODE_RANK"]), address, int(port))
    except (KeyError, ValueError):
        raise NotDetected(
            'JOBSDK_NODE_RANK must be a number, and JOBSDK_CONTROL the "address port" of node 0\'s control port'
        ) from None


DETECTORS: List[Callable[[Mapping[str, str]], Optional[Place]]] = [explicit]


def detect(environment: Optional[Mapping[str, str]] = None) -> Place:
    """The first detector's answer. Raises NotDetected."""
    known = os.environ if environment is None else environment
    for detector in DETECTORS:
        place = detector(known)
        if place is not None:
            return place
    raise NotDetected("this is no place that the bootstrap knows; set JOBSDK_NODE_RANK and JOBSDK_CONTROL")

"""Which node of the job is this? Each way of knowing is one small function of the environment."""

from __future__ import annotations

import os
from typing import Callable, List, Mapping, Optional

from ..spec import variables
from .place import NodeIdentity, NotDetected, control


def explicit(environment: Mapping[str, str]) -> Optional[NodeIdentity]:
    """JOBSDK_NODE_RANK and JOBSDK_CONTROL, set by whoever starts the bootstraps; JOBSDK_HOSTS helps messages.

    JOBSDK_CONTROL is "ADDRESS[,ADDRESS...] PORT[,PORT...]", all of node 0; JOBSDK_HOSTS is "NAME,NAME,...".
    """
    if "JOBSDK_NODE_RANK" not in environment:
        return None
    try:
        addresses, ports = control(environment[variables.CONTROL])
        rank = int(environment["JOBSDK_NODE_RANK"])
        if rank < 0:
            raise ValueError
    except (KeyError, ValueError):
        raise NotDetected(
            'JOBSDK_NODE_RANK must be a number, and JOBSDK_CONTROL "ADDRESS[,ADDRESS...] PORT[,PORT...]" of node 0'
        ) from None
    hosts = [name.strip() for name in environment.get("JOBSDK_HOSTS", "").split(",")]
    return NodeIdentity(rank, addresses, ports, hosts if any(hosts) else None)


def slurm(environment: Mapping[str, str]) -> Optional[NodeIdentity]:
    """A job step of Slurm."""
    if "SLURM_JOB_ID" not in environment:
        return None
    from . import slurm as step

    return step.place(environment)


def kubernetes(environment: Mapping[str, str]) -> Optional[NodeIdentity]:
    """A pod of an Indexed Job or a JobSet."""
    if "JOB_COMPLETION_INDEX" not in environment:
        return None
    from . import kubernetes as pod

    return pod.place(environment)


def azureml(environment: Mapping[str, str]) -> Optional[NodeIdentity]:
    """A node of a command job of Azure ML."""
    if "AZUREML_RUN_ID" not in environment:
        return None
    from . import azureml as service

    return service.place(environment)


#: Azure ML comes last: also ranks of ours, which may start jobs of their own, have its variables.
DETECTORS: List[Callable[[Mapping[str, str]], Optional[NodeIdentity]]] = [explicit, slurm, kubernetes, azureml]


def detect(environment: Optional[Mapping[str, str]] = None) -> NodeIdentity:
    """The first detector's answer. Raises NotDetected."""
    known = os.environ if environment is None else environment
    for detector in DETECTORS:
        place = detector(known)
        if place is not None:
            return place
    raise NotDetected("this is no place that the bootstrap knows; set JOBSDK_NODE_RANK and JOBSDK_CONTROL")

"""A pod of an Indexed Job, or of a JobSet with one, as a place of the bootstrap."""

from __future__ import annotations

import re
import socket
from typing import Mapping, Optional

from ..spec import variables
from .place import NodeIdentity, NotDetected, control

#: Set by the Job controller in each container of an Indexed Job, also in those of a JobSet.
INDEX = "JOB_COMPLETION_INDEX"
#: Where node 0's control port may be. A pod has all ports for itself, unless it uses its host's network.
PORTS = (29871, 29872, 29873, 29874)


def place(environment: Mapping[str, str]) -> Optional[NodeIdentity]:
    """The index is the rank. Node 0 is named by JOBSDK_CONTROL, or else by this pod's own name with the index 0.

    Pods of an Indexed Job are called JOB-INDEX, those of a JobSet JOBSET-NAME-0-INDEX, in their Service's subdomain.
    """
    if INDEX not in environment:
        return None
    index = environment[INDEX]
    if not re.fullmatch("[0-9]+", index):
        raise NotDetected("%s must be a number, not %r" % (INDEX, index))
    if variables.CONTROL in environment:
        try:
            return NodeIdentity(int(index), *control(environment[variables.CONTROL]))
        except ValueError:
            raise NotDetected(
                '%s must be "ADDRESS[,ADDRESS...] PORT[,PORT...]" of node 0' % variables.CONTROL
            ) from None
    first = node_0(socket.getfqdn(), index)
    if first is None:
        raise NotDetected(
            "the pod's name %s does not end with its index %s; give the pods a subdomain, or set %s"
            % (socket.gethostname(), index, variables.CONTROL)
        )
    return NodeIdentity(int(index), [first], list(PORTS))


def node_0(own: str, index: str) -> Optional[str]:
    """The name of node 0 by that of the pod with `index`, both with their domain; None if it has no such name."""
    host, dot, domain = own.partition(".")
    base, dash, last = host.rpartition("-")
    return "%s-0%s%s" % (base, dot, domain) if dash and last == index else None

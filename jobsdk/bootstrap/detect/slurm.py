"""A job step of Slurm: which node this is, and where node 0 is, from SLURM_* alone. A container needs no `scontrol`."""

from __future__ import annotations

import itertools
import re
from typing import Iterator, List, Mapping, Optional

from ..spec import variables
from .place import NodeIdentity, NotDetected

_FIRST_PORT, _PORTS_OF_JOB, _JOBS = 20000, 4, 3000  # below 32768, where ports of outgoing connections begin
_PIECE = re.compile(r"([^\[\]]*)(?:\[([^\[\]]+)\])?")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def place(environment: Mapping[str, str]) -> Optional[NodeIdentity]:
    """What srun tells each of its tasks, of which there must be one on each node.

    Node 0 is known by its name, and by the address of the node where srun was called: that of the batch script, which
    runs on the first node. JOBSDK_REQUEUES says that the job was submitted with --requeue.
    """
    if "SLURM_JOB_ID" not in environment or "SLURM_NODEID" not in environment:
        return None
    listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    try:
        job, rank = int(environment["SLURM_JOB_ID"]), int(environment["SLURM_NODEID"])
        starts = int(environment.get("SLURM_RESTART_COUNT") or 0)
        hosts = expand(listed)
    except ValueError as error:
        raise NotDetected("Slurm's variables are not what they should be: %s" % error) from None
    if not 0 <= rank < len(hosts):
        raise NotDetected("SLURM_NODEID is %d, but the nodes are %s" % (rank, listed or "not named"))
    addresses = [hosts[0], environment.get("SLURM_LAUNCH_NODE_IPADDR", "")]
    known = [one for one in dict.fromkeys(addresses) if one]
    returns = environment.get(variables.REQUEUES) == "1"
    return NodeIdentity(rank, known, ports(job), hosts, starts, returns, judges=True)


def ports(job: int) -> List[int]:
    """Where the control port of a job may be. Jobs that share a node have other ones, unless thousands lie between."""
    first = _FIRST_PORT + job % _JOBS * _PORTS_OF_JOB
    return list(range(first, first + _PORTS_OF_JOB))


def expand(text: str) -> List[str]:
    """The names in a list of nodes, as `scontrol show hostnames` has them: `gpu[001-003,07],login`.

    Raises ValueError for what is no such list.
    """
    names: List[str] = []
    for part in _parts(text):
        pieces: List[List[str]] = []
        for found in _PIECE.finditer(part):
            pieces.append([found.group(1)])
            if found.group(2) is not None:
                pieces.append(list(_numbers(found.group(2))))
        if "".join(found.group() for found in _PIECE.finditer(part)) != part:
            raise ValueError("%r is no list of nodes" % text)
        names.extend("".join(words) for words in itertools.product(*pieces))
    return names


def _parts(text: str) -> List[str]:
    """The text split at commas that are not in brackets."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        if letter == "," and not depth:
            parts.append(text[start:index])
            start = index + 1
        depth += {"[": 1, "]": -1}.get(letter, 0)
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _numbers(text: str) -> Iterator[str]:
    """The numbers in brackets: each as wide as the first of its range."""
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise ValueError("%r is no range of numbers" % part)
        low, high = found.group(1), found.group(2) or found.group(1)
        if int(low) > int(high):
            raise ValueError("%r is no range of numbers" % part)
        for number in range(int(low), int(high) + 1):
            yield "%0*d" % (len(low), number)

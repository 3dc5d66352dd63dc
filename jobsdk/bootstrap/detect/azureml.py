"""A command job of Azure ML as a place of the bootstrap: which node this is.

The job is of Azure's type pytorch with one process a node (a single node needs no type), so that its command runs once
on each node. Sources for the variables: Azure's documentation of distributed training, environment variables of compute
nodes of Azure Batch, and dumps that people have published, of AmlCompute and of Kubernetes.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any, Dict, List, Mapping, Optional

from . import slurm
from .place import NodeIdentity, NotDetected

RUN_ID = "AZUREML_RUN_ID"

_COUNT, _CONFIG, _HOSTS = "AZUREML_NODE_COUNT", "AZUREML_CR_DISTRIBUTED_CONFIG", "AZ_BATCH_HOST_LIST"
#: The node's number, as Azure itself and its type pytorch say it. These must agree.
_RANKS = ("AZUREML_CR_NODE_RANK", "NODE_RANK")
#: Where neither is set: the number of a process, which is the node's, as there is one a node.
_PROCESSES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("AZ_BATCHAI_TASK_INDEX", ""),
)
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
_MASTERS = ("MASTER_ADDR", "AZ_BATCHAI_JOB_MASTER_NODE_IP", "AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE")


def place(environment: Mapping[str, str]) -> Optional[NodeIdentity]:
    """None where this is no job of Azure ML, or a rank of ours, which has variables of the same names.

    Raises NotDetected where the variables are not enough, or contradict each other.
    """
    if not environment.get(RUN_ID) or "JOBSDK_RUN_NAME" in environment:
        return None
    count = nodes(environment)
    local = next((number for number in (_number(environment, name) for name in _LOCAL) if number), 0)
    if local:
        raise NotDetected(
            "the bootstrap must be started once on each node, and this is process %d of its node: set"
            " process_count_per_instance of Azure ML's job to 1" % local
        )
    ports = slurm.ports(zlib.crc32(environment[RUN_ID].encode()))
    if count <= 1:
        return NodeIdentity(0, ["127.0.0.1"], ports, judges=True)
    rank = _rank(environment, count)
    hosts = _hosts(environment)
    masters = [_without_port(environment.get(name, "")) for name in _MASTERS]
    addresses = [one for one in dict.fromkeys([*masters, *hosts[:1]]) if one]
    if not addresses:
        raise NotDetected(
            "the job has %d nodes, but none of %s, %s says where node 0 is" % (count, ", ".join(_MASTERS), _HOSTS)
        )
    return NodeIdentity(rank, addresses, ports, hosts if len(hosts) == count else None, judges=True)


def nodes(environment: Mapping[str, str]) -> int:
    """How many nodes Azure ML gives the job. Raises NotDetected for what is no number."""
    count = _number(environment, _COUNT)
    if count is None and environment.get("NODE_RANK"):
        count = _number(environment, "WORLD_SIZE")  # one process a node
    return (len(_hosts(environment)) or 1) if count is None else count


def _rank(environment: Mapping[str, str], count: int) -> int:
    said = {name: _number(environment, name) for name in _RANKS}
    known = {name: number for name, number in said.items() if number is not None}
    named = _distributed(environment).get("rank")  # the name of a variable
    if not known and isinstance(named, str):
        number = _number(environment, named)
        known = {} if number is None else {named: number}
    for name, size in () if known else _PROCESSES:
        number = _number(environment, name)
        if number is not None and (not size or _number(environment, size) in (None, count)):
            known = {name: number}
            break
    if not known:
        raise NotDetected("the job has %d nodes, but neither %s says which this is" % (count, " nor ".join(_RANKS)))
    if len(set(known.values())) > 1:
        raise NotDetected(
            "the variables of Azure ML contradict each other: %s"
            % ", ".join("%s is %d" % pair for pair in sorted(known.items()))
        )
    ((name, rank),) = list(known.items())[:1]
    if rank >= count:
        raise NotDetected("%s is %d, but the job has %d nodes" % (name, rank, count))
    return rank


def _number(environment: Mapping[str, str], name: str) -> Optional[int]:
    """None where it is not set or empty. Raises NotDetected for what is no number."""
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,9}", text):
        raise NotDetected("%s must be a number, not %r" % (name, text))
    return int(text)


def _hosts(environment: Mapping[str, str]) -> List[str]:
    """The nodes in their order: as the runtime has them, else as Azure Batch lists them, with commas or semicolons."""
    told = _distributed(environment).get("host_list")
    if isinstance(told, list) and told and all(isinstance(host, str) for host in told):
        return told
    text = environment.get(_HOSTS) or environment.get("AZ_BATCH_NODE_LIST", "")
    return [host for host in re.split(r"[,;\s]+", text) if host]


def _distributed(environment: Mapping[str, str]) -> Dict[str, Any]:
    """What the runtime itself has of the nodes; it helps where it can be read."""
    try:
        found = json.loads(environment.get(_CONFIG) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _without_port(text: str) -> str:
    """The address in `10.0.0.4:6000`, `[fd00::1]:6000` or `fd00::1`."""
    found = re.fullmatch(r"\[(.*)\](?::\d*)?|([^:]*)(?::\d*)?", text.strip())
    return next((part for part in found.groups() if part), "") if found else text.strip()

"""Names of variables by which the bootstrap tells its own processes where they are."""

from __future__ import annotations

from typing import Dict

RANK = "jobsdk-rank"


CONTROL, TOKEN = "JOBSDK_CONTROL", "JOBSDK_TOKEN"


IO_DIR = "JOBSDK_IO_DIR"


MPIRUN = "JOBSDK_MPIRUN"


#: The node of a `rank` process, where each node starts its own; and where its working directory is.
NODE, WORKING_DIR = "JOBSDK_NODE", "JOBSDK_WORKING_DIR"


#: What a compute tells the bootstraps that it has started: see `place`.
PARCEL, CODE, CODE_HASH = "JOBSDK_PARCEL", "JOBSDK_CODE", "JOBSDK_CODE_HASH"


RELAY = "JOBSDK_RELAY"


#: Set to 1 where a relaying node is led by who started it, through its stdin: see `relay`.
LED = "JOBSDK_LED"


#: Set to 1 in a job of Slurm that is started again when its nodes are taken away.
REQUEUES = "JOBSDK_REQUEUES"


#: Set to 1 where every node that is lost gets another bootstrap, also node 0, which the others then look for again.
REPLACES = "JOBSDK_REPLACES"


#: How often the engine has replaced this node; empty or not set: never.
REPLACED = "JOBSDK_REPLACED"


#: The name of the pod, where node 0 may declare pods of lost machines failed.
POD = "JOBSDK_POD"


#: Variables between the bootstrap's own processes; user code never sees them.
PRIVATE = frozenset((CONTROL, TOKEN, IO_DIR, MPIRUN, NODE, WORKING_DIR, PARCEL, CODE, CODE_HASH, RELAY, LED, REQUEUES))


PRIVATE |= {REPLACES, REPLACED, POD, "JOBSDK_NODE_RANK", "JOBSDK_HOSTS", "JOBSDK_SHELL", "JOBSDK_SHELL_NAME"}


def control_variables(address: str, port: int, token: bytes) -> Dict[str, str]:
    """How a `rank` process finds and joins the control port."""
    return {CONTROL: "%s %d" % (address, port), TOKEN: token.hex()}

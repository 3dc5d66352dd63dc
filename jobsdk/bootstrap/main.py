"""The bootstrap's command line: a table of verbs. Each imports only what it runs."""

from __future__ import annotations

import importlib
import os
import sys
from typing import List, Tuple

_USAGE = """usage: bootstrap node RUN_DIR   run this node of the job (its rank is detected, see the documentation)
       bootstrap local [--wait] RUN_DIR   run all nodes of the job on this machine (once a byte comes on stdin)
       bootstrap rank           run one rank, started by mpirun or another launcher
       bootstrap azureml        run this node of a job of Azure ML, whose plan is in the environment
       bootstrap pull RUN_DIR   send what is new in a run's folder, as stdin asks
       bootstrap host OPERATION do for a run what stdin asks of this machine
       bootstrap host node RUN_DIR   run the node that the former has started
       bootstrap tuner MODE SCRIPT ...   have DeepSpeed's autotuner search (tune), and train then (run)
       bootstrap sh HOST COMMAND ...       as ssh, on a node of the job; started by the programs of `shims`
       bootstrap pdsh -w HOST,... COMMAND  the same for many nodes
       bootstrap store          copy files from or to an object store, as stdin asks, in the job's own Python
       bootstrap fetch RUN_DIR  fetch a node's inputs from object stores before the node is started
       bootstrap preflight      look at this node and the ways to the others, in the place of a rank
       bootstrap allreduce BACKEND   measure torch's all-reduce with the other nodes, for the preflight
"""

_MANY = sys.maxsize
#: Verb, the least and most arguments, and what runs it; one that takes many gets them as a list. The first match wins.
_VERBS: List[Tuple[Tuple[str, ...], Tuple[int, int], str]] = [
    (("local", "--wait"), (1, 1), "agent.supervisor:wait_and_run"),
    (("local",), (1, 1), "agent.supervisor:run"),
    (("rank",), (0, 0), "agent.launched_rank:run"),
    (("node",), (1, 1), "agent.cluster_node:run"),
    (("azureml",), (0, 0), "agent.azureml_node:run"),
    (("pull",), (1, 1), "transport.pull:run"),
    (("host", "node"), (1, 1), "agent.ssh_host:node"),
    (("host",), (1, 1), "agent.ssh_host:run"),
    (("tuner",), (2, _MANY), "launchers.deepspeed_tuner:run"),
    (("sh",), (0, _MANY), "remote_shell.ssh:run"),
    (("pdsh",), (0, _MANY), "remote_shell.pdsh:run"),
    (("store",), (0, 0), "transport.store:run"),
    (("fetch",), (1, 1), "agent.cluster_node:fetch"),
    (("preflight",), (0, 0), "preflight.run:run"),
    (("allreduce",), (1, 1), "preflight.allreduce:run"),
]


def main(arguments: List[str]) -> int:
    """Run one verb; returns the exit code (64: wrong usage, as in sysexits.h)."""
    sys.argv[0] = os.path.abspath(sys.argv[0])  # a rank is started by it from another working directory
    for words, (least, most), place in _VERBS:
        rest = arguments[len(words) :]
        if tuple(arguments[: len(words)]) == words and least <= len(rest) <= most:
            module, _, function = place.partition(":")
            run = getattr(importlib.import_module("." + module, __package__), function)
            code: int = run(*rest) if most < _MANY else run(rest)
            return code
    sys.stderr.write(_USAGE)
    return 64

"""The bootstrap's command line: `node`, `rank`, `local`, `azureml`, `tuner` and `preflight`."""

from __future__ import annotations

import os
import sys
from typing import List

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
       bootstrap preflight      look at this node and the ways to the others, in the place of a rank
       bootstrap allreduce BACKEND   measure torch's all-reduce with the other nodes, for the preflight
"""


def main(arguments: List[str]) -> int:
    """Run one verb; returns the exit code (64: wrong usage, as in sysexits.h)."""
    sys.argv[0] = os.path.abspath(sys.argv[0])  # a rank is started by it from another working directory
    if arguments[:1] == ["local"] and len(arguments) == 2:
        from . import local

        return local.run(arguments[1])
    if arguments[:2] == ["local", "--wait"] and len(arguments) == 3:
        from . import local

        return local.wait_and_run(arguments[2])
    if arguments == ["rank"]:
        from . import rank

        return rank.run()
    if arguments[:1] == ["node"] and len(arguments) == 2:
        from . import place

        return place.run(arguments[1])
    if arguments == ["azureml"]:
        from . import azureml_node

        return azureml_node.run()
    if arguments[:1] == ["pull"] and len(arguments) == 2:
        from . import pull

        return pull.run(arguments[1])
    if arguments[:1] == ["host"] and len(arguments) in (2, 3):
        from . import host

        return host.run(arguments[1]) if len(arguments) == 2 else host.node(arguments[2])
    if arguments[:1] == ["tuner"] and len(arguments) > 2:
        from . import tuner

        return tuner.run(arguments[1], arguments[2:])
    if arguments[:1] == ["sh"]:
        from . import remote_shell

        return remote_shell.run(arguments[1:])
    if arguments[:1] == ["pdsh"]:
        from . import pdsh

        return pdsh.run(arguments[1:])
    if arguments == ["preflight"]:
        from . import preflight

        return preflight.run()
    if arguments[:1] == ["allreduce"] and len(arguments) == 2:
        from . import allreduce

        allreduce.run(arguments[1])
    sys.stderr.write(_USAGE)
    return 64

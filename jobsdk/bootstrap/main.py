"""The bootstrap's command line: `node`, `rank`, `local` and `tuner`."""

from __future__ import annotations

import os
import sys
from typing import List

_USAGE = """usage: bootstrap node RUN_DIR   run this node of the job (its rank is detected, see the documentation)
       bootstrap local [--wait] RUN_DIR   run all nodes of the job on this machine (once a byte comes on stdin)
       bootstrap rank           run one rank, started by mpirun or another launcher
       bootstrap tuner MODE SCRIPT ...   have DeepSpeed's autotuner search (tune), and train then (run)
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
    if arguments[:1] == ["tuner"] and len(arguments) > 2:
        from . import tuner

        return tuner.run(arguments[1], arguments[2:])
    sys.stderr.write(_USAGE)
    return 64

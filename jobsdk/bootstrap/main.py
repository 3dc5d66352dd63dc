"""The bootstrap's command line: `node`, `rank` and `local`."""

from __future__ import annotations

import os
import sys
from typing import List

_USAGE = """usage: bootstrap node RUN_DIR   run this node of the job (its rank is detected, see the documentation)
       bootstrap local RUN_DIR  run all nodes of the job on this machine
       bootstrap rank           run one rank, started by mpirun or another launcher
"""


def main(arguments: List[str]) -> int:
    """Run one verb; returns the exit code (64: wrong usage, as in sysexits.h)."""
    sys.argv[0] = os.path.abspath(sys.argv[0])  # a rank is started by it from another working directory
    if arguments[:1] == ["local"] and len(arguments) == 2:
        from . import local

        return local.run(arguments[1])
    if arguments == ["rank"]:
        from . import rank

        return rank.run()
    if arguments[:1] == ["node"] and len(arguments) == 2:
        from . import place

        return place.run(arguments[1])
    sys.stderr.write(_USAGE)
    return 64

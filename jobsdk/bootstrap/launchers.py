"""Starting ranks through a launcher that is not ours: mpirun (Open MPI or Hydra), or DeepSpeed's own.

The launcher starts one `rank` process of this bootstrap for each rank; that one joins the control port, completes the
environment and runs the user's command, so that logs, exit codes and the contract are the same as without it.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Optional, Tuple

from . import contract, layout

CONTROL, TOKEN = "JOBSDK_CONTROL", "JOBSDK_TOKEN"
IO_DIR = "JOBSDK_IO_DIR"
MPIRUN = "JOBSDK_MPIRUN"
#: Variables between the bootstrap's own processes; user code never sees them.
PRIVATE = frozenset((CONTROL, TOKEN, IO_DIR, MPIRUN))

#: Where Open MPI (4: orte, 5: prte) and Hydra tell a process its rank and the world's size.
_RANK_NAMES = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("RANK", "WORLD_SIZE"))


def name(plan: Dict[str, Any]) -> str:
    """What the launcher is called in messages."""
    launcher = str(plan["distribution"]["launcher"])
    return {"openmpi": "Open MPI's mpirun", "hydra": "Hydra's mpiexec"}.get(launcher, launcher)


def find(program: str, path: Optional[str] = None) -> Optional[str]:
    """The absolute path of a program on PATH, or None."""
    for folder in (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep):
        candidate = os.path.join(folder or ".", program)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return os.path.abspath(candidate)
    return None


def write_hostfile(plan: Dict[str, Any], facts: contract.Facts) -> None:
    """`host slots=n` for each node, in order. DeepSpeed refuses one name twice, so nodes that share a machine (as on
    the local compute) get names of their own."""
    addresses = list(facts.addresses)
    distinct = len(set(addresses)) == len(addresses)
    lines = [
        "%s slots=%d\n" % (address if distinct else "node-%d" % node, plan["distribution"]["processes"])
        for node, address in enumerate(addresses)
    ]
    path = layout.hostfile(facts.run_dir)
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "w") as file:
        file.writelines(lines)
    os.replace(temporary, path)


def rank_argv() -> List[str]:
    """The command of one rank as a foreign launcher starts it."""
    return [sys.executable, "-S", "-E", os.path.abspath(sys.argv[0]), "rank"]


def control_variables(address: str, port: int, token: bytes) -> Dict[str, str]:
    """How a `rank` process finds and joins the control port."""
    return {CONTROL: "%s %d" % (address, port), TOKEN: token.hex()}


def command(plan: Dict[str, Any], facts: contract.Facts, node_rank: int) -> Optional[Tuple[List[str], Dict[str, str]]]:
    """(argv, further environment) of the launcher on this node; None where this node starts none.

    Raises FileNotFoundError where the launcher is not installed.
    """
    shared = {"JOBSDK_RUN_DIR": facts.run_dir, "JOBSDK_RUN_NAME": plan["run"], IO_DIR: facts.io_dir}
    if plan["distribution"]["type"] == "deepspeed":
        from . import deepspeed

        return deepspeed.command(plan, facts, node_rank), shared
    if node_rank != 0:
        return None
    from . import mpirun

    argv, extra = mpirun.command(plan)
    return argv, dict(shared, **extra)


def rank_and_size(environment: Dict[str, str]) -> Tuple[int, int]:
    """What the launcher says of this process. Raises KeyError where it says nothing."""
    for rank_name, size_name in _RANK_NAMES:
        if rank_name in environment and size_name in environment:
            return int(environment[rank_name]), int(environment[size_name])
    raise KeyError("no launcher's rank in the environment (%s)" % ", ".join(pair[0] for pair in _RANK_NAMES))

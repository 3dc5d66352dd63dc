"""Starting ranks through a launcher that is not ours: mpirun (Open MPI or Hydra), or DeepSpeed's own.

The launcher starts one `rank` process of this bootstrap for each rank; that one joins the control port, completes the
environment and runs the user's command, so that logs, exit codes and the contract are the same as without it.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .. import distributions
from ..spec import facts as facts_
from ..spec import paths, ranks

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


def host_names(addresses: Sequence[str]) -> List[str]:
    """What launchers call the nodes: their addresses, or names of their own where they share a machine, as on the local
    compute: DeepSpeed refuses one name twice."""
    distinct = len(set(addresses)) == len(addresses)
    return list(addresses) if distinct else ["node-%d" % node for node in range(len(addresses))]


def write_hostfile(plan: Dict[str, Any], facts: facts_.Facts) -> None:
    """The nodes in order, as Open MPI and DeepSpeed read them (`host slots=n`), and as Hydra does (`host:n`)."""
    names = host_names(facts.addresses)
    files = {paths.hostfile(facts.run_dir): "%s slots=%d\n", paths.machinefile(facts.run_dir): "%s:%d\n"}
    for path, form in files.items():
        temporary = "%s.%s.%d.tmp" % (path, os.uname().nodename, os.getpid())  # nodes may share the folder
        with open(temporary, "w") as file:
            file.writelines(form % (name, ranks.size_of(plan, node)) for node, name in enumerate(names))
        os.replace(temporary, path)


def rank_argv() -> List[str]:
    """The command of one rank as a foreign launcher starts it."""
    return own_argv("rank")


def own_argv(verb: str) -> List[str]:
    """The command that runs another verb of this bootstrap."""
    return [sys.executable, "-S", "-E", os.path.abspath(sys.argv[0]), verb]


def chosen(plan: Dict[str, Any], facts: facts_.Facts) -> Dict[str, str]:
    """What the compute's network, the inherited environment or the job says to a launcher: OMPI_MCA_*, DS_*, UCX_*."""
    variables = distributions.of(plan).network_variables(facts)
    variables.update(facts.inherited)
    variables.update(plan["environment"])
    return variables


def command(
    plan: Dict[str, Any], facts: facts_.Facts, node_rank: int, files: str
) -> Optional[Tuple[List[str], Dict[str, str]]]:
    """(argv, further environment) of the launcher on this node; None where this node starts none.

    `files` is a folder of this node for what it keeps while it runs.
    Raises FileNotFoundError where the launcher is not installed.
    """
    if plan["distribution"]["launcher"] == "deepspeed":
        from . import deepspeed

        return deepspeed.command(plan, facts, node_rank), {}
    if node_rank != 0:
        return None
    from . import mpirun

    return mpirun.command(plan, facts, files)


def rank_and_size(environment: Dict[str, str]) -> Tuple[int, int]:
    """What the launcher says of this process. Raises KeyError where it says nothing."""
    for rank_name, size_name in _RANK_NAMES:
        if rank_name in environment and size_name in environment:
            return int(environment[rank_name]), int(environment[size_name])
    raise KeyError("no launcher's rank in the environment (%s)" % ", ".join(pair[0] for pair in _RANK_NAMES))

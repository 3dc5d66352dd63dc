"""What every launcher has: the program, ours or another's, that starts a job's ranks from a node.

Another's launcher (mpirun, or DeepSpeed's own) starts one `rank` process of this bootstrap for each rank. That process
joins the control port, completes the environment and runs the user's command. Logs, exit codes and the contract are
thus the same as without a launcher.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Tuple

from .. import distributions
from ..spec import paths
from ..system import private

if TYPE_CHECKING:  # for annotations only
    from ..control.loop import Loop
    from ..spec import facts as facts_
    from ..spec.plan import Plan
    from .abort import Abort

#: Where Open MPI (4: orte, 5: prte) and Hydra tell a process its rank and the world's size.
_RANK_NAMES = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("RANK", "WORLD_SIZE"))


class Launcher:
    """Starts the ranks of one node in one attempt. Subclasses say what is different with theirs."""

    #: Whether the bootstrap starts the ranks.
    is_direct = True
    #: Whether ranks may be forked from a process that has imported the job's `preload` modules.
    can_fork = True

    def __init__(self, plan: Plan, node_rank: int, files: str = "") -> None:
        self.plan = plan
        self.node_rank = node_rank
        self.uses_mpi = distributions.of(plan).uses_mpi
        self._files = files  # where MPI's files go; without a name, a folder is made for them

    @property
    def name(self) -> str:
        """The launcher's name in messages."""
        return str(self.plan["distribution"]["launcher"])

    def rank_command(self, rendered: str) -> str:
        """The shell command of a rank, from the user's with its inputs filled in."""
        return rendered

    def command(self, facts: facts_.Facts) -> Optional[Tuple[List[str], Dict[str, str]]]:
        """(argv, further variables) of the launcher's process on this node; None where it has none.

        Raises FileNotFoundError where the launcher is not installed.
        """
        return None

    def daemon_variables(self, facts: facts_.Facts) -> Optional[Dict[str, str]]:
        """Further variables of a daemon that the launcher starts here from another node; None if it has no daemons."""
        return None

    def rank_began(self, loop: Loop, pid: int, rank: int, warn: Callable[[str], None]) -> None:
        """Note that a rank has started here; `warn` gets what is wrong with how it was launched."""

    def aborted(self, run_dir: str, attempt: int, node: Optional[int] = None) -> Optional[Abort]:
        """The rank (of one node) that ended the whole job through the launcher; None if the logs show none."""
        return None

    def own_files(self, facts: facts_.Facts) -> str:
        """A folder for files that MPI maps into memory: on this machine, and of this attempt alone."""
        if not self._files and self.uses_mpi:
            place = chosen(self.plan, facts).get("TMPDIR") or "/tmp"  # nosec B108 # a 0700 folder in it
            name = os.urandom(8).hex()
            self._files = "%s/jobsdk-mpi-%s" % (place, name)
            try:
                os.makedirs(self._files, 0o700)
            except OSError:  # not every MPI needs it
                self._files = "%s/%s" % (paths.shell(facts.run_dir, self.node_rank), name)
                os.makedirs(self._files, 0o700)
        return self._files

    def close(self) -> None:
        """Remove the files of an attempt whose processes have all ended."""
        if self._files:
            import shutil

            shutil.rmtree(self._files, ignore_errors=True)


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


def write_hostfile(plan: Plan, facts: facts_.Facts) -> None:
    """The nodes in order, as Open MPI and DeepSpeed read them (`host slots=n`), and as Hydra does (`host:n`)."""
    names = host_names(facts.addresses)
    files = {paths.hostfile(facts.run_dir): "%s slots=%d\n", paths.machinefile(facts.run_dir): "%s:%d\n"}
    for path, form in files.items():
        lines = (form % (name, distributions.of(plan).size_of(node)) for node, name in enumerate(names))
        private.replace(path, "".join(lines).encode())


def rank_argv() -> List[str]:
    """The command of one rank as a foreign launcher starts it."""
    return own_argv("rank")


def own_argv(verb: str) -> List[str]:
    """The command that runs another verb of this bootstrap."""
    return [sys.executable, "-S", "-E", os.path.abspath(sys.argv[0]), verb]


def chosen(plan: Plan, facts: facts_.Facts) -> Dict[str, str]:
    """What the compute's network, the inherited environment or the job says to a launcher: OMPI_MCA_*, DS_*, UCX_*."""
    variables = distributions.of(plan).network_variables(facts)
    variables.update(facts.inherited)
    variables.update(plan["environment"])
    return variables


def rank_and_size(environment: Dict[str, str]) -> Tuple[int, int]:
    """What the launcher says of this process. Raises KeyError where it says nothing."""
    for rank_name, size_name in _RANK_NAMES:
        if rank_name in environment and size_name in environment:
            return int(environment[rank_name]), int(environment[size_name])
    raise KeyError("no launcher's rank in the environment (%s)" % ", ".join(pair[0] for pair in _RANK_NAMES))

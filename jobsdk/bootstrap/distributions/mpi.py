"""MPI: what Azure ML's and Open MPI's processes find, whoever starts them."""

from __future__ import annotations

from typing import Dict

from ..spec import ranks
from ..spec.facts import Facts, endpoint
from .base import Distribution


class Mpi(Distribution):
    kind = "mpi"
    has_hostfile = True
    uses_mpi = True
    asks_for_shell = True
    mpi_fix = "set the distribution's launcher to mpirun"

    def variables(self, process: ranks.Process, facts: Facts) -> Dict[str, str]:
        master = facts.addresses[0]
        variables = {
            "OMPI_COMM_WORLD_RANK": str(process.rank),
            "OMPI_COMM_WORLD_SIZE": str(self.world_size()),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(process.local_rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(process.local_size),
            "OMPI_COMM_WORLD_NODE_RANK": str(process.local_rank),  # in Open MPI's words: the rank within the node
            "AZ_BATCH_MASTER_NODE": endpoint(master, facts.ports[0][0]),
        }
        if self.plan["nodes"] == 1:  # what Azure ML sets on a single node
            variables["AZ_BATCHAI_MPI_MASTER_NODE"] = master
        return variables

    def launcher_variables(self, facts: Facts) -> Dict[str, str]:
        """With `launcher: direct` the command may call mpirun by itself, which is to find the nodes as ours does."""
        if self.settings["launcher"] != "direct" or not self.has_shell:
            return {}
        from . import open_mpi

        given, interface = facts.inherited, self.interface
        settings = open_mpi.settings(facts.addresses, {**given, **self.plan["environment"]}, interface)
        chosen = dict(open_mpi.ROOT, **settings)
        return {name: value for name, value in chosen.items() if name not in given}

    def spares_launcher(self, seconds_left: float) -> bool:
        """mpirun ends when its ranks do, and Open MPI 4 crashes on a SIGTERM meanwhile: it has half the grace time."""
        return bool(seconds_left > self.plan["grace_s"] / 2)

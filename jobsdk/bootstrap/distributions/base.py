"""What every distribution has; the types override what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional

from ..spec import paths, ranks
from ..spec.facts import Facts
from ..system import infiniband

if TYPE_CHECKING:
    from ..spec.plan import Plan


class Distribution:
    """The distribution of one plan. Pure: nothing here reads the machine."""

    #: The name of the type in plans.
    kind = ""
    #: Whether processes have roles, each with numbers of its own.
    has_roles = False
    #: Whether processes exchange data with those of other nodes.
    communicates = True
    #: Whether each process takes the GPU that has its local rank's number.
    has_gpu_per_rank = False
    #: Whether the job gets files that list the nodes.
    has_hostfile = False
    #: Whether processes load an MPI library.
    uses_mpi = False

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.settings = plan["distribution"]

    @property
    def interface(self) -> Optional[str]:
        """The interface that the compute names for TCP."""
        return (self.plan.get("network") or {}).get("interface")

    # -- nodes ---------------------------------------------------------------------------------------------------

    def ports(self, node_rank: int) -> int:
        """How many free ports a node offers."""
        return 1

    def members(self) -> int:
        """How many connections the coordinator accepts: the nodes, daemons of launchers, and ranks that they start."""
        nodes = int(self.plan["nodes"]) * (2 if ranks.has_shell(self.plan) else 1)
        is_direct = self.settings.get("launcher", "direct") == "direct"
        return nodes if is_direct else nodes + ranks.world_size(self.plan)

    def files(self, run_dir: str) -> Dict[str, Dict[str, Any]]:
        """JSON files that the run's folder needs before anything starts, by their paths. They may hold secrets."""
        return {}

    # -- variables -----------------------------------------------------------------------------------------------

    def shared_variables(self, facts: Facts) -> Dict[str, str]:
        """Variables that have the same value in all processes."""
        if not self.has_hostfile:
            return {}
        return {
            "JOBSDK_HOSTFILE": paths.hostfile(facts.run_dir),
            "JOBSDK_MACHINEFILE": paths.machinefile(facts.run_dir),
        }

    def variables(self, process: ranks.Process, facts: Facts) -> Dict[str, str]:
        """Variables of one process."""
        return {}

    def launcher_variables(self, facts: Facts) -> Dict[str, str]:
        """Variables of a launcher that the command may call by itself."""
        return {}

    def network_variables(self, facts: Facts) -> Dict[str, str]:
        """Variables that choose the network."""
        network = self.plan.get("network") or {}
        return infiniband.variables(network, self.kind, facts.interface, facts.infiniband)

    def defaults(self) -> Dict[str, str]:
        """Variables that are set only where neither the job nor the inherited environment sets them."""
        return {}

    # -- the end -------------------------------------------------------------------------------------------------

    def is_done(self, ends: Mapping[int, Mapping[str, Any]]) -> bool:
        """Whether the processes that have not ended are to be stopped. `ends` has the ranks that have."""
        return False

    def spares_launcher(self, seconds_left: float) -> bool:
        """Whether a launcher gets no SIGTERM yet, so many seconds before its SIGKILL."""
        return False

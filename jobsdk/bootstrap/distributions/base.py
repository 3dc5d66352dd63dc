"""What every distribution has; the types override what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional

from ..spec import paths, ranks

if TYPE_CHECKING:
    from ..spec.facts import Facts
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
    #: Whether an error that says that a port is taken also says which.
    names_ports = True
    #: Whether the job's nodes form a cluster of their own, which the command needs.
    has_cluster = False
    #: Whether launchers look for the other nodes by `ssh`.
    asks_for_shell = False
    #: How the ranks become processes of one MPI world.
    mpi_fix = "set the distribution's type to mpi"

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.settings = plan["distribution"]

    @property
    def has_shell(self) -> bool:
        """Whether the job's nodes reach one another by `ssh`."""
        return self.asks_for_shell and self.plan["nodes"] > 1

    @property
    def interface(self) -> Optional[str]:
        """The interface that the compute names for TCP."""
        return (self.plan.get("network") or {}).get("interface")

    # -- processes: pure arithmetic, as in torch.distributed -------------------------------------------------------

    def node_processes(self, node_rank: int) -> List[ranks.Process]:
        """The processes of one node in the order of their local ranks."""
        first, size = self.first_rank(node_rank), self.size_of(node_rank)
        return [ranks.Process(first + local, local, node_rank, size, "worker", first + local) for local in range(size)]

    def processes(self) -> Iterator[ranks.Process]:
        """Every process of the job in the order of global ranks."""
        for node_rank in range(self.plan["nodes"]):
            yield from self.node_processes(node_rank)

    def world_size(self) -> int:
        """The number of processes of the job, all roles counted."""
        return self.first_rank(self.plan["nodes"])

    def size_of(self, node_rank: int) -> int:
        """How many processes a node has.

        `per_node` is in the plan where an engine has placed them and not every node has got as many.
        """
        return self.settings["per_node"][node_rank] if "per_node" in self.settings else self.settings["processes"]

    def first_rank(self, node_rank: int) -> int:
        """The rank of a node's first process."""
        if "per_node" in self.settings:
            return sum(self.settings["per_node"][:node_rank])
        return node_rank * self.settings["processes"]

    def node_of(self, rank: int) -> int:
        """The node of a rank; for a rank beyond the last, the node that it would be on."""
        if "per_node" not in self.settings:
            return rank // max(1, self.settings["processes"])
        for node_rank, size in enumerate(self.settings["per_node"]):
            if rank < size:
                return node_rank
            rank -= size
        return len(self.settings["per_node"])

    def most_processes(self) -> int:
        """How many processes the node has that has most."""
        return self.settings["processes"]

    # -- nodes ---------------------------------------------------------------------------------------------------

    def ports(self, node_rank: int) -> int:
        """How many free ports a node offers."""
        return 1

    def members(self) -> int:
        """How many connections the coordinator accepts: the nodes, daemons of launchers, and ranks that they start."""
        nodes = int(self.plan["nodes"]) * (2 if self.has_shell else 1)
        is_direct = self.settings.get("launcher", "direct") == "direct"
        return nodes if is_direct else nodes + self.world_size()

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
        if not network and facts.interface is None and facts.infiniband is None:
            return {}  # on one node there is nothing to choose
        from ..system import infiniband

        return infiniband.variables(network, self.kind, facts.interface, facts.infiniband)

    def defaults(self) -> Dict[str, str]:
        """Variables that are set only where neither the job nor the inherited environment sets them."""
        return {}

    # -- the end -------------------------------------------------------------------------------------------------

    def is_done(self, ends: Mapping[int, Mapping[str, Any]]) -> bool:
        """Whether the processes that have not ended are to be stopped. `ends` has the ranks that have."""
        return False

    def world_of_one(self, library: str) -> str:
        """A warning: by `library`, mpi4py or horovod, each rank saw itself alone."""
        text = "%s saw a world of 1 process in each of the %d ranks, so every rank did the whole work alone. Fix: %s"
        return text % (library, self.world_size(), self.mpi_fix)

    def spares_launcher(self, seconds_left: float) -> bool:
        """Whether a launcher gets no SIGTERM yet, so many seconds before its SIGKILL."""
        return False

"""What would run where: every process of a job with its role, its environment and its command, before anything runs.

What is known only at run time (addresses, free ports, the run's folder) is shown in angle brackets. The environment
comes from the same function that the bootstrap applies, so what is shown is what the container does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from jobsdk import notebook
from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.distributions import contract
from jobsdk.bootstrap.spec import facts as facts_
from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.spec import ranks as ranks_
from jobsdk.bootstrap.spec.secrets import MASK
from jobsdk.bootstrap.system import infiniband
from jobsdk.client.submission import Draft

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.job.command import CommandJob

RUN_NAME, RUN_DIR = "<run name>", "<run folder>"
_ELSEWHERE = {"PATH": "<PATH of the node>"}  # what is known of the environment that processes elsewhere start from


class _Each(Sequence[Any]):
    """A sequence made on demand: item k is `make(k)`. Keeps what is shown independent of the number of nodes."""

    def __init__(self, make: Any, length: int) -> None:
        self._make = make
        self._length = length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._make(k) for k in range(index.start or 0, self._length if index.stop is None else index.stop)]
        return self._make(index)

    def __len__(self) -> int:
        return self._length


class ExplainedProcess(NamedTuple):
    """One process: where it runs, its environment, its command."""

    rank: int
    node_rank: int
    local_rank: int
    role: str
    environment: dict[str, str]
    command: str

    def to_dict(self) -> dict[str, Any]:
        return dict(self._asdict())


class Explanation:
    """The result of `explain()`. Iterate over it, index it by rank, print it, or call `to_dict()`."""

    def __init__(
        self,
        plan: Plan,
        compute: str,
        cores: int | str,
        inherited: Mapping[str, str],
        dropped: Sequence[str] = (),
        scaling: str = "",
    ) -> None:
        self.plan = plan
        self.compute = compute
        self.dropped = list(dropped)
        self.scaling = scaling
        nodes = plan["nodes"]
        facts = facts_.Facts(
            addresses=_Each(lambda k: f"<address of node {k}>", nodes),
            ports=_Each(lambda k: _Each(lambda i: f"<free port {i} on node {k}>", 1 << 30), nodes),
            host_list="<address of node 0>" if nodes == 1 else f"<addresses of nodes 0-{nodes - 1}>",
            cores=cores,
            interface="<interface that routes to node 0>",
            gpus=_Each(lambda k: f"<GPU {k} of the node's list>", 1 << 30),
            inherited=inherited,
            run_dir=RUN_DIR,
            io_dir=RUN_DIR,
            ray="<folder of Ray's files>",
            infiniband=infiniband.UNKNOWN if nodes > 1 and infiniband.expected(plan.get("network") or {}) else None,
        )
        environment = {**plan["environment"], **dict.fromkeys(plan["secrets"], MASK)}
        self._contract = contract.Contract({**plan, "environment": environment}, facts)
        self.command = paths.rendered(plan, RUN_DIR)
        self.world_size = distributions.of(plan).world_size()

    def __len__(self) -> int:
        return self.world_size

    def __iter__(self) -> Iterator[ExplainedProcess]:
        return map(self._explained, distributions.of(self.plan).processes())

    def __getitem__(self, rank: int) -> ExplainedProcess:
        """Return the process with a global rank. Raises IndexError for an unknown rank."""
        if not 0 <= rank < self.world_size:
            raise IndexError(f"there is no rank {rank}: the job has ranks 0 to {self.world_size - 1}")
        distribution = distributions.of(self.plan)
        here = distribution.node_processes(distribution.node_of(rank))
        return next(self._explained(process) for process in here if process.rank == rank)

    def _explained(self, process: ranks_.Process) -> ExplainedProcess:
        return ExplainedProcess(
            process.rank,
            process.node_rank,
            process.local_rank,
            process.role,
            self._contract.environment(process),
            self.command,
        )

    def to_dict(self, ranks: Sequence[int] | None = None) -> dict[str, Any]:
        chosen = self if ranks is None else (self[rank] for rank in ranks)
        return {
            "compute": self.compute,
            "nodes": self.plan["nodes"],
            "world_size": self.world_size,
            "distribution": self.plan["distribution"],
            **({"scaling": self.scaling} if self.scaling else {}),
            "command": self.command,
            "secrets": self.plan["secrets"],
            "dropped": self.dropped,
            "processes": [process.to_dict() for process in chosen],
        }

    def to_text(self, ranks: Sequence[int] | None = None, most: int = 16) -> str:
        """What all processes share once, then a line for each of the first `most` processes (or those asked for)."""
        distribution = self.plan["distribution"]
        kind = distribution["type"] if distribution["type"] != "none" else "no distribution"
        launcher = "" if distribution["launcher"] == "direct" else f", started by {distribution['launcher']}"
        nodes, size = self.plan["nodes"], self.world_size
        lines = [
            f"{size} process{'es' if size != 1 else ''} on {nodes} node{'s' if nodes != 1 else ''}"
            f" ({kind}{launcher}), compute {self.compute}",
            f"command: {self.command}",
        ]
        if self.scaling:
            lines.insert(1, f"scaling: {self.scaling}")
        if self.plan["preload"]:
            lines.append(f"imported once on each node: {', '.join(self.plan['preload'])}")
        if self.dropped:
            lines.append(f"inherited variables that are dropped: {', '.join(self.dropped)}")
        shown = [self[rank] for rank in (range(min(size, most)) if ranks is None else ranks)]
        common = dict(shown[0].environment)
        for process in [*shown, self[size - 1]] if ranks is None else shown:
            common = {name: value for name, value in common.items() if process.environment.get(name) == value}
        if len(shown) > 1:
            lines += ["every process:", *(f"  {name}={value}" for name, value in common.items())]
        for process in shown:
            where = f"rank {process.rank}: node {process.node_rank}, local rank {process.local_rank}"
            role = f", {process.role}" if distribution["type"] == "tensorflow" else ""
            if len(shown) == 1:
                lines += [where + role, *(f"  {name}={value}" for name, value in process.environment.items())]
            else:
                own = (f"{name}={value}" for name, value in process.environment.items() if name not in common)
                lines += [where + role, "  " + " ".join(own)]
        if ranks is None and size > most:
            lines.append(f"... and ranks {most} to {size - 1} likewise (--rank N shows one)")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return notebook.views().of_explanation(self)


def explain(job: CommandJob, *, compute: str | None = None) -> Explanation:
    """Describe every process that `job` would start. Raises ValidationError for an invalid job.

    On the local compute the inherited environment and the cores of this machine count, as they will in the run;
    `dropped` names the inherited variables that other launchers set and that the processes do not get.
    """
    from jobsdk import compute as computes

    draft = Draft(job, name=job.name or RUN_NAME, resolve=lambda name: computes.resolve(compute or name))
    return of_draft(draft, compute)


def of_draft(draft: Draft, compute: str | None = None) -> Explanation:
    """The same of a job that is on its way. Raises ValidationError where its workers cannot be laid out."""
    from jobsdk import compute as computes
    from jobsdk.job import workers

    scaling = workers.described(draft.job, draft.layout())
    target, plan = draft.compute, draft.plan
    name = compute or draft.job.compute or computes.LOCAL
    if target is None:  # it may be known where the job will be submitted
        return Explanation(plan, name, "cores of the node", _ELSEWHERE, scaling=scaling)
    if target.type == computes.LOCAL:
        from jobsdk.bootstrap.system.processes import cores
        from jobsdk.compute.environ import dropped, for_ranks

        each = max(1, cores() // plan["nodes"])
        return Explanation(plan, target.name, each, for_ranks(os.environ), dropped(os.environ), scaling)
    return Explanation(plan, target.name, "cores of the node", target.inherited, scaling=scaling)

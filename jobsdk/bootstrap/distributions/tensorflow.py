"""TensorFlow: tasks of the roles chief, worker and ps, which find each other by TF_CONFIG."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from ..spec import ranks
from ..spec.facts import Facts, endpoint
from .base import Distribution

if TYPE_CHECKING:
    from ..spec.plan import Plan


class TensorFlow(Distribution):
    kind = "tensorflow"
    has_roles = True
    names_ports = False

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._cluster: Optional[str] = None

    def node_processes(self, node_rank: int) -> List[ranks.Process]:
        first = sum(len(self._roles(node)) for node in range(node_rank))
        roles = self._roles(node_rank)
        return [
            ranks.Process(first + local, local, node_rank, len(roles), role, index)
            for local, (role, index) in enumerate(roles)
        ]

    def world_size(self) -> int:
        given = self.settings
        return given["workers"] + given["parameter_servers"] + bool(given["chief"])

    def node_of(self, rank: int) -> int:
        return next(process.node_rank for process in self.processes() if process.rank == rank)

    def most_processes(self) -> int:
        """Tasks are dealt out in turn, a chief is extra."""
        nodes, chief = self.plan["nodes"], bool(self.settings["chief"])
        return -(-(self.world_size() - chief) // nodes) + chief

    def _roles(self, node_rank: int) -> List[Tuple[str, int]]:
        """(role, index) of each task of a node.

        Workers go to the nodes in order, parameter servers to the nodes after the last worker and round again, so that
        with as many workers as nodes server 0 shares node 0 with worker 0, as on Azure ML; a chief is extra, on node 0.
        """
        nodes, workers = self.plan["nodes"], self.settings["workers"]
        servers = self.settings["parameter_servers"]
        roles = [("chief", 0)] if self.settings["chief"] and node_rank == 0 else []
        roles += [("worker", index) for index in range(node_rank, workers, nodes)]
        roles += [("ps", index) for index in range((node_rank - workers) % nodes, servers, nodes)]
        return roles

    def ports(self, node_rank: int) -> int:
        """Each task has one."""
        return max(1, len(self.node_processes(node_rank)))

    def variables(self, process: ranks.Process, facts: Facts) -> Dict[str, str]:
        if self._cluster is None:  # the same for all, and long where there are many
            self._cluster = self.cluster(facts)
        text = '{"cluster": %s, "task": {"type": "%s", "index": %d}, "environment": "cloud"}'
        return {"TF_CONFIG": text % (self._cluster, process.role, process.role_index)}

    def cluster(self, facts: Facts) -> str:
        """TF_CONFIG's `cluster` as JSON. Roles without a task are left out: TensorFlow 2.13+ refuses `"ps": []`."""
        cluster: Dict[str, Dict[int, str]] = {"chief": {}, "worker": {}, "ps": {}}
        for one in self.processes():
            port = facts.ports[one.node_rank][one.local_rank]
            cluster[one.role][one.role_index] = endpoint(facts.addresses[one.node_rank], port)
        return json.dumps({role: [tasks[i] for i in sorted(tasks)] for role, tasks in cluster.items() if tasks})

    def is_done(self, ends: Mapping[int, Mapping[str, Any]]) -> bool:
        """Parameter servers never end by themselves, nor do workers that serve a chief."""
        if not self.settings.get("parameter_servers"):
            return False
        role = "chief" if self.settings["chief"] else "worker"
        essential = [one.rank for one in self.processes() if one.role == role]
        return all(rank in ends and ends[rank]["exit_code"] == 0 for rank in essential)

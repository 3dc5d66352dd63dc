"""TensorFlow: tasks of the roles chief, worker and ps, which find each other by TF_CONFIG."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional

from ..spec import ranks
from ..spec.facts import Facts, endpoint
from .base import Distribution

if TYPE_CHECKING:
    from ..spec.plan import Plan


class TensorFlow(Distribution):
    kind = "tensorflow"
    has_roles = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._cluster: Optional[str] = None

    def ports(self, node_rank: int) -> int:
        """Each task has one."""
        return max(1, len(ranks.node_processes(self.plan, node_rank)))

    def variables(self, process: ranks.Process, facts: Facts) -> Dict[str, str]:
        if self._cluster is None:  # the same for all, and long where there are many
            self._cluster = self.cluster(facts)
        text = '{"cluster": %s, "task": {"type": "%s", "index": %d}, "environment": "cloud"}'
        return {"TF_CONFIG": text % (self._cluster, process.role, process.role_index)}

    def cluster(self, facts: Facts) -> str:
        """TF_CONFIG's `cluster` as JSON. Roles without a task are left out: TensorFlow 2.13+ refuses `"ps": []`."""
        cluster: Dict[str, Dict[int, str]] = {"chief": {}, "worker": {}, "ps": {}}
        for one in ranks.processes(self.plan):
            port = facts.ports[one.node_rank][one.local_rank]
            cluster[one.role][one.role_index] = endpoint(facts.addresses[one.node_rank], port)
        return json.dumps({role: [tasks[i] for i in sorted(tasks)] for role, tasks in cluster.items() if tasks})

    def is_done(self, ends: Mapping[int, Mapping[str, Any]]) -> bool:
        """Parameter servers never end by themselves, nor do workers that serve a chief."""
        if not self.settings.get("parameter_servers"):
            return False
        role = "chief" if self.settings["chief"] else "worker"
        essential = [one.rank for one in ranks.processes(self.plan) if one.role == role]
        return all(rank in ends and ends[rank]["exit_code"] == 0 for rank in essential)

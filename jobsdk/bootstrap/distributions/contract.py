"""The environment contract: what every process of a job finds in its environment.

Pure functions of (plan, process, facts); nothing here reads the machine. The SDK shows their result before a job
runs and the bootstrap applies it in the container, so that both are the same by construction. The contract is a
superset of what Azure ML and torchrun set; where a name comes from elsewhere, the line says so.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict

from .. import distributions
from ..spec import mlflow_store, paths
from ..spec.facts import Facts
from ..spec.ranks import Process, sharers
from . import of

if TYPE_CHECKING:
    from ..spec.plan import Plan

#: Variables that say which process this is; a job may not set them itself.
IDENTITY = frozenset(
    [
        *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TF_CONFIG"),
        *("JOBSDK_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ]
)


class Contract:
    """The environment of every process of one job under given facts. What all share is worked out once."""

    def __init__(self, plan: Plan, facts: Facts) -> None:
        self._plan = plan
        self._facts = facts
        self._distribution = of(plan)
        self._world_size = distributions.of(plan).world_size()
        self._shared = self._shared_variables()
        self._of_launcher = self._distribution.launcher_variables(facts)
        self._has_store = mlflow_store.has_store(plan, facts.inherited)

    def environment(self, process: Process) -> Dict[str, str]:
        """The variables set for `process`, over `facts.inherited`. The user's own win, but for IDENTITY."""
        variables = dict(self._shared)
        variables.update(self._identity(process))
        variables.update(self._distribution.variables(process, self._facts))
        if self._has_store:
            variables.update(mlflow_store.variables(self._plan, self._facts.run_dir, process.rank))
        variables.update(self._of_launcher)
        variables.update(self._defaults(process))
        for name, value in self._plan["environment"].items():
            if name not in IDENTITY:
                variables[name] = value
        self._put_in_front(variables, process.node_rank)
        return variables

    def of_node(self, node_rank: int) -> Dict[str, str]:
        """For what others start on a node by `ssh`: what its processes have, but for what says which process it is."""
        size = max(1, len(distributions.of(self._plan).node_processes(node_rank)))
        node = Process(-1, 0, node_rank, self._plan["distribution"].get("processes", size), "tuner", 0)
        variables = dict(self._shared, NODE_RANK=str(node_rank), AZUREML_CR_NODE_RANK=str(node_rank))
        del variables["WORLD_SIZE"]
        variables.update(self._defaults(node))
        variables.update(self._plan["environment"])
        self._put_in_front(variables, node_rank)
        return variables

    def _put_in_front(self, variables: Dict[str, str], node_rank: int) -> None:
        """What comes before that which the job or the inherited environment has on its paths."""
        inherited, run_dir = self._facts.inherited, self._facts.run_dir
        given = variables.get("PYTHONPATH", inherited.get("PYTHONPATH", ""))
        variables["PYTHONPATH"] = paths.python_path(run_dir, given)
        if distributions.of(self._plan).has_shell:
            given = variables.get("PATH", inherited.get("PATH", os.defpath))
            variables["PATH"] = paths.shell_path(run_dir, node_rank, given)

    def _shared_variables(self) -> Dict[str, str]:
        plan, facts = self._plan, self._facts
        run, nodes = plan["run"], str(plan["nodes"])
        variables = {
            "MASTER_ADDR": facts.addresses[0],
            "MASTER_PORT": str(facts.ports[0][0]),
            "WORLD_SIZE": str(self._world_size),
            "NODE_COUNT": nodes,
            "AZUREML_RUN_ID": run,
            "AZUREML_NODE_COUNT": nodes,
            "AZ_BATCH_HOST_LIST": facts.host_list,
            "JOBSDK_RUN_NAME": run,
            "JOBSDK_RUN_DIR": facts.run_dir,
            "JOBSDK_RESTART_COUNT": str(facts.restart_count),
        }
        for name in plan["inputs"]:
            variables["AZURE_ML_INPUT_" + name] = paths.input_value(plan, name, facts.io_dir)
        for name in plan["outputs"]:
            variables["AZURE_ML_OUTPUT_" + name] = paths.output_path(plan, name, facts.io_dir)
        variables.update(self._distribution.shared_variables(facts))
        return variables

    def _identity(self, process: Process) -> Dict[str, str]:
        node, run_dir, restart = str(process.node_rank), self._facts.run_dir, self._facts.restart_count
        role = "rank" if process.role == "worker" and not self._distribution.has_roles else process.role
        return {
            "RANK": str(process.rank),
            "LOCAL_RANK": str(process.local_rank),
            "LOCAL_WORLD_SIZE": str(process.local_size),
            "NODE_RANK": node,
            "GROUP_RANK": node,  # torchrun's name for the node's rank
            "AZUREML_CR_NODE_RANK": node,
            "AZUREML_PROCESS_NAME": "%s_%d" % (role, process.role_index),
            "JOBSDK_REPORTS": paths.reports(run_dir, process.node_rank, process.rank, restart),
            "JOBSDK_RESULT": paths.result(run_dir, process.node_rank, process.rank, restart),
        }

    def _defaults(self, process: Process) -> Dict[str, str]:
        """Variables that are set only where neither the job nor the inherited environment sets them."""
        facts, variables = self._facts, {"PYTHONUNBUFFERED": "1"}
        if isinstance(facts.cores, int):
            variables["OMP_NUM_THREADS"] = str(max(1, facts.cores // process.local_size))
        elif facts.cores is not None:
            variables["OMP_NUM_THREADS"] = "<%s / %d>" % (facts.cores, process.local_size)
        variables.update(self._distribution.network_variables(facts))
        variables.update(self._distribution.defaults())
        chosen = {name: value for name, value in variables.items() if name not in facts.inherited}
        count = self._plan["gpus_per_process"]
        if process.role == "tuner":
            count = None  # DeepSpeed's launcher gives each process of a trial its GPU
        if count:
            chosen["JOBSDK_GPUS_PER_PROCESS"] = "%g" % count  # for those that see more than their own
        if count and facts.gpus:  # an index into the node's own list, never a number of ours: ids may be UUIDs
            first = process.local_rank // sharers(count) if count < 1 else int(process.local_rank * count)
            chosen["CUDA_VISIBLE_DEVICES"] = ",".join(facts.gpus[first : first + max(1, int(count))])
        return chosen

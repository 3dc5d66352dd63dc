"""DeepSpeed: PyTorch's processes, started by us or by DeepSpeed's own launcher or tuner."""

from __future__ import annotations

from typing import Any, Dict, List

from ..spec import paths, ranks
from ..spec.facts import Facts
from ..spec.ranks import Process
from .pytorch import PyTorch


class DeepSpeed(PyTorch):
    kind = "deepspeed"
    has_hostfile = True
    asks_for_shell = True

    def node_processes(self, node_rank: int) -> List[Process]:
        if "autotuning" not in self.settings:
            return super().node_processes(node_rank)
        # The tuner starts the processes of its trials itself, and says who they are.
        return [Process(0, 0, 0, self.settings["processes"], "tuner", 0)] if node_rank == 0 else []

    def world_size(self) -> int:
        return 1 if "autotuning" in self.settings else super().world_size()

    def files(self, run_dir: str) -> Dict[str, Dict[str, Any]]:
        config = self.settings.get("config")
        return {paths.deepspeed_config(config, run_dir): config} if isinstance(config, dict) else {}

    def shared_variables(self, facts: Facts) -> Dict[str, str]:
        variables = super().shared_variables(facts)
        if "config" in self.settings:
            variables["JOBSDK_DEEPSPEED_CONFIG"] = paths.deepspeed_config(self.settings["config"], facts.run_dir)
        return variables

    def variables(self, process: ranks.Process, facts: Facts) -> Dict[str, str]:
        own = {  # names that deepspeed.comm reads
            "CROSS_RANK": str(process.node_rank),
            "CROSS_SIZE": str(self.plan["nodes"]),
            "LOCAL_SIZE": str(process.local_size),
        }
        if process.role == "tuner":  # the processes of its trials inherit what it has
            return own
        return dict(super().variables(process, facts), **own)

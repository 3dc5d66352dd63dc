"""DeepSpeed: PyTorch's processes, started by us or by DeepSpeed's own launcher or tuner."""

from __future__ import annotations

from typing import Any, Dict

from ..spec import paths, ranks
from ..spec.facts import Facts
from .pytorch import PyTorch


class DeepSpeed(PyTorch):
    kind = "deepspeed"
    has_hostfile = True

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

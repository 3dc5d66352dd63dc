"""PyTorch: what torchrun tells its processes."""

from __future__ import annotations

from typing import Dict

from ..spec import paths, ranks
from ..spec.facts import Facts
from .base import Distribution


class PyTorch(Distribution):
    kind = "pytorch"
    has_gpu_per_rank = True

    def variables(self, process: ranks.Process, facts: Facts) -> Dict[str, str]:
        """torchrun's further names; scripts and frameworks tell by TORCHELASTIC_RUN_ID that a launcher started them."""
        return {
            "ROLE_NAME": "default",
            "ROLE_RANK": str(process.rank),
            "ROLE_WORLD_SIZE": str(self.world_size()),
            "GROUP_WORLD_SIZE": str(self.plan["nodes"]),
            "TORCHELASTIC_RUN_ID": self.plan["run"],
            "TORCHELASTIC_RESTART_COUNT": str(facts.restart_count),
            "TORCHELASTIC_MAX_RESTARTS": str(self.plan["restarts"]["max"]),
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCHELASTIC_ERROR_FILE": paths.error_file(
                facts.run_dir, process.node_rank, process.rank, facts.restart_count
            ),
        }

    def defaults(self) -> Dict[str, str]:
        return {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}

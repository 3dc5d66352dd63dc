"""Starting ranks through DeepSpeed's own launcher, in its `--no_ssh` form: one on each node."""

from __future__ import annotations

from typing import Any, Dict, List

from . import contract, launchers, layout


def command(plan: Dict[str, Any], facts: contract.Facts, node_rank: int) -> List[str]:
    """The launcher's argv on one node. Raises FileNotFoundError without it."""
    program = launchers.find("deepspeed")
    if program is None:
        raise FileNotFoundError("no deepspeed on PATH: pip install deepspeed, or set launcher: direct")
    argv = [program, "--hostfile", layout.hostfile(facts.run_dir), "--no_ssh", "--node_rank", str(node_rank)]
    argv += ["--master_addr", facts.addresses[0], "--master_port", str(facts.ports[0][0])]
    return [*argv, "--no_python", "--no_local_rank", *launchers.rank_argv()]

"""What the contract needs to know, as one node of a running job finds it."""

from __future__ import annotations

from typing import Any, Mapping

from . import network
from .contract import Facts


def facts_of(
    start: Mapping[str, Any], node_rank: int, inherited: Mapping[str, str], run_dir: str, io_dir: str
) -> Facts:
    """The facts for one node out of the control port's "start" message; reads the routes of this machine."""
    addresses = start["addresses"]
    return Facts(
        addresses=addresses,
        ports=start["ports"],
        host_list=",".join(addresses),
        cores=start["cores"][node_rank],
        interface=network.interface_towards(addresses[0]),
        gpus=start["gpus"][node_rank],
        inherited=inherited,
        run_dir=run_dir,
        io_dir=io_dir,
    )

"""What the contract needs to know, as one node of a running job finds it."""

from __future__ import annotations

from typing import Any, Mapping

from ..spec.facts import Facts
from ..system import network


def facts_of(start: Mapping[str, Any], inherited: Mapping[str, str], run_dir: str, io_dir: str) -> Facts:
    """The facts for one node; reads the routes of this machine.

    `start` is what node 0 tells every node, with this node's own "cores" and "gpus".
    """
    addresses = start["addresses"]
    return Facts(
        addresses=addresses,
        ports=start["ports"],
        host_list=",".join(addresses),
        cores=start["cores"],
        interface=network.interface_towards(addresses[0]),
        gpus=start["gpus"],
        inherited=inherited,
        run_dir=run_dir,
        io_dir=io_dir,
        restart_count=start["restart"],
        infiniband=start.get("infiniband"),
    )

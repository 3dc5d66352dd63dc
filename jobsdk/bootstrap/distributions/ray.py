"""Ray: one command, over a Ray cluster of the job's nodes or one that runs already; its ports, variables and folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional

from .. import distributions
from ..spec import facts as facts_
from .base import Distribution

if TYPE_CHECKING:
    from ..spec.plan import Plan

#: Of the ports that node 0 offers: the head's, the dashboard's, and that of the server for Ray's clients. The first of
#: all is MASTER_PORT.
PORTS = 4
_HEAD, _DASHBOARD, _CLIENT = 1, 2, 3


class Ray(Distribution):
    kind = "ray"

    @property
    def has_cluster(self) -> bool:  # type: ignore[override]
        """With an `address` the command uses a cluster that is there."""
        return "address" not in self.settings

    def size_of(self, node_rank: int) -> int:
        """The command runs on the head alone."""
        return int(node_rank == 0)

    def first_rank(self, node_rank: int) -> int:
        return min(1, node_rank)

    def ports(self, node_rank: int) -> int:
        return PORTS

    def shared_variables(self, facts: facts_.Facts) -> Dict[str, str]:
        return variables(self.plan, facts)

    def defaults(self) -> Dict[str, str]:
        return {"RAY_USAGE_STATS_ENABLED": "0"}

    def is_done(self, ends: Mapping[int, Mapping[str, Any]]) -> bool:
        """The job's own cluster never ends by itself."""
        return self.has_cluster and 0 in ends and ends[0]["exit_code"] == 0


def variables(plan: Plan, facts: facts_.Facts) -> Dict[str, str]:
    """By which Ray finds the cluster, and is let in: for the command, and for Ray's own processes."""
    if not distributions.of(plan).has_cluster:
        return {"RAY_ADDRESS": plan["distribution"]["address"]}
    port = plan["distribution"].get("port") or facts.ports[0][_HEAD]
    return {
        "RAY_ADDRESS": facts_.endpoint(_address(facts.addresses[0], 0), port),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": "%s/token" % facts.ray,
    }


def _address(address: str, node_rank: int) -> str:
    """What Ray knows a node by. It takes 127.0.0.1 for another name of the machine's outward address, and no other
    address of the loopback."""
    from ..system import network  # slow to import, and the SDK imports this module with every submission

    if not network.is_loopback(address) or not os.path.isdir("/proc/self"):
        return address
    return "127.0.%d.%d" % (1 + node_rank // 254, 1 + node_rank % 254)


def folder(plan: Plan, token: bytes, inherited: Mapping[str, str]) -> str:
    """Where the nodes keep Ray's files: the same path on each, which nobody else knows before it is there."""
    place = plan["environment"].get("RAY_TMPDIR") or inherited.get("RAY_TMPDIR") or "/tmp"  # nosec B108 # a 0700 folder in it
    return "%s/ray-%s" % (place.rstrip("/"), _derived(token, "folder")[:8])


def _derived(token: bytes, what: str) -> str:
    import hashlib
    import hmac

    return hmac.new(token, b"ray " + what.encode(), hashlib.sha256).hexdigest()


def remove(place: str, node_rank: Optional[int] = None) -> None:
    """Take away what a node has left in `folder`, and the folder itself after the last one; without a node, all."""
    import glob
    import shutil

    if node_rank is not None:
        shutil.rmtree("%s/n%d" % (place, node_rank), ignore_errors=True)
        if glob.glob("%s/n*" % glob.escape(place)):
            return
    shutil.rmtree(place, ignore_errors=True)

"""The `network` of a compute: the interfaces and InfiniBand devices of its nodes.

network: {interface: eth0, ib_devices: [mlx5_0, mlx5_1], gdr: true, mtu: 4096, variables: {NCCL_DEBUG: WARN}}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import NetworkPlan
    from jobsdk.job.machines import Machine

#: The settings, with their meaning.
SETTINGS: Mapping[str, str] = {
    "interface": "network interface for TCP, as eth0; several with commas",
    "ib_devices": "InfiniBand devices, as [mlx5_0, mlx5_1]",
    "infiniband": "true: the nodes have it, false: it is not used; else what the nodes find counts",
    "gdr": "GPUDirect RDMA: true always, false never; else NCCL decides",
    "mtu": "bytes; 256 to 4096 in powers of 2 is InfiniBand's, else the interface's, which the doctor compares",
    "variables": "further variables of the ranks, as {NCCL_IB_TIMEOUT: 22}",
}
_DEVICE = re.compile(r"[A-Za-z][\w.-]*")


def mistakes(given: object) -> Iterator[str]:
    """Everything that is wrong in a `network`."""
    from jobsdk.findings import meant, show

    if not isinstance(given, dict):
        yield f"network must be a mapping with {', '.join(SETTINGS)}, not {show(given)}"
        return
    for name, value in given.items():
        if name not in SETTINGS:
            yield f"network has no {show(name)}: " + meant(name, SETTINGS, f"it has {', '.join(SETTINGS)}")
        elif name in ("infiniband", "gdr") and not isinstance(value, bool):
            yield f"network.{name} must be true or false, not {show(value)}"
        elif name == "interface" and not (
            isinstance(value, str) and re.fullmatch(r"[^\s/,]{1,15}(,[^\s/,]{1,15})*", value)
        ):
            yield f"network.interface must be a name as eth0, not {show(value)}"
        elif name == "mtu" and not (isinstance(value, int) and not isinstance(value, bool) and 256 <= value <= 65536):
            yield f"network.mtu must be a number of bytes from 256 to 65536, not {show(value)}"
        elif name == "ib_devices" and not _are_devices(value):
            yield f"network.ib_devices must be a list of names as mlx5_0, not {show(value)}"
        elif name == "variables":
            yield from _mistakes_in_variables(value)
    if given.get("infiniband") is False and given.get("ib_devices"):
        yield "network.infiniband is false, and there are ib_devices: one of both must go"


def _are_devices(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, str) and _DEVICE.fullmatch(one) for one in value)
    )


def _mistakes_in_variables(value: object) -> Iterator[str]:
    from jobsdk.bootstrap.distributions.contract import IDENTITY
    from jobsdk.findings import show

    if not isinstance(value, dict):
        yield f"network.variables must be a mapping, as {{NCCL_IB_TIMEOUT: 22}}, not {show(value)}"
        return
    for name, text in value.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
            yield f"network.variables: {show(name)} is no name of a variable"
        elif name in IDENTITY:
            yield f"network.variables: {name} is set for each process by jobsdk"
        elif isinstance(text, bool) or not isinstance(text, str | int | float) or "\0" in str(text):
            yield f"network.variables.{name} must be a text or a number, not {show(text)}"


def planned(given: Mapping[str, Any] | None, machine: Machine | None) -> NetworkPlan:
    """The `network` of a plan: what is given, and whether `machine` has InfiniBand. Empty where nothing is known."""
    from jobsdk.job.expressions import text_of

    network = cast("NetworkPlan", dict(given or {}))
    if network.get("variables"):
        network["variables"] = {name: text_of(value) for name, value in network["variables"].items()}
    if machine is not None and "ib_devices" not in network:
        network.setdefault("infiniband", machine.has_infiniband)
    return network

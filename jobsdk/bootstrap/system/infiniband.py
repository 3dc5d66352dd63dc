"""InfiniBand: what this node has of it, what all nodes of the job have in common, and the ranks' variables for it.

NCCL and UCX choose by themselves what they use. A node that lacks what the others have would make them wait for each
other until they time out, so that the nodes agree before the ranks start: what one lacks is off for all.

`network` is a part of the plan, there if the compute says anything of it:

    interface     for TCP: a name, or several with commas
    ib_devices    the InfiniBand devices that ranks use
    infiniband    whether the nodes have it (None: what is found counts)
    gdr           GPUDirect RDMA: true always, false never
    mtu           bytes
    variables     further variables of the ranks
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from . import files

Network = Mapping[str, Any]

ROOT = "/"
#: In the place of devices: whether the nodes have InfiniBand is not known yet.
UNKNOWN = "unknown"
#: InfiniBand's own packet sizes (InfiniBand specification, PathRecord:MTU); any other MTU is that of an interface.
PATH_MTUS = (256, 512, 1024, 2048, 4096)


class Port(NamedTuple):
    """A port of an InfiniBand or RoCE device. `state` is as ACTIVE or DOWN, `rate` in Gbit/s (None: unknown)."""

    device: str
    number: str
    state: str
    rate: Optional[float]
    layer: str


def ports(root: str = ROOT) -> List[Port]:
    """All ports of this machine. `root` is where its /sys is."""
    found = []
    devices = os.path.join(root, "sys/class/infiniband")
    for device in files.listing(devices):
        folder = os.path.join(devices, device, "ports")
        for number in files.listing(folder):
            place = os.path.join(folder, number)
            state = files.text(place + "/state").partition(": ")[2] or "unknown"
            rate = files.text(place + "/rate").split(" ")[0]  # "400 Gb/sec (4X NDR)"
            known = float(rate) if rate.replace(".", "", 1).isdigit() else None
            found.append(Port(device, number, state, known, files.text(place + "/link_layer")))
    return found


def usable(network: Network, root: str = ROOT) -> Optional[List[str]]:
    """The devices of this node that ranks may use: with an active port, and open to this container.

    None where the machine shows no device at all: then there is nothing to turn off either. Where InfiniBand is
    expected, RoCE does not count: on Azure every machine with accelerated networking shows such a device, which leads
    nowhere.
    """
    seen = ports(root)
    if not seen:
        return None
    if network.get("infiniband") is False:
        return []
    if not any(name.startswith("uverbs") for name in files.listing(os.path.join(root, "dev/infiniband"))):
        return []  # a container sees the devices of its host in /sys, whether or not it was given them
    named = network.get("ib_devices")
    chosen = [
        port.device
        for port in seen
        if port.state == "ACTIVE"
        and (port.device in named if named else not network.get("infiniband") or port.layer == "InfiniBand")
    ]
    return list(dict.fromkeys(chosen))


def expected(network: Network) -> bool:
    """Whether the nodes should have InfiniBand."""
    return bool(network.get("ib_devices") or network.get("infiniband"))


class Agreement(NamedTuple):
    """What holds for all nodes. `devices` is None where the libraries may choose, and empty where InfiniBand is off;
    `warning` is what the user should know of it."""

    devices: Optional[List[str]]
    warning: Optional[str]


def agree(network: Network, nodes: Sequence[Optional[Sequence[str]]], names: Sequence[str]) -> Agreement:
    """What `nodes`, each of which has said what is `usable`, have in common; `names` are what messages call them."""
    if len(nodes) < 2:  # one node alone needs no network
        return Agreement(None, None)
    named = list(network.get("ib_devices") or ())
    without = [name for name, devices in zip(names, nodes) if not devices]
    if without:
        if not expected(network) and len(without) == len(nodes):
            return Agreement(None if all(devices is None for devices in nodes) else [], None)
        what = "no active port of %s" % ", ".join(named) if named else "no InfiniBand device with an active port"
        text = "InfiniBand is off, and TCP takes its place: %s %s %s" % (
            _some(without, len(nodes)), "has" if len(without) == 1 else "have", what)  # fmt: skip
        return Agreement([], text)
    if not named:
        return Agreement(None, None)
    common = [device for device in named if all(device in (devices or ()) for devices in nodes)]
    lost = [device for device in named if device not in common]
    if not common:
        text = "InfiniBand is off, and TCP takes its place: none of %s is active on all nodes" % ", ".join(named)
        return Agreement([], text)
    text = "not active on all nodes, and used on none: %s of network.ib_devices" % ", ".join(lost)
    return Agreement(common, text if lost else None)


def _some(names: Sequence[str], count: int) -> str:
    if len(names) == count:
        return "all nodes"
    return ", ".join(names[:5]) + (" and %d more" % (len(names) - 5) if len(names) > 5 else "")


def variables(
    network: Network, kind: str, interface: Optional[str], devices: Union[str, Sequence[str], None]
) -> Dict[str, str]:
    """The variables of ranks with a distribution of that `kind`, as far as the job does not set them.

    `interface` is the one that routes to node 0, `devices` as in `Agreement`, or UNKNOWN before the nodes have met.
    NCCL's variables: its user guide, "Environment Variables"; UCX's: `ucx_info -cf`.
    """
    if devices == UNKNOWN:
        on = variables(network, kind, interface, network.get("ib_devices"))
        return _either(on, variables(network, kind, interface, ()))
    found: Dict[str, str] = {}
    named = network.get("interface")
    if named or interface:
        found["NCCL_SOCKET_IFNAME"] = found["GLOO_SOCKET_IFNAME"] = named or interface or ""
    if devices:
        found["NCCL_IB_HCA"] = "=" + ",".join(devices)  # "=": mlx5_1 is not the beginning of mlx5_10
        found["UCX_NET_DEVICES"] = ",".join("%s:1" % device for device in devices)
    elif devices is not None:
        found["NCCL_IB_DISABLE"] = "1"
        found["UCX_TLS"] = "^ib"
        if kind == "mpi":
            found["OMPI_MCA_btl"] = "^openib"  # Open MPI 4; 5 has none
    gdr = network.get("gdr")
    if gdr is not None:
        found["NCCL_NET_GDR_LEVEL"] = "SYS" if gdr else "LOC"
        if not gdr:
            found["UCX_IB_GPU_DIRECT_RDMA"] = "no"
    if network.get("mtu") in PATH_MTUS:
        found["UCX_IB_PATH_MTU"] = str(network["mtu"])
    found.update(network.get("variables") or {})
    return found


def _either(on: Mapping[str, str], off: Mapping[str, str]) -> Dict[str, str]:
    """Both in one: what depends on the nodes is shown as such."""
    text = "<%s if all nodes have InfiniBand, else %s>"
    return {
        name: on[name] if on.get(name) == off.get(name) else text % (on.get(name, "unset"), off.get(name, "unset"))
        for name in dict.fromkeys([*on, *off])
    }

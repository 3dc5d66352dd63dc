"""The network interface that leads to an address: what NCCL and gloo are to use."""

from __future__ import annotations

import os
import socket
import struct
from typing import MutableMapping, Optional

_ADDRESS_OF = 0x8915  # SIOCGIFADDR of Linux


def settle(environment: MutableMapping[str, str], address: str) -> None:
    """Name the interface to NCCL and gloo, unless somebody has. jobsdk's own jobs have it set already."""
    names = [name for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if name not in environment]
    found = towards(address) if names else None
    for name in names:
        if found is not None:
            environment[name] = found


def towards(address: str) -> Optional[str]:
    """The interface whose route leads to `address`, a name or a number; on the machine that has it, the one with it.
    None where that cannot be known."""
    try:
        family, _, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing: it only asks the routing table
            own = probe.getsockname()[0]
    except (OSError, UnicodeError):
        return None
    return _of_ipv6(own) if family == socket.AF_INET6 else _of_ipv4(own)


def _of_ipv4(own: str) -> Optional[str]:
    if own.startswith("127."):
        own = "127.0.0.1"
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                try:
                    found = fcntl.ioctl(probe.fileno(), _ADDRESS_OF, struct.pack("256s", os.fsencode(name)[:15]))
                except OSError:
                    continue  # it has none
                if socket.inet_ntoa(found[20:24]) == own:
                    return name
    except (ImportError, OSError):
        pass
    return None


def _of_ipv6(own: str) -> Optional[str]:
    try:
        wanted = socket.inet_pton(socket.AF_INET6, own.partition("%")[0]).hex()
        with open("/proc/net/if_inet6") as file:
            return next((line.split()[5] for line in file if line.startswith(wanted)), None)
    except OSError:
        return None

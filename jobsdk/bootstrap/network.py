"""Addresses, interfaces and free ports of this machine."""

from __future__ import annotations

import os
import socket
import struct
from typing import List, Optional, Tuple


def free_ports(count: int, address: str = "") -> List[int]:
    """`count` different TCP ports that nothing listens on now.

    A port is handed to a process that binds it a second or two later (after `import torch`), so it is drawn from
    below the range out of which the kernel gives ports to outgoing connections: nobody else gets it by accident.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    low, high = 15000, max(20000, min(_first_ephemeral_port(), 32768))
    chosen: List[int] = []
    for _ in range(1000 * count):
        if len(chosen) == count:
            return chosen
        port = low + int.from_bytes(os.urandom(4), "big") % (high - low)
        if port not in chosen and _is_free(family, address, port):
            chosen.append(port)
    raise OSError("no free TCP port between %d and %d" % (low, high))


def _is_free(family: int, address: str, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Without SO_REUSEADDR a port whose last connections still linger would count as taken; servers set it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _first_ephemeral_port() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError):
        return 32768


def listener(address: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes any."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address, port))
        sock.listen(4096)  # thousands of nodes may join in the same second
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def interface_towards(address: str) -> Optional[str]:
    """The name of the network interface whose route leads to `address`; None where that cannot be known."""
    try:
        family, _, _, _, target = socket.getaddrinfo(address, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing: it only asks the routing table
            own = probe.getsockname()[0]
    except OSError:
        return None
    for name, known in _interface_addresses():
        if known == own:
            return name
    return None


def _interface_addresses() -> List[Tuple[str, str]]:
    found: List[Tuple[str, str]] = []
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                try:
                    answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR on Linux
                except OSError:
                    continue  # no IPv4 address on it
                found.append((name, socket.inet_ntoa(answer[20:24])))
        with open("/proc/net/if_inet6") as file:
            for line in file:
                fields = line.split()
                found.append((fields[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))))
    except (ImportError, OSError):
        pass
    return found

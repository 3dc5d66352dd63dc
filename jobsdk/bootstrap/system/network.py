"""Addresses, interfaces and free ports of this machine."""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

LOOPBACK = "127.0.0.1"
_MAPPED = "::ffff:"  # how a dual-stack socket writes an IPv4 address


class Target:
    """One address to connect to: its family, and what `socket.connect` takes, but for the port."""

    __slots__ = ("family", "host", "rest")

    def __init__(self, family: int, host: str, rest: Tuple[int, ...]) -> None:
        self.family = family
        self.host = host
        self.rest = rest  # IPv6: flow and scope (the interface of a link-local address)

    def sockaddr(self, port: int) -> Tuple[Any, ...]:
        return (self.host, port, *self.rest)


def resolve(name: str, numeric: bool = False) -> List[Target]:
    """The addresses of `name`, in the system's order. May block for many seconds, but not if `numeric`: a name is
    then an error. Raises socket.gaierror (an OSError), UnicodeError for what can be no name."""
    # As bytes: Python would load its tables of international names (15 ms) for every str.
    host = name.encode() if name.isascii() else name
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST if numeric else 0)
    return [Target(family, str(address[0]), address[2:]) for family, _, _, _, address in found]


def plain(address: str) -> str:
    """An address without what a dual-stack socket puts before IPv4's."""
    return address[len(_MAPPED) :] if address.startswith(_MAPPED) and "." in address else address


def is_loopback(address: str) -> bool:
    return address == "::1" or (address.startswith("127.") and ":" not in address)


def _is_link_local(address: str) -> bool:
    """fe80::/10: such an address means something only together with an interface of the one who uses it."""
    return address[:3].lower() in ("fe8", "fe9", "fea", "feb") and ":" in address


def addresses(joined: Sequence[Mapping[str, Any]]) -> List[str]:
    """Every node's address, in their order, from what node 0 saw of each connection to its control port.

    `address` is the node's end of it and `reached` node 0's. Names play no part: an address that carried a connection
    works. Node 0's is the one at which most nodes reached it; one that is good on one machine only (loopback) or on
    one link only counts where there is no other. A node on node 0's own machine has node 0's address.
    """

    def worth(address: str) -> int:
        return 0 if is_loopback(address) else 1 if _is_link_local(address) else 2

    votes: Dict[str, int] = {}
    for node in joined[1:] or joined:
        votes[node["reached"]] = votes.get(node["reached"], 0) + 1
    first = max(votes, key=lambda address: (worth(address), votes[address]))
    return [first, *(first if is_loopback(node["address"]) else node["address"] for node in joined[1:])]


def common_subnet(addresses: Sequence[str]) -> Optional[str]:
    """The least IPv4 network that all addresses are in, as "10.0.0.4/30": what chooses the right interface of each
    node, whatever that is called there. None where there is none worth the name."""
    try:
        numbers = [int.from_bytes(socket.inet_aton(address), "big") for address in addresses]
    except (OSError, UnicodeError):
        return None  # IPv6
    differing = 0
    for number in numbers:
        differing |= number ^ numbers[0]
    size = 32 - differing.bit_length()
    network = numbers[0] >> (32 - size) << (32 - size)
    return "%s/%d" % (socket.inet_ntoa(network.to_bytes(4, "big")), size) if size >= 8 else None


def free_ports(count: int, address: str = "") -> List[int]:
    """`count` different TCP ports that nothing listens on now.

    A port is handed to a process that binds it a second or two later (after `import torch`), so it is drawn from
    below the range out of which the kernel gives ports to outgoing connections: nobody else gets it by accident.
    """
    low, high = 15000, max(20000, min(_first_ephemeral_port(), 32768))
    chosen: List[int] = []
    for _ in range(1000 * count):
        if len(chosen) == count:
            return chosen
        port = low + int.from_bytes(os.urandom(4), "big") % (high - low)
        if port not in chosen and _is_free(address, port):
            chosen.append(port)
    raise OSError("no free TCP port between %d and %d" % (low, high))


def _is_free(address: str, port: int) -> bool:
    try:
        _bound(address, port).close()
    except OSError:
        return False
    return True


def _bound(address: str, port: int) -> socket.socket:
    """A TCP socket bound to a port; without an address to every one, of IPv6 and IPv4 where the machine has both."""
    families = [socket.AF_INET6 if ":" in address else socket.AF_INET]
    if not address and socket.has_ipv6:
        families.insert(0, socket.AF_INET6)
    for family in families:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            if family == families[-1]:
                raise
            continue  # a kernel without IPv6
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1 if address else 0)
            # Without SO_REUSEADDR a port whose last connections still linger would count as taken.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, port))
            return sock
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE or family == families[-1]:
                raise
        except BaseException:
            sock.close()
            raise
    raise AssertionError("the last family returns or raises")


def _first_ephemeral_port() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError):
        return 32768


def listener(address: str, *ports: int) -> socket.socket:
    """A listening TCP socket on the first of `ports` that is free (0: any); "" listens on all addresses.

    Raises OSError; where every port is in use, with all of them in its text.
    """
    for port in ports:
        sock = None
        try:
            sock = _bound(address, port)
            sock.listen(4096)  # thousands of nodes may join in the same second
        except OSError as error:
            if sock is not None:
                sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            sock.setblocking(False)
            return sock
    names = ("port " if len(ports) == 1 else "ports ") + ", ".join(map(str, ports))
    raise OSError(errno.EADDRINUSE, "Address already in use: %s, for the control port" % names)


def own_address(listening: socket.socket) -> str:
    """Where a process of this machine reaches a listening socket of it."""
    address = plain(str(listening.getsockname()[0]))
    return LOOPBACK if address in ("", "0.0.0.0", "::") else address  # nosec B104 # nothing is bound here


def interface_towards(address: str) -> Optional[str]:
    """The name of the network interface whose route leads to `address`; None where that cannot be known.

    On the machine that has `address` itself, where the route is the loopback's, the interface that has it: the
    others reach it there.
    """
    try:
        target = resolve(plain(address))[0]
        with socket.socket(target.family, socket.SOCK_DGRAM) as probe:
            probe.connect(target.sockaddr(1))  # sends nothing: it only asks the routing table
            own = probe.getsockname()
            if target.family == socket.AF_INET6 and own[3]:  # link-local: several interfaces may have the same one
                return socket.if_indextoname(own[3])
    except (OSError, UnicodeError):
        return None
    wanted = LOOPBACK if is_loopback(own[0]) and ":" not in own[0] else own[0]
    for name, known in interface_addresses():
        if known == wanted:
            return name
    return None


def interface_addresses() -> List[Tuple[str, str]]:
    """(interface, address) of every address of this machine; nothing where the system has other ways than Linux."""
    found: List[Tuple[str, str]] = []
    try:
        import array
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            room = array.array("B", bytes(40 * 1024))
            request = struct.pack("iL", len(room), room.buffer_info()[0])
            size = struct.unpack("iL", fcntl.ioctl(probe.fileno(), 0x8912, request))[0]  # SIOCGIFCONF on Linux
        for start in range(0, size, 40):  # struct ifreq: the name, and a sockaddr_in
            name = room[start : start + 16].tobytes().split(b"\0")[0].decode()
            found.append((name.partition(":")[0], socket.inet_ntoa(room[start + 20 : start + 24].tobytes())))
        with open("/proc/net/if_inet6") as file:
            for line in file:
                fields = line.split()
                found.append((fields[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))))
    except (ImportError, OSError):
        pass
    return found

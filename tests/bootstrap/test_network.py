from __future__ import annotations

import socket

from jobsdk.bootstrap import network


def test_free_ports_differ_can_be_bound_and_lie_below_the_ephemeral_range() -> None:
    ports = network.free_ports(50)
    assert len(set(ports)) == 50
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first_ephemeral = int(file.read().split()[0])
    assert all(1024 < port < first_ephemeral for port in ports)
    for port in ports:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", port))


def test_a_port_that_something_listens_on_is_not_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", network.free_ports(1)[0]))
        taken.listen()
        assert not network._is_free(socket.AF_INET, "127.0.0.1", taken.getsockname()[1])


def test_the_interface_towards_loopback_is_lo() -> None:
    assert network.interface_towards("127.0.0.1") == "lo"
    assert network.interface_towards("no such host.invalid") is None

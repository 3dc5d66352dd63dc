from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from jobsdk.bootstrap.system import network


def test_free_ports_differ_can_be_bound_and_lie_below_the_ephemeral_range() -> None:
    ports = network.free_ports(50)
    assert len(set(ports)) == 50
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first_ephemeral = int(file.read().split()[0])
    assert all(1024 < port < first_ephemeral for port in ports)
    for port in ports:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", port))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_that_something_listens_on_is_not_free(address: str) -> None:
    with network.listener(address, 0) as taken:
        port = taken.getsockname()[1]
        assert not network._is_free(address, port)
        assert not network._is_free("", port)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_listener_on_all_addresses_is_reached_by_both_protocols(address: str) -> None:
    with network.listener("", 0) as listening, socket.create_connection((address, listening.getsockname()[1])) as here:
        there, peer = listening.accept()
        assert network.plain(peer[0]) == address
        assert network.plain(there.getsockname()[0]) == here.getpeername()[0]
        there.close()


def test_the_first_free_port_is_taken_and_when_none_is_all_are_named() -> None:
    (free,) = network.free_ports(1)
    with network.listener("", 0) as first, network.listener("127.0.0.1", 0) as second:
        taken = [sock.getsockname()[1] for sock in (first, second)]
        with network.listener("", *taken, free) as third:
            assert third.getsockname()[1] == free
        with pytest.raises(OSError, match=f"Address already in use: ports {taken[0]}, {taken[1]}"):
            network.listener("", *taken)


@pytest.mark.parametrize(
    ("address", "own"), [("", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("127.0.0.5", "127.0.0.5")]
)
def test_the_own_address_of_a_listener_reaches_it(address: str, own: str) -> None:
    with network.listener(address, 0) as listening:
        assert network.own_address(listening) == own
        socket.create_connection((own, listening.getsockname()[1])).close()


def test_names_resolve_and_a_name_is_no_number() -> None:
    assert {target.host for target in network.resolve("localhost")} <= {"127.0.0.1", "::1"}
    assert network.resolve("::1", numeric=True)[0].sockaddr(80) == ("::1", 80, 0, 0)
    with pytest.raises(socket.gaierror):
        network.resolve("localhost", numeric=True)


def seen(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"address": address, "reached": reached} for address, reached in pairs]


LOCAL = ("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize(
    ("joined", "expected"),
    [
        (seen(LOCAL), ["127.0.0.1"]),
        (seen(LOCAL, LOCAL), ["127.0.0.1", "127.0.0.1"]),
        (seen(LOCAL, ("10.0.0.2", "10.0.0.1")), ["10.0.0.1", "10.0.0.2"]),
        # Node 1 shares node 0's machine, and is reached there.
        (seen(LOCAL, LOCAL, ("10.0.0.2", "10.0.0.1")), ["10.0.0.1", "10.0.0.1", "10.0.0.2"]),
        # Most nodes came by 10.1: what joined first does not count, nor that fewer came by another network.
        (
            seen(LOCAL, ("10.0.0.2", "10.0.0.1"), ("10.1.0.3", "10.1.0.1"), ("10.1.0.4", "10.1.0.1")),
            ["10.1.0.1", "10.0.0.2", "10.1.0.3", "10.1.0.4"],
        ),
        (seen(LOCAL, LOCAL, LOCAL, LOCAL, ("fd00::2", "fd00::1")), ["fd00::1"] * 4 + ["fd00::2"]),
        # An address of one link only counts where there is no other.
        (
            seen(LOCAL, ("fe80::2", "fe80::1"), ("fe80::3", "fe80::1"), ("fd00::4", "fd00::1")),
            ["fd00::1", "fe80::2", "fe80::3", "fd00::4"],
        ),
        (seen(("::1", "::1"), ("::1", "::1")), ["::1", "::1"]),
    ],
)
def test_addresses_are_those_that_carried_a_connection(joined: list[dict[str, Any]], expected: list[str]) -> None:
    assert network.addresses(joined) == expected


def test_the_interface_towards_loopback_is_lo() -> None:
    assert [network.interface_towards(address) for address in ("127.0.0.1", "127.0.1.1", "::1")] == ["lo"] * 3
    assert network.interface_towards("no such host.invalid") is None
    assert network.interface_towards("") is None


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network of its own with two interfaces; the command that runs something in it, up to the program."""
    holder = subprocess.Popen(
        ["unshare", "--net", "--map-root-user", "sh", "-c", "echo made; exec sleep 600"], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"made\n"
    enter = f"nsenter --target {holder.pid} --net --user --preserve-credentials"
    for line in (
        "ip link set lo up",
        "ip link add first type veth peer name other",
        "ip link add second type veth peer name another",
        "ip addr add 10.9.1.1/24 dev first",
        "ip addr add 10.9.1.7/24 dev first label first:1",
        "ip addr add 10.9.2.1/24 dev second",
        "ip addr add fd09::1/64 dev second nodad",
        *(f"ip link set {name} addrgenmode none up" for name in ("first", "other", "second", "another")),
        "ip addr add fe80::1/64 dev first nodad",
        "ip addr add fe80::1/64 dev second nodad",
    ):
        subprocess.run(f"{enter} {line}".split(), check=True)
    yield enter
    holder.kill()
    holder.wait()


@pytest.mark.engine("network")
def test_the_interface_is_the_one_whose_route_leads_there_and_on_the_machine_itself_the_one_that_has_it(
    namespace: str,
) -> None:
    expected = {
        "10.9.1.20": "first",
        "10.9.2.20": "second",
        "10.9.1.1": "first",
        "10.9.1.7": "first",  # a second address, under a label
        "10.9.2.1": "second",
        "::ffff:10.9.2.1": "second",
        "fd09::1": "second",
        "fd09::20": "second",
        "fe80::1%first": "first",
        "fe80::1%second": "second",
        "fe80::20%second": "second",
        "10.200.0.1": None,  # no route
        "127.0.0.1": "lo",
    }
    code = (
        "import sys; from jobsdk.bootstrap.system import network; "
        "print([network.interface_towards(a) for a in sys.argv[1:]])"
    )

    done = subprocess.run([*namespace.split(), sys.executable, "-c", code, *expected], capture_output=True, text=True)
    assert done.stdout == f"{list(expected.values())}\n", done.stderr

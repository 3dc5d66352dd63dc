"""Hosts that are network namespaces on a bridge of their own: each with an address, a host name and a hosts file.

Their files are the same, their network is not: what is cut or misrouted there is so for them alone. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from jobsdk.bootstrap.system import gpu_locks
from tests.needs import needs

#: The locks on machines and their GPUs lie in /tmp, each under the name of its machine. Hosts of another test that runs
#: beside this one have the same names, so each set of hosts has that folder for itself.
_ENTER = (
    'mount --bind "$0" /etc/hosts && mount --bind "$(dirname "$0")/locks" '
    f'{gpu_locks.FOLDER} && hostname "$1" && shift && exec "$@"'
)


class Hosts:
    """`with Hosts(folder, 3) as hosts:` hosts 0, 1, 2 with the names h0, h1, h2."""

    def __init__(self, folder: Path, count: int) -> None:
        needs("network")
        self._prefix = f"jt{os.getpid()}"
        self._count = count
        self._file = folder / "hosts"
        names = "".join(f"{self.address(host)} h{host}\n" for host in range(count))
        self._file.write_text("127.0.0.1 localhost\n" + names)
        for locks in (folder / "locks", Path(gpu_locks.FOLDER)):  # what is mounted, and where
            with contextlib.suppress(FileExistsError):
                locks.mkdir()
                locks.chmod(0o1777)

    def __enter__(self) -> Hosts:
        switch = self._namespace("sw")
        try:
            _ip("netns", "add", switch)
            _ip("-n", switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", switch, "link", "set", "br0", "up")
            for host in range(self._count):
                own = self._namespace(host)
                _ip("netns", "add", own)
                _ip("link", "add", "eth0", "netns", own, "type", "veth", "peer", "name", f"p{host}", "netns", switch)
                _ip("-n", switch, "link", "set", f"p{host}", "master", "br0", "up")
                size = ["/64", "dev", "eth0", "nodad"] if ":" in self.address(host) else ["/24", "dev", "eth0"]
                self.ip(host, "addr", "add", self.address(host) + size[0], *size[1:])
                self.ip(host, "link", "set", "eth0", "up")
                self.ip(host, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in [self._namespace(host) for host in range(self._count)] + [self._namespace("sw")]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def ip(self, host: int, *words: str) -> None:
        """The command `ip` inside a host."""
        _ip("-n", self._namespace(host), *words)

    def slow(self, host: int, rate: str) -> None:
        """Let a host send no more than `rate`, as 50mbit."""
        words = [
            "tc",
            "qdisc",
            "replace",
            "dev",
            "eth0",
            "root",
            "tbf",
            "rate",
            rate,
            "burst",
            "32k",
            "latency",
            "50ms",
        ]
        subprocess.run(["nsenter", f"--net=/run/netns/{self._namespace(host)}", *words], check=True)

    def argv(self, host: int, command: Sequence[str]) -> list[str]:
        """The command as it is started on a host. The pid is the command's own."""
        # Not `ip netns exec`, which mounts another /sys.
        inside = ["unshare", "--uts", "--mount", "/bin/sh", "-c", _ENTER, str(self._file), f"h{host}", *command]
        return ["nsenter", f"--net=/run/netns/{self._namespace(host)}", *inside]

    def _namespace(self, host: int | str) -> str:
        return f"{self._prefix}-{host}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)

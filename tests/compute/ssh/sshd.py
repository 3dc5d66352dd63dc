"""Real sshd's, with keys, known hosts and a configuration of their own: nothing of the user's is read or written.

Most are started by ssh itself for each connection (`sshd -i` as its ProxyCommand), which needs no port and also works
inside a network namespace; one listens on loopback.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from jobsdk.bootstrap.system import network
from tests import engines
from tests.bootstrap.runs import wait_for
from tests.needs import needs

_ALIAS = "sshd-of-the-tests"
_SERVER = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
Subsystem sftp internal-sftp
"""
_CLIENT = """\
Host *
  IdentityFile {folder}/key
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  HostKeyAlias {alias}
"""


class Sshd:
    """A folder with keys and configurations. `options` are those that lead ssh there."""

    def __init__(self, folder: Path) -> None:
        needs("ssh")
        self.folder = folder
        self.config = folder / "config"
        self.options = ("-F", str(self.config))
        self._listening: list[subprocess.Popen[bytes]] = []
        for name in ("host_key", "key", "other_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        key = (folder / "host_key.pub").read_text().split()
        (folder / "known_hosts").write_text(f"{_ALIAS} {key[0]} {key[1]}\n")
        self.config.write_text("")
        if os.getuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # sshd asks for it

    def add(self, name: str, inside: Sequence[str] = (), variables: str = "", client: Sequence[str] = ()) -> str:
        """A host of this name, with a home of its own. `inside` is the command that goes before sshd there, `variables`
        what its logins have, as PATH=/bin."""
        argv = [*inside, _sshd(), "-i", "-f", self._server(name, variables)]
        self._block(name, [f"ProxyCommand {shlex.join(argv)} 2>/dev/null", *client])
        return name

    def listen(self, name: str, client: Sequence[str] = ()) -> str:
        """A host that listens on loopback; its address, with the port."""
        (port,) = network.free_ports(1)
        argv = [_sshd(), "-D", "-f", self._server(name, ""), "-o", f"ListenAddress=127.0.0.1:{port}"]
        self._listening.append(subprocess.Popen(argv, stderr=subprocess.DEVNULL))
        wait_for(lambda: _answers(port))
        self._block("127.0.0.1", client)
        return f"127.0.0.1:{port}"

    def close(self) -> None:
        """End those that listen."""
        while self._listening:
            server = self._listening.pop()
            server.terminate()
            server.wait()

    def home(self, name: str) -> Path:
        """The home of a host's logins."""
        return self.folder / f"home-{name}"

    def _server(self, name: str, variables: str) -> str:
        file = self.folder / f"sshd_config_{name}"
        self.home(name).mkdir(exist_ok=True)
        file.write_text(_SERVER.format(folder=self.folder) + f"SetEnv HOME={self.home(name)} {variables}\n")
        return str(file)

    def _block(self, name: str, lines: Sequence[str]) -> None:
        """The first value wins in ssh's configuration: what is common comes last."""
        own = f"Host {name}\n" + "".join(f"  {line}\n" for line in lines)
        kept = self.config.read_text().partition("Host *\n")[0]
        if own in kept:
            return
        self.config.write_text(kept + own + _CLIENT.format(folder=self.folder, alias=_ALIAS))


def end_connections(home: Path) -> None:
    """End the connections that are kept for calls to come: nothing of a test may outlive it."""
    for socket in (home / "ssh").iterdir() if (home / "ssh").is_dir() else ():
        path = str(socket).replace("%", "%%")
        argv = ["ssh", "-F", "none", "-o", f'ControlPath="{path}"', "-O", "exit", "any"]
        subprocess.run(argv, capture_output=True, check=False)


def _sshd() -> str:
    return str(engines.find("sshd"))


def _answers(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0

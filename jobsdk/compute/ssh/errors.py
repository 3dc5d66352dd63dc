"""What ssh, or the system at its other end, says when something goes wrong, in plain words and with what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jobsdk.compute.hosts.host import Answer
from jobsdk.errors import ComputeError

#: What an interpreter that is too old begins its answer with.
OLD_PYTHON = "jobsdk needs Python 3.8, and this is "

#: What OpenSSH's client writes (ssh.c, sshconnect.c, readconf.c, packet.c) -> what it means for the user.
_SAID = (
    (r"Could not resolve hostname", "ssh does not know that name. Fix: correct it, or give it a Host block with a "
     "HostName in ~/.ssh/config"),
    (r"Connection refused", "nothing listens there: {last}. Fix: check the port, and that sshd runs there"),
    (r"timed out|No route to host|Network is unreachable|Host is down",
     "it does not answer: {last}. Fix: check that the machine is up and that this network leads to it"),
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key is another one than in {known}. Fix: if the machine was "
     "reinstalled, delete that line with ssh-keygen -R; if not, somebody may be in between"),
    (r"Host key verification failed|No \S+ host key is known",
     "its host key is not known here yet. Fix: connect once by hand with ssh, and compare the fingerprint"),
    (r"Permission denied \((?P<ways>[^)]*)\)", "it refuses every key that ssh offers (it takes {ways}). Fix: add your "
     "public key to ~/.ssh/authorized_keys there, or load the right one with ssh-add"),
    (r"Too many authentication failures", "it refuses after too many keys. Fix: name the right one with IdentityFile "
     "and IdentitiesOnly=yes in ~/.ssh/config"),
    (r"Bad configuration option|Bad owner or permissions|Can't open user config file|terminating, \d+ bad",
     "ssh's configuration cannot be used: {last}"),
    (r"kex_exchange_identification|banner exchange|Connection closed by|Connection reset by",
     "it closed the connection: {last}. Fix: look at its sshd's log; MaxStartups may be too low"),
)  # fmt: skip
_KNOWN = re.compile(r"Offending \S+ key in (\S+)")


def told(host: str, err: str) -> ComputeError:
    """What ssh's exit code 255 means, by its words."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    last = lines[-1] if lines else "ssh ended with exit code 255"
    last = last.removeprefix("ssh: ").rstrip(".")
    for pattern, meaning in _SAID:
        found = re.search(pattern, err)
        if found:
            known = _KNOWN.search(err)
            words = {"last": last, "known": known[1] if known else "known_hosts", **found.groupdict()}
            return ComputeError(f"{host}: {meaning.format(**words)}")
    return ComputeError(f"{host}: the connection was lost: {last}")


def of_python(host: str, python: str, answer: Answer) -> ComputeError:
    """Why there is no answer from Python there."""
    if OLD_PYTHON in answer.err:
        version = answer.err.partition(OLD_PYTHON)[2].split()[0]
        return ComputeError(f"{host}: {python} is Python {version}, and 3.8 is needed. {_SET_PYTHON}")
    if answer.code in (126, 127):
        return ComputeError(f"{host}: there is no {python}. {_SET_PYTHON}")
    return ComputeError(f"{host}: {python} failed: {answer.last_words}")


_SET_PYTHON = "Fix: install Python 3.8 or later there, or set `python` to its path in computes.yml"


def of_system(host: str, said: Mapping[str, Any]) -> ComputeError:
    """Why a file could not be written or read there."""
    path, number = said.get("path") or "", said.get("errno")
    if number in ("ENOSPC", "EDQUOT"):
        what = "the disk is full" if number == "ENOSPC" else "the quota is used up"
        return ComputeError(
            f"{host}: {what}{f' at {path}' if path else ''}. Fix: make room there, or use another folder"
        )
    if number in ("EACCES", "EROFS", "EPERM"):
        return ComputeError(f"{host}: {path} cannot be written or read: {said['error']}. Fix: set another `folder`")
    return ComputeError(f"{host}: {f'{path}: ' if path else ''}{said['error']}")

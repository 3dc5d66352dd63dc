"""Talking to the supervisor of a run on this machine."""

from __future__ import annotations

import os
import signal

from jobsdk.bootstrap.system import private, processes, procfs
from jobsdk.errors import JobsdkError
from jobsdk.runs.folder import RunFolder


class NoStacks(JobsdkError):
    """A run cannot be asked where its ranks are, or does not answer."""


def signal_supervisor(run: RunFolder, request: str) -> None:
    """Have the supervisor of a run on this machine look at the request `stacks-ID`. Raises NoStacks."""
    pid = run.living_owner()
    # To a process that does not expect it the signal would be the end.
    if pid is None or (os.path.isdir("/proc/self") and not procfs.has(procfs.field(pid, "SigCgt"), signal.SIGUSR1)):
        host = run.facts().get("host", os.uname().nodename)
        here = "its supervisor is not there" if host == os.uname().nodename else f"it runs on {host}: ask there"
        raise NoStacks(f"run {run.name} cannot be asked where its ranks are: {here}")
    with open(run.path / f"{request}.request", "w", opener=private.opener):
        pass
    processes.send([pid], signal.SIGUSR1)

"""Asking a run where its ranks are: the Python stacks of all of them, while they go on."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from jobsdk.bootstrap.system import private, processes, procfs
from jobsdk.errors import JobsdkError
from jobsdk.runs import RunFolder

if TYPE_CHECKING:
    from jobsdk.compute.base import Compute

TIMEOUT = 20.0  # seconds; nodes have ten to answer node 0


class NoStacks(JobsdkError):
    """A run cannot be asked where its ranks are, or does not answer."""


def ask(run: RunFolder, compute: Compute, timeout: float = TIMEOUT) -> dict[str, Any]:
    """The answer: `groups` (lines such as `7 ranks in all_reduce at train.py:88 (ranks 0-5, 7)`), `ranks` (rank ->
    its processes with their threads and frames), `nodes_missing` and `time`. Raises NoStacks."""
    state = compute.status(run)
    if state.is_terminal:
        raise NoStacks(f"run {run.name} has ended ({state.status}): there are no ranks to ask")
    if state.started is None:
        raise NoStacks(f"run {run.name} is {state.status}: no rank runs yet")
    number = os.urandom(6).hex()
    compute.ask(run, f"stacks-{number}")
    answer = f"stacks-{number}.json"
    deadline = time.monotonic() + timeout
    while not (content := run.read_json(answer)):
        if compute.status(run).is_terminal:
            raise NoStacks(f"run {run.name} ended while it was asked")
        if time.monotonic() > deadline:
            raise NoStacks(f"run {run.name} did not say within {timeout:.0f} s where its ranks are")
        time.sleep(0.02)
    (run.path / answer).unlink(missing_ok=True)
    return content


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

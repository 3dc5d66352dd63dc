"""Asking a run where its ranks are: the Python stacks of all of them, while they go on."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from jobsdk.runs.folder import RunFolder
from jobsdk.runs.supervisor import NoStacks

if TYPE_CHECKING:
    from jobsdk.compute.base import Compute

TIMEOUT_S = 20.0  # seconds; nodes have ten to answer node 0


def ask(run: RunFolder, compute: Compute, timeout: float = TIMEOUT_S) -> dict[str, Any]:
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

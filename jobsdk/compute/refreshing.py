"""Bringing many runs up to date at once, as a list of runs needs them."""

from __future__ import annotations

from collections.abc import Iterable

from jobsdk import compute as computes
from jobsdk.errors import JobsdkError
from jobsdk.runs.folder import RunFolder

_AT_ONCE = 8
_PATIENCE_S = 5.0  # seconds that a list may wait for engines that do not answer


def refresh(runs: Iterable[RunFolder]) -> dict[str, str]:
    """Ask the engines of runs that have not ended; why some could not be asked, by the names of their computes.

    Returns after five seconds at most: what has not answered by then is shown as it was.
    """
    remote = [run for run in runs if run.read_json("native.json").get("type", computes.LOCAL) != computes.LOCAL]
    if not remote:
        return {}
    import threading
    import time

    failures: dict[str, str] = {}
    turn = threading.Semaphore(_AT_ONCE)

    def ask(run: RunFolder) -> None:
        with turn:
            try:
                computes.of_run(run).refresh(run)
            except JobsdkError as error:
                failures[str(run.facts().get("compute"))] = str(error)

    # Not a pool: the interpreter would wait at its end for those that are late.
    threads = [threading.Thread(target=ask, args=(run,), daemon=True) for run in remote]
    deadline = time.monotonic() + _PATIENCE_S
    for thread in threads:
        thread.start()
    for run, thread in zip(remote, threads, strict=True):
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            failures.setdefault(str(run.facts().get("compute")), f"has not answered within {_PATIENCE_S:g} s")
    return failures

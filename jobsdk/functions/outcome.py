"""What the ranks' functions have returned or raised, as it came back; see `call`."""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any, NamedTuple

from jobsdk.bootstrap import contract, layout
from jobsdk.errors import JobsdkError
from jobsdk.runs import RunFolder

#: The property of a job that calls a function, with the function's name.
PROPERTY = "jobsdk.function"


class Outcome(NamedTuple):
    """One rank's: `data` is the pickled value or exception, which may be missing."""

    rank: int
    facts: dict[str, Any]
    data: bytes


def read(run: RunFolder, rank: int) -> Outcome | None:
    """What a rank has left in the last start of the job; None where it has left nothing, or not all of it arrived."""
    plan, restarts = run.plan(), run.recorded_state().restarts
    path = layout.result(str(run.path), contract.node_of(plan, rank), rank, restarts)
    try:
        with open(path, "rb") as file:
            head, *lines = file.read().splitlines()
        facts = json.loads(head)
        data = base64.b64decode(b"".join(lines[:-1]))
    except (OSError, ValueError):
        return None
    if not lines or lines[-1] != b"." or len(data) != facts["bytes"]:
        return None
    return Outcome(rank, facts, data)


def value(run: RunFolder, rank: int) -> Any:
    """What the function returned in a rank. Raises JobsdkError where that did not arrive or cannot be read."""
    found = read(run, rank)
    if found is None:
        raise JobsdkError(
            f"what rank {rank} of run {run.name} returned did not arrive. Fix: see its log: jobsdk job logs {run.name}"
        )
    if found.facts["outcome"] != "returned":
        return None  # it ended by sys.exit()
    try:
        return pickle.loads(found.data)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise JobsdkError(
            f"what rank {rank} of run {run.name} returned cannot be read here: {why[:200]}. Fix: the same libraries "
            "here as there, or a function that returns plain data"
        ) from error


def exception(run: RunFolder) -> BaseException | None:
    """The exception of the rank that failed first, as it was raised there; None where it is not known.

    Its cause is a `RemoteTraceback` with the lines of code and the rank.
    """
    cause = run.report().get("cause") or {}
    rank = cause.get("rank")
    found = read(run, rank) if isinstance(rank, int) else None
    if found is None or found.facts["outcome"] != "raised" or not found.data:
        return None
    try:
        error = pickle.loads(found.data)
    except Exception:
        return None
    if not isinstance(error, BaseException):
        return None
    error.__cause__ = RemoteTraceback(rank, cause.get("node"), found.facts["traceback"])
    return error


class RemoteTraceback(Exception):
    """Where an exception was raised, in another process: its cause, shown before it."""

    def __init__(self, rank: int, node: int | None, text: str) -> None:
        super().__init__(rank, node, text)
        self.rank, self.node, self.text = rank, node, text

    def __str__(self) -> str:
        where = f"rank {self.rank}" + (f" on node {self.node}" if self.node is not None else "")
        return f"in {where}:\n\n{self.text.rstrip()}"

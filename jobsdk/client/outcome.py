"""What the ranks' functions have returned or raised, as it came back; see `jobsdk.functions.call`."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from typing import Any, NamedTuple

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.spec import paths
from jobsdk.errors import JobFailed, JobsdkError
from jobsdk.runs.folder import RunFolder
from jobsdk.train import reporting


class Outcome(NamedTuple):
    """One rank's: `data` is the value or exception in the form that the facts name, and may be missing."""

    rank: int
    facts: dict[str, Any]
    data: bytes


def read(run: RunFolder, rank: int) -> Outcome | None:
    """What a rank has left in the last start of the job; None where it has left nothing, or not all of it arrived.

    Raises ComputeError where it has to be fetched and cannot be.
    """
    return parsed(rank, _file(run, rank))


def parsed(rank: int, path: str | os.PathLike[str]) -> Outcome | None:
    """What a file holds that `call` has written; None where it is not there, or not whole."""
    try:
        with open(path, "rb") as file:
            head, *lines = file.read().splitlines()
        facts = json.loads(head)
        data = base64.b64decode(b"".join(lines[:-1]))
        if lines[-1] != b"." or len(data) != facts["bytes"]:
            return None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return Outcome(rank, facts, data)


def _file(run: RunFolder, rank: int) -> str:
    plan, restarts = run.plan(), run.recorded_state().restarts
    process = next(one for one in distributions.of(plan).processes() if one.rank == rank)
    if run.read_json("azureml.json").get("launcher") != "native":
        return paths.result(str(run.path), process.node_rank, rank, restarts)
    from jobsdk import compute

    # Azure ML's own launcher: there it lies among the outputs, which are fetched as a whole.
    outputs, kept = compute.of_run(run).fetch(run, ["default"]), os.path.dirname(reporting.KEPT).partition("/")[2]
    who = f"{process.role}-{process.role_index}" if distributions.of(plan).has_roles else f"rank-{rank}"
    return f"{outputs['default']}/{kept}/{who}.result.log"


def loaded(found: Outcome, trusted: bool = True) -> Any:
    """The value or exception that it holds. Raises Pickled, or whatever reading it raises."""
    if found.facts.get("form") == "json":
        return json.loads(found.data)
    if not trusted:
        raise Pickled
    return pickle.loads(found.data)  # nosec B301 # of the user's own run, and trusted: docs/security.md#functions


class Pickled(Exception):
    """It is a pickle, and who wrote it is not trusted."""


def value(run: RunFolder, rank: int, trusted: bool) -> Any:
    """What the function returned in a rank. Raises JobsdkError where that did not arrive or cannot be read, or is a
    pickle though not `trusted`."""
    found = read(run, rank)
    if found is None:
        raise JobsdkError(
            f"what rank {rank} of run {run.name} returned did not arrive. Fix: see its log: jobsdk job logs {run.name}"
        )
    if found.facts["outcome"] != "returned":
        return None  # it ended by sys.exit()
    try:
        return loaded(found, trusted)
    except Pickled:
        raise JobsdkError(
            f"what rank {rank} of run {run.name} returned is a pickle, which can run code here when it is read. "
            "Fix: return plain data (None, bool, int, float, str, and lists and dicts of those), or leave out "
            "trusted=False if you trust the nodes"
        ) from None
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise JobsdkError(
            f"what rank {rank} of run {run.name} returned cannot be read here: {why[:200]}. Fix: the same libraries "
            "here as there, or a function that returns plain data"
        ) from error


def exception(run: RunFolder, failure: JobFailed, trusted: bool) -> BaseException:
    """What the rank that failed first has raised, where that is known and an `Exception`; else `failure`. Exceptions
    are pickles: without `trusted` it is always `failure`.

    Where there is a traceback its cause is a `RemoteTraceback`.
    """
    cause = run.report().get("cause") or {}
    rank = cause.get("rank")
    found = read(run, rank) if isinstance(rank, int) else None
    if found is None or found.facts["outcome"] != "raised":
        return failure
    error: BaseException = failure
    if found.data:
        try:
            raised = loaded(found, trusted)
        except Exception:  # not trusted; or its class is not here, or cannot be made again
            raised = None
        # A KeyboardInterrupt of there must not look like one of here.
        error = raised if isinstance(raised, Exception) else failure
    advice = cause.get("advice") if "Fix: " not in found.facts["message"] else None
    remote = error.__cause__ = RemoteTraceback(found.rank, cause.get("node"), found.facts["traceback"], advice)
    if error is not failure and "IPython" in sys.modules:
        # What a notebook shows of it; without one nothing is added that would have to be pickled.
        error._render_traceback_ = lambda: _shown(error, remote)  # type: ignore[attr-defined]
    return error


def _shown(error: BaseException, remote: RemoteTraceback) -> list[str]:
    from jobsdk.notebook import shown

    return [*str(remote).splitlines(), "", *shown(error)]


class RemoteTraceback(Exception):
    """Where an exception was raised, in another process: its cause, shown before it."""

    def __init__(self, rank: int, node: int | None, text: str, advice: str | None = None) -> None:
        super().__init__(rank, node, text, advice)
        self.rank, self.node, self.text, self.advice = rank, node, text, advice

    def __str__(self) -> str:
        where = f"rank {self.rank}" + (f" on node {self.node}" if self.node is not None else "")
        advice = f"\nadvice: {self.advice}" if self.advice else ""
        return f"in {where}:\n\n{self.text.rstrip()}{advice}"

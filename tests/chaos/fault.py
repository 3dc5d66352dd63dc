"""A row of the table: a fault, how it is brought about, and the card that must come of it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from tests.chaos.harness import Job

#: What a fault needs of the machine.
ROOT = pytest.mark.root
CGROUP, CLOCK, NETWORK = (pytest.mark.engine(name) for name in ("cgroup", "faketime", "network"))

RESTARTS = {"max": 0, "max_preemptions": 0, "delay_s": 0.0, "retry_on": [], "never_retry_on": []}
ONE_EACH = {"type": "pytorch", "processes": 1, "launcher": "direct"}
#: A rank or node that is as likely as another: all failed of the same, and the first is named.
ANY = -1
#: A script in which nothing happens until something is done to it.
HOLD = "hold()\n"
#: A script that ends well once the fault has been injected.
FINISH = "go()\n"
#: What `up` and `go` are where there is no Python.
GATE = 'echo $$ >"$CHAOS/up-0-$RANK"; : <"$CHAOS/gate"; '
#: For a job whose bootstraps are stopped for a while.
PATIENT = {"heartbeat_s": 120.0}


class Fault(NamedTuple):
    """`first_line` is a regular expression for the card's first line, `card` one for the card as a whole."""

    name: str
    first_line: str
    kind: str | None = None  # the class of the cause; None: the run has no cause
    status: str = "Failed"
    exit_code: int = 1
    rank: int | None = None  # of the cause
    node: int | None = None
    ranks: Sequence[int] | None = None  # all that had the same error, where that is part of the row
    card: str = ""
    history: Sequence[str] = ()  # the classes of the failures that were followed by a restart
    buried: bool = False  # the client may be the one that finds the run dead: it knows no cause
    process_code: int | None = 0  # of the supervisor or node 0, where it is another than the job's; None: not asked
    # The job
    script: str = HOLD
    command: str = "exec python train.py"
    nodes: int = 2
    distribution: Mapping[str, Any] | None = None  # by default two processes on each node
    plan: Mapping[str, Any] = {}
    environ: Mapping[str, str] = {}  # of the bootstraps
    # The fault
    apart: bool = False  # each node's bootstrap is started by itself, as on a cluster, with a run folder of its own
    absent: Sequence[int] = ()  # nodes that the injection starts, or nobody
    around: Callable[[Job], AbstractContextManager[None]] | None = None  # what the job runs in
    inject: Callable[[Job], object] | None = None  # once all ranks are up, then scripts that wait go on
    waits: bool = True  # for all ranks to be up
    comes_up: Sequence[int] | None = None  # the ranks that do; by default all
    marks: Sequence[pytest.MarkDecorator] = ()  # what it needs of the machine

    def place(self) -> dict[str, int | None]:
        """Where the cause must be."""
        return {"rank": self.rank, "node": self.node}


def fails(text: str, *ranks: int) -> str:
    """A script: some ranks (3 if none is named) do what `text` says, once all are there; the others go on."""
    return f"go()\nif RANK in {ranks or (3,)}:\n{textwrap.indent(textwrap.dedent(text), '    ')}\ntime.sleep(600)\n"


def of_rank(name: str, text: str, words: str, kind: str, exit_code: int = 1, **more: Any) -> Fault:
    """Rank 3, on node 1, does what `text` says; `words` complete "rank 3 on node 1 "."""
    line = f"ended as Failed: rank 3 on node 1 {words}$"
    return Fault(name, line, kind, "Failed", exit_code, 3, 1, script=fails(text), **more)


def restarts(**changed: Any) -> dict[str, Any]:
    """The part of a plan that says when to start again."""
    return {"restarts": {**RESTARTS, **changed}}

"""How a job ended, from what was heard of its ranks and nodes."""

from __future__ import annotations

import itertools
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk.bootstrap.failures import report
from tests.bootstrap.runs import plan

PLAN = plan("train", nodes=2)  # four ranks


def end(rank: int, code: int = 0, t: float = 10.0, **more: Any) -> dict[str, Any]:
    return {
        "t": t, "rank": rank, "node": rank // 2, "exit_code": code, "signal": None, "stopped": False, "pid": 100 + rank,
        "host": "h", **more,
    }  # fmt: skip


def stopped(rank: int, signum: int = signal.SIGTERM) -> dict[str, Any]:
    return end(rank, 128 + signum, signal=signum, stopped=True)


def ends(*records: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {record["rank"]: record for record in records}


CULPRIT = end(2, 1, t=10.05, error="ValueError: no such layer", traceback="Traceback ...\nValueError: no such layer")
VICTIMS = [
    end(0, 1, t=10.00, error="RuntimeError: [gloo] Connection closed by peer [10.0.0.2]:4242"),
    end(
        1, 1, t=10.01, error="torch.distributed.DistBackendError: NCCL error: ncclRemoteError: a remote process exited"
    ),
    end(3, 143, t=10.02, signal=15),
]


def test_success_takes_every_rank() -> None:
    done = ends(*map(end, range(4)))
    assert report.outcome(PLAN, None, done, [])[:2] == ("Completed", 0)
    del done[3]
    result = report.outcome(PLAN, None, done, [])
    assert (result.status, result.exit_code) == ("Failed", 1)
    assert "rank(s) 3" in result.message


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_who_died_of_another_is_never_the_cause(order: tuple[int, ...]) -> None:
    failures = [[CULPRIT, *VICTIMS][index] for index in order]
    result = report.outcome(PLAN, "failure", ends(*failures), failures)
    assert result.cause is not None
    assert (result.status, result.exit_code, result.cause["rank"], result.cause["class"]) == (
        "Failed", 1, 2, "exception",
    )  # fmt: skip


@given(st.permutations([CULPRIT, *VICTIMS]), st.lists(st.floats(0, 0.2), min_size=4, max_size=4))
def test_times_do_not_change_that(failures: list[dict[str, Any]], offsets: list[float]) -> None:
    moved = [dict(one, t=10.0 + offset) for one, offset in zip(failures, offsets, strict=True)]
    result = report.outcome(PLAN, "failure", ends(*moved), moved)
    assert result.cause is not None
    assert result.cause["rank"] == 2


@pytest.mark.parametrize(
    ("record", "status", "code"),
    [
        ({"class": "node_lost", "exit_code": 125, "node": 1, "rank": None, "message": "node 1 is lost"}, "Lost", 125),
        ({"class": "never_started", "exit_code": 125, "node": 1, "rank": None, "message": "missing"}, "Lost", 125),
        ({"class": "preempted", "exit_code": 143, "node": 1, "rank": None, "message": "told"}, "Preempted", 143),
        ({"class": "hang", "exit_code": 124, "node": None, "rank": None, "message": "hangs"}, "TimedOut", 124),
        ({"class": "bootstrap_error", "exit_code": 126, "node": 0, "rank": None, "message": "cannot"}, "Failed", 126),
    ],
)
def test_states_of_what_is_no_rank_s_fault(record: dict[str, Any], status: str, code: int) -> None:
    result = report.outcome(PLAN, "failure", {}, [dict(record, t=1.0)])
    assert (result.status, result.exit_code, result.message) == (status, code, record["message"])


def test_cancelled_is_no_failure_whatever_the_ranks_say_of_it() -> None:
    result = report.outcome(PLAN, "cancelled", ends(*map(stopped, range(4))), [])
    assert result == ("Canceled", 130, "cancelled on request", None)


def test_the_same_error_from_several_ranks() -> None:
    failures = [end(rank, 1, t=10 + rank / 100, error=f"ValueError: rank {rank} found no data") for rank in (3, 1, 0)]
    result = report.outcome(PLAN, "failure", ends(*failures), failures)
    assert result.cause is not None
    assert (result.cause["rank"], result.cause["ranks"]) == (0, [0, 1, 3])


def test_of_ranks_that_left_while_others_waited_for_them() -> None:
    done = ends(end(0), end(1), end(3))
    victim = VICTIMS[0] | {"rank": 2}
    result = report.outcome(PLAN, "failure", {**done, 2: victim}, [victim])
    assert "lost its connection to another rank after ranks 0-1, 3 had ended with code 0: Run" in result.message
    assert result.cause is not None
    assert result.cause["advice"].startswith("ranks 0-1, 3 left while others needed it")
    alone = report.outcome(PLAN, "failure", ends(victim, stopped(0)), [victim])
    assert "had ended" not in alone.message


def test_what_became_of_the_others() -> None:
    culprit = end(0, 3)
    all_ends = ends(culprit, stopped(1), stopped(2, signal.SIGKILL), end(3))
    result = report.outcome(PLAN, "failure", all_ends, [culprit])
    assert report.others(PLAN, result.cause, all_ends) == [
        {"ranks": [1], "what": "stopped by jobsdk"},
        {"ranks": [2], "what": "killed after the grace time"},
        {"ranks": [3], "what": "completed"},
    ]


def test_port_of_ours() -> None:
    words = "RuntimeError: The server socket has failed to listen on any local network address. port: 4711, "
    words += "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    ours = end(0, 1, error=words, evidence={"ports": [4711]})
    assert report.judged(PLAN, ours)["port_is_ours"]
    assert not report.judged(PLAN, dict(ours, evidence={"ports": [4712]}))["port_is_ours"]
    assert not report.judged(PLAN, dict(ours, error="ValueError: x"))["port_is_ours"]


def test_roles_of_tensorflow_are_named() -> None:
    shape = {
        "type": "tensorflow", "launcher": "direct", "workers": 2, "parameter_servers": 1, "chief": False
    }  # fmt: skip
    job = plan("train", 2, shape)
    assert report.name_of(job, {"rank": 1, "node": 0}) == "rank 1 (ps 0) on node 0"
    assert report.judged(job, end(1, 3, node=0))["role"] == "ps"

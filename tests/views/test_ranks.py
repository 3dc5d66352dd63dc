"""How each rank is, by the events of its run."""

from __future__ import annotations

from typing import Any

import pytest

from jobsdk.runs.ranks import STATES, Ranks, counted, layout_text
from tests.bootstrap.runs import plan


def event(kind: str, **facts: Any) -> dict[str, Any]:
    return {"event": kind, "t": 1.0, **facts}


def started(rank: int) -> dict[str, Any]:
    return event("rank_started", node=rank // 2, rank=rank, pid=100 + rank)


def ended(rank: int, code: int, signal: int | None = None) -> dict[str, Any]:
    return event("rank_ended", node=rank // 2, rank=rank, exit_code=code, signal=signal)


ALL = [started(rank) for rank in range(4)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], ["waiting"] * 4),
        ([event("node_joined", node=0, host="a", pid=1), started(1)], ["waiting", "running", "waiting", "waiting"]),
        ([*ALL, ended(0, 0)], ["completed", "running", "running", "running"]),
        (
            [*ALL, ended(2, 7), event("stopping"), ended(0, 143, 15), ended(1, 137, 9), ended(3, 1)],
            ["stopped", "stopped", "failed", "failed"],
        ),
        ([*ALL, {**ended(1, 143, 15), "stopped": True}], ["running", "stopped", "running", "running"]),
        ([*ALL, ended(2, 139, 11)], ["running", "running", "failed", "running"]),
        ([*ALL, event("ended", status="Lost")], ["lost"] * 4),
        ([*ALL, event("cancel_requested"), event("ended", status="Canceled")], ["stopped"] * 4),
        ([*ALL, ended(2, 7), event("stopping"), event("restart"), started(0)], ["running"] + ["waiting"] * 3),
        ([event("started", restart=0)], ["waiting"] * 4),
        ([event("started")], ["running"] * 4),  # by an engine that tells of no ranks
        ([event("started"), event("ended", status="Completed")], ["completed"] * 4),
        ([event("started"), event("ended", status="Failed")], ["stopped"] * 4),
    ],
)
def test_states(events: list[dict[str, Any]], expected: list[str]) -> None:
    ranks = Ranks(plan("true"))
    for one in events:  # one by one, as they come
        ranks.feed([one])
    found = ranks.states()
    assert [state.state for state in found] == expected
    assert set(expected) <= set(STATES)
    assert sum(counted(found).values()) == 4


def test_where_a_rank_is() -> None:
    ranks = Ranks(plan("true"))
    ranks.feed([event("node_joined", node=1, host="b", pid=7), *ALL, ended(3, 7)])
    last = ranks.states()[-1]
    assert (last.rank, last.node, last.local_rank, last.host, last.pid, last.exit_code) == (3, 1, 1, "b", 103, 7)


@pytest.mark.parametrize(
    ("nodes", "processes", "said"),
    [
        (1, 1, "1 node, 1 process"),
        (1, 2, "1 node, 2 processes"),
        (2, 4, "2 nodes, 4 processes"),
        (None, None, "no nodes yet"),
    ],
)
def test_one_is_no_more(nodes: int | None, processes: int | None, said: str) -> None:
    assert layout_text(nodes, processes) == said


def test_a_run_without_a_plan_has_no_ranks() -> None:
    assert Ranks({}).states() == []

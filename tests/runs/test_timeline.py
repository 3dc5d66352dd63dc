"""Where the time of a run went, by its events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk import MLClient, PyTorchDistribution, command
from jobsdk.runs.timeline import PHASES, Timeline, make, of_run, text


def event(kind: str, t: float, **facts: Any) -> dict[str, Any]:
    return {"event": kind, "t": t, **facts}


def test_the_run_keeps_its_name() -> None:
    assert make("mine", CLUSTER, is_local=False, now=0.0).to_dict()["run"] == "mine"


def names(timeline: Timeline) -> dict[str, float]:
    return {phase.name: round(phase.seconds, 6) for phase in timeline.phases}


CLUSTER = [
    event("submitted", 100.0),
    event("queued", 101.0, message="waits for nodes"),
    event("allocated", 111.0, nodes=["a", "b"]),
    event("bootstrap_up", 113.0, node=0),
    event("bootstrap_up", 120.0, node=1),
    event("node_joined", 113.5, node=0),
    event("code_staged", 122.0, node=1, seconds=2.0),
    event("input_staged", 125.0, node=1, name="data"),
    event("node_joined", 125.5, node=1),
    event("started", 126.0),
    event("rank_started", 126.1, node=0, rank=0),
    event("rank_started", 126.2, node=1, rank=1),
    event("first_output", 127.0, node=1, rank=1),
    event("first_output", 130.0, node=0, rank=0),
    event("metric", 131.0, node=0, rank=0),
    event("rank_ended", 150.0, node=0, rank=0),
    event("rank_ended", 151.0, node=1, rank=1),
    event("ended", 152.0, status="Completed"),
]


def test_every_phase_of_a_run_on_a_cluster() -> None:
    timeline = make("r", CLUSTER, is_local=False, now=999.0)
    assert names(timeline) == {
        "submit": 1.0, "queue": 10.0, "start": 9.0, "code": 2.0, "inputs": 3.0, "rendezvous": 1.0, "ranks": 0.2,
        "first line": 3.8, "first step": 1.0, "run": 20.0, "stop": 1.0,
    }  # fmt: skip
    assert timeline.seconds == 52.0
    assert timeline.until_first_step == 31.0
    assert timeline.is_over
    assert timeline.slowest_node == (1, 12.0)
    assert timeline.slowest_rank == (0, 3.0)
    assert {phase.name: (phase.node, phase.rank) for phase in timeline.phases}["first line"] == (0, 0)


def test_what_nobody_told_apart_is_said_to_be_so() -> None:
    unwatched = [one for one in CLUSTER if one["event"] not in ("queued", "allocated")]
    assert names(make("r", unwatched, is_local=False, now=0.0))["unattributed"] == 20.0
    assert make("r", unwatched, is_local=False, now=0.0).to_dict()["unattributed"] == 20.0
    assert "unattributed" not in names(make("r", unwatched, is_local=True, now=0.0))


@pytest.mark.parametrize(
    ("upto", "last"), [(1, "unattributed"), (2, "queue"), (3, "start"), (8, "rendezvous"), (12, "run"), (16, "run")]
)
def test_a_run_that_goes_on_has_a_whole_so_far(upto: int, last: str) -> None:
    timeline = make("r", CLUSTER[:upto], is_local=False, now=200.0)
    assert not timeline.is_over
    assert timeline.seconds == 100.0
    assert timeline.phases[-1].name == last
    assert "so far" in text(timeline)


def test_a_failure_ends_the_run_and_a_restart_belongs_to_it() -> None:
    events = [
        *CLUSTER[:14],
        event("failure", 140.0, rank=1),
        event("restart", 141.0, restart=1),
        event("bootstrap_up", 142.0, node=0),
        event("rank_started", 143.0, node=0, rank=0),
        event("failure", 147.0, rank=1),
        event("rank_ended", 148.0, node=0, rank=0),
        event("ended", 149.0, status="Failed"),
    ]
    found = names(make("r", events, is_local=False, now=0.0))
    assert (found["first line"], found["run"], found["stop"]) == (3.8, 17.0, 2.0)


def test_a_run_that_is_cancelled_in_its_queue_has_not_run() -> None:
    events = [*CLUSTER[:2], event("cancel_requested", 160.0), event("ended", 161.0, status="Canceled")]
    assert names(make("r", events, is_local=False, now=0.0)) == {"submit": 1.0, "queue": 59.0, "stop": 1.0}


def test_an_engine_that_starts_the_ranks_by_itself_tells_less() -> None:
    events = [event("submitted", 0.0), event("started", 5.0), event("ended", 25.0, status="Completed")]
    assert names(make("r", events, is_local=False, now=0.0)) == {"unattributed": 5.0, "run": 20.0}


def test_a_clock_that_is_ahead_makes_the_whole_no_longer() -> None:
    events = [*CLUSTER[:4], event("bootstrap_up", 4000.0, node=1), *CLUSTER[5:]]
    assert make("r", events, is_local=False, now=0.0).seconds == 52.0


_KINDS = [one["event"] for one in CLUSTER] + ["failure", "stopping", "restart", "warning"]


@given(
    st.lists(st.tuples(st.sampled_from(_KINDS), st.floats(0, 1000), st.integers(0, 3), st.integers(0, 7)), max_size=40),
    st.booleans(),
)
def test_phases_add_up_whatever_the_clocks_say(told: list[tuple[str, float, int, int]], is_local: bool) -> None:
    events = [event("submitted", 0.0), *(event(kind, t, node=node, rank=rank) for kind, t, node, rank in told)]
    timeline = make("r", events, is_local=is_local, now=1000.0)
    assert all(phase.name in PHASES and phase.seconds >= 0 for phase in timeline.phases)
    assert sum(phase.seconds for phase in timeline.phases) == pytest.approx(timeline.seconds)
    for one, following in zip(timeline.phases, timeline.phases[1:], strict=False):
        assert one.end == following.begin
    json.dumps(timeline.to_dict())
    text(timeline)


def test_a_run_without_events_has_none() -> None:
    assert make("r", [], is_local=True, now=1.0).phases == []


def test_a_real_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBSDK_HOME", str(tmp_path))
    script = (
        "import json, os, time; print('up', flush=True)\n"
        "with open(os.environ['JOBSDK_REPORTS'], 'w') as file: print(json.dumps({'t': time.time()}), file=file)"
    )
    (tmp_path / "src").mkdir()
    (tmp_path / "src/work.py").write_text(script)
    job = command(
        command="python work.py",
        code=tmp_path / "src",
        distribution=PyTorchDistribution(process_count_per_instance=2),
        instance_count=2,
    )
    run = MLClient().jobs.create_or_update(job)
    run.result(200)
    timeline = of_run(run.folder)
    order = [name for name in PHASES if name in names(timeline)]
    assert list(names(timeline)) == order
    assert {"submit", "start", "rendezvous", "ranks", "first line", "first step", "run", "stop"} <= set(order)
    for kind in ("first_output", "metric"):
        told = [one for one in run.folder.events() if one["event"] == kind]
        assert sorted((one["node"], one["rank"]) for one in told) == [(0, 0), (0, 1), (1, 2), (1, 3)]

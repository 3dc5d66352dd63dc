"""How an engine's end, node 0's report, or both become the end of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.spec import exit_codes
from jobsdk.compute import ends
from jobsdk.compute.ends import EngineEnd
from jobsdk.runs.folder import RunFolder
from tests.bootstrap.runs import plan

RANKS = [{"rank": 0, "node": 0, "exit_code": 3}]


def report(**cause: Any) -> dict[str, Any]:
    """As node 0 has written it."""
    return {
        "run": "r", "status": "Failed", "exit_code": 3, "message": "rank 0 has failed", "cause": cause or None,
        "others": [], "ranks": RANKS, "started": 5.0, "ended": 9.0,
    }  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "r")
    folder.path.mkdir()
    folder.write_json("plan.json", plan("true"))
    (folder.path / "token").write_text("secret")
    folder.append_event("submitted", t=1.0)
    return folder


def test_exit_codes_are_those_of_the_bootstrap() -> None:
    for name, value in vars(exit_codes).items():
        if name.isupper():
            assert vars(ends)[name] == value


def test_without_an_end_the_report_stands(run: RunFolder) -> None:
    ends.finish(run, None, report(**{"class": "exit"}))
    assert run.report() == report(**{"class": "exit"})
    state = run.recorded_state()
    assert (state.status, state.exit_code, state.message, state.ended) == ("Failed", 3, "rank 0 has failed", 9.0)
    assert not (run.path / "token").exists()


def test_without_a_report_the_engines_end_is_the_cause(run: RunFolder) -> None:
    end = EngineEnd.lost("its host is gone", 1)._replace(host="n1", last_lines=["bye"])
    ends.finish(run, end, began=2.0)
    found = run.report()
    assert (found["status"], found["exit_code"], found["started"]) == ("Lost", exit_codes.LOST, 2.0)
    assert found["cause"] is not None
    told = {key: found["cause"].get(key) for key in ("class", "message", "node", "host", "last_lines")}
    assert told == {
        "class": "node_lost", "message": "its host is gone", "node": 1, "host": "n1", "last_lines": ["bye"],
    }  # fmt: skip
    assert run.recorded_state().status == "Lost"
    assert not (run.path / "token").exists()


def test_with_both_the_report_says_what_became_of_the_ranks(run: RunFolder) -> None:
    ends.finish(run, EngineEnd.out_of_memory("node 1 used too much", 1), report(**{"class": "node_lost", "node": 1}))
    found = run.report()
    assert (found["status"], found["exit_code"], found["message"]) == ("Failed", 137, "node 1 used too much")
    assert (found["ranks"], found["started"]) == (RANKS, 5.0)


@pytest.mark.parametrize("end", [EngineEnd.lost("gone"), EngineEnd.failed("refused")])
def test_a_run_that_was_to_be_canceled_and_has_no_report_is_canceled(run: RunFolder, end: EngineEnd) -> None:
    run.append_event("cancel_requested", by="user")
    ends.finish(run, end)
    found = run.report()
    assert (found["status"], found["exit_code"], found["cause"]) == ("Canceled", exit_codes.CANCELED, None)


@pytest.mark.parametrize(
    ("end", "cause", "explains"),
    [
        (EngineEnd.out_of_memory("", 1), {"class": "node_lost", "node": 1}, True),
        (EngineEnd.preempted("", 1), {"class": "never_started", "node": 1}, True),
        (EngineEnd.lost("", 1), {"class": "preempted", "node": 1}, True),
        (EngineEnd.lost("", 1), {"class": "node_lost", "node": 1}, False),  # no news
        (EngineEnd.out_of_memory("", 1), {"class": "node_lost", "node": 0}, False),  # another node
        (EngineEnd.failed("", 1), {"class": "node_lost", "node": 1}, False),  # a consequence
        (EngineEnd.out_of_memory("", 1), {"class": "exception", "node": 1}, False),  # the rank's own failure
        (EngineEnd.lost("", 1), {}, False),
    ],
)
def test_the_engine_may_know_why_node_0_missed_a_node(end: EngineEnd, cause: dict[str, Any], explains: bool) -> None:
    assert end.explains(report(**cause)) == explains

"""A job that its engine has started again: what the new node 0 finds in what the earlier one wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jobsdk.bootstrap.agent import resume
from jobsdk.bootstrap.spec import events
from tests.bootstrap.runs import plan


def _plan(**restarts: Any) -> dict[str, Any]:
    rules = {"max": 0, "max_preemptions": 0, "delay_s": 0.0, "retry_on": [], "never_retry_on": []}
    return plan("true", restarts={**rules, **restarts})


def _restart(folder: Path, number: int, used: list[int], **more: Any) -> None:
    summary = {"class": "preempted", "message": "m", "node": 0, "rank": None, "exit_code": 143}
    events.append(str(folder), "restart", restart=number, used=used, summary=summary, delay=0.0, **more)


def test_a_start_that_was_handed_over_goes_on_where_it_stood(tmp_path: Path) -> None:
    _restart(tmp_path, 1, [1, 0, 0, 0, -1])
    _restart(tmp_path, 2, [1, 1, 0, 0, -1], handed_over=True)
    assert resume.standing(str(tmp_path), _plan(max=1, max_preemptions=1), 1) == (2, [1, 1, 0, 0, -1])


def test_a_start_after_a_lost_machine_counts_as_a_restart(tmp_path: Path) -> None:
    _restart(tmp_path, 1, [0, 1, 0, 0, -1], handed_over=True)
    the_plan = _plan(max=1, max_preemptions=1)
    assert resume.standing(str(tmp_path), the_plan, 2) == (2, [1, 1, 0, 0, -1])
    (_, event) = events.of(str(tmp_path), "restart")
    assert event["summary"]["class"] == "node_lost"
    assert event["decision"] == "restarted at once (1 of 1)"
    assert resume.standing(str(tmp_path), the_plan, 2) == (2, [1, 1, 0, 0, -1]), "asked again, it is decided"


def test_a_start_that_no_budget_allows_ends_the_run(tmp_path: Path) -> None:
    assert resume.standing(str(tmp_path), _plan(), 1) is None
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["status"], report["exit_code"], report["cause"]["class"]) == ("Lost", 125, "node_lost")
    (ended,) = events.of(str(tmp_path), "ended")
    assert ended["message"].startswith("the engine ended the job and started it again")


def test_a_run_that_has_ended_stays_ended(tmp_path: Path) -> None:
    events.append(str(tmp_path), "ended", status="Completed", exit_code=0, message="")
    assert resume.standing(str(tmp_path), _plan(max=3, max_preemptions=3), 1) is None
    assert not (tmp_path / "report.json").exists()


def test_a_restart_that_waited_for_a_lost_machine_is_taken_up_once(tmp_path: Path) -> None:
    """Node 0 had decided on it and was waiting for the node; then the engine ended all and began anew."""
    the_plan = _plan(max=2)
    events.append(str(tmp_path), "started", restart=0)
    _restart(tmp_path, 1, [1, 0, 0, 0, -1], handed_over=False)
    assert resume.standing(str(tmp_path), the_plan, 1) == (1, [1, 0, 0, 0, -1])
    assert resume.standing(str(tmp_path), the_plan, 1) == (1, [1, 0, 0, 0, -1]), "asked again, it is decided"
    events.append(str(tmp_path), "started", restart=1)
    assert resume.standing(str(tmp_path), the_plan, 2) == (2, [2, 0, 0, 0, -1]), "the next one counts"
    assert resume.standing(str(tmp_path), the_plan, 3) is None, "also one that has not even begun"

"""When a job that has failed is started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk.bootstrap.coordinator.restarts import Used, decide
from jobsdk.bootstrap.failures.patterns import matches


def plan(**rules: Any) -> dict[str, Any]:
    return {
        "restarts": {
            "max": 0, "max_preemptions": 0, "delay_s": 1.0, "retry_on": [], "never_retry_on": [], **rules
        }
    }  # fmt: skip


def cause(kind: str = "exit", code: int = 1, **more: Any) -> dict[str, Any]:
    return {"class": kind, "exit_code": code, **more}


def test_without_a_budget_nothing_is_restarted_and_nothing_is_said_of_it() -> None:
    decision = decide(plan(), cause(), (), Used())
    assert (decision.again, decision.why, decision.used) == (False, "", Used())


def test_budget_is_used_up_one_by_one() -> None:
    used = Used()
    for number in (1, 2):
        decision = decide(plan(max=2), cause(), (), used)
        assert decision.again
        assert f"({number} of 2)" in decision.why
        used = decision.used
    last = decide(plan(max=2), cause(), (), used)
    assert not last.again
    assert "max_restarts = 2 is used up" in last.why


def test_preemptions_have_a_budget_of_their_own() -> None:
    decision = decide(plan(max=0, max_preemptions=1), cause("preempted", 143), (), Used())
    assert decision.again
    assert decision.used == Used(preemptions=1)
    assert not decide(plan(max=5, max_preemptions=1), cause("preempted", 143), (), decision.used).again
    assert not decide(plan(max=5), cause("preempted", 143), (), Used()).again


def test_delay_doubles_up_to_five_minutes() -> None:
    delays = [decide(plan(max=99, delay_s=20.0), cause(), (), Used(restarts=n)).delay for n in range(6)]
    assert delays == [20, 40, 80, 160, 300, 300]


def test_without_a_delay_the_first_restart_comes_at_once() -> None:
    decisions = [decide(plan(max=99, delay_s=None), cause(), (), Used(restarts=n)) for n in (0, 1, 2, 3, 20)]
    assert [one.delay for one in decisions] == [0, 1, 2, 4, 300]
    assert [one.why for one in decisions[:2]] == ["restarted at once (1 of 99)", "restarted after 1 s (2 of 99)"]


def test_progress_ends_the_count_of_delays() -> None:
    used, delays = Used(), []
    for step in (10, 10, 5, 20, 20, 30):
        decision = decide(plan(max=99, delay_s=2.0), cause(), (), used, step)
        used = decision.used
        delays.append(decision.delay)
    assert delays == [2, 4, 8, 2, 4, 2]


#: Attempts as (class of failure, latest step); whether the job is restarted after the last.
PROGRESS = {
    "no step ever": ([("exit", -1)] * 9, True),
    "nobody knows": ([("exit", 5)] + [("exit", None)] * 9, True),
    "a later step each time": ([("exit", step) for step in range(9)], True),
    "the same step": ([("exit", 5)] * 3, True),
    "the same step once more": ([("exit", 5)] * 4, False),
    "earlier steps": ([("exit", 50), ("exit", 40), ("exit", 49), ("exit", 3)], False),
    "no step any more": ([("exit", 5)] + [("exit", -1)] * 3, False),
    "one later step among them": ([("exit", 5)] * 3 + [("exit", 6)] + [("exit", 6)] * 2, True),
    "preemptions": ([("exit", 5)] + [("preempted", 5)] * 9, True),
    "lost nodes": ([("exit", 5)] + [("node_lost", -1)] * 9, True),
    "preemptions between": ([("exit", 5), ("exit", 5), ("preempted", 4), ("exit", 5), ("exit", 5)], False),
}


@pytest.mark.parametrize("name", PROGRESS)
def test_a_job_without_progress_is_not_restarted_for_ever(name: str) -> None:
    attempts, again = PROGRESS[name]
    used = Used()
    for number, (kind, step) in enumerate(attempts, 1):
        rules = plan(max=99, max_preemptions=99, max_no_progress=3)
        decision = decide(rules, cause(kind), (), used, step)
        used = decision.used
        assert decision.again is (again or number < len(attempts))
    assert decision.no_progress is not again
    if not again:
        assert decision.why.startswith("not restarted: max_no_progress = 3 is used up, and step 5")


def test_without_a_limit_progress_does_not_matter() -> None:
    for rules in (plan(max=1), plan(max=1, max_no_progress=0)):
        assert decide(rules, cause(), (), Used(stuck=50, step=3), 3).again


@given(st.integers(0, 5000), st.floats(0, 1e6))
def test_delay_is_never_out_of_bounds(used: int, delay: float) -> None:
    decision = decide(plan(max=10**6, delay_s=delay), cause(), (), Used(restarts=used))
    assert 0 <= decision.delay <= 300


@pytest.mark.parametrize(
    ("rules", "failure", "matched", "again"),
    [
        ({"retry_on": [3]}, cause(code=3), (), True),
        ({"retry_on": [3]}, cause(code=4), (), False),
        ({"retry_on": ["out_of_memory"]}, cause("out_of_memory", 137), (), True),
        ({"retry_on": ["NCCL.*timeout"]}, cause(), ("NCCL.*timeout",), True),
        ({"retry_on": ["NCCL.*timeout"]}, cause(), (), False),
        ({"never_retry_on": [3]}, cause(code=3), (), False),
        ({"never_retry_on": ["loss is nan"]}, cause(), ("loss is nan",), False),
        ({"retry_on": [3], "never_retry_on": ["loss is nan"]}, cause(code=3), ("loss is nan",), False),
        ({"never_retry_on": [3]}, cause(code=4), (), True),
        ({}, cause("import_error"), (), False),
        ({"retry_on": ["import_error"]}, cause("import_error"), (), True),
    ],
)
def test_rules(rules: dict[str, Any], failure: dict[str, Any], matched: tuple[str, ...], again: bool) -> None:
    decision = decide(plan(max=3, **rules), failure, matched, Used())
    assert decision.again is again
    assert decision.why


def test_port_of_ours_in_use_is_tried_again_three_times_whatever_the_budget() -> None:
    taken = cause("port_in_use", 1, port_is_ours=True)
    used = Used()
    for _ in range(3):
        decision = decide(plan(), taken, (), used)
        assert decision.again
        assert decision.delay == 0
        used = decision.used
    assert not decide(plan(), taken, (), used).again
    assert not decide(plan(), cause("port_in_use", 1, port_is_ours=False), (), Used()).again


def test_patterns_are_looked_for_in_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"early\n" + b"x" * (2 << 20) + b"\nCUDA error: unspecified\nlast \xff line\n")
    rules = plan(max=1, retry_on=[7, "CUDA error", "^early$"], never_retry_on=["^last . line$"])
    assert matches(rules, str(log)) == ["CUDA error", "^last . line$"]
    assert matches(plan(retry_on=["CUDA error"]), str(log)) == []  # no restart is possible
    assert matches(rules, str(tmp_path / "none")) == []

"""Jobs that are started again: real supervisors, bootstraps and ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.spec import events, exit_codes
from tests.bootstrap.runs import LocalRun, plan, processes_of

#: Waits for the word "go" where the job has been started fewer than twice, so that there is something to break.
WAITING = "echo up $JOBSDK_RESTART_COUNT $MASTER_PORT; test $JOBSDK_RESTART_COUNT -ge 1 || sleep 600"


def again(most: int = 2, **rules: Any) -> dict[str, Any]:
    base = {"max": most, "max_preemptions": 0, "delay_s": 0.0, "retry_on": [], "never_retry_on": []}
    return {"restarts": {**base, **rules}}


def started(run: LocalRun, ranks: int = 4) -> Callable[[], bool]:
    return lambda: len(run.events("rank_started")) >= ranks


def test_all_ranks_start_again_with_another_port_and_logs_of_their_own(tmp_path: Path) -> None:
    text = "echo up $JOBSDK_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $MASTER_PORT; "
    all_have_said_so = "[ $(cat $JOBSDK_RUN_DIR/logs/node-*/rank-?.log | grep -c up) = 4 ]"
    text += f"[ $RANK.$JOBSDK_RESTART_COUNT != 3.0 ] || {{ until {all_have_said_so}; do sleep 0.05; done; exit 3; }}"
    run = LocalRun(tmp_path / "run", plan(text, **again()))
    assert run.wait() == 0
    ports = set()
    for rank in range(4):
        for restart, suffix in ((0, ""), (1, ".restart-1")):
            (log,) = run.folder.glob(f"logs/node-*/rank-{rank}{suffix}.log")
            word, first, second, most, port = log.read_text().split()
            assert (word, first, second, most) == ("up", str(restart), str(restart), "2")
            ports.add((restart, port))
    assert len(ports) == 2
    assert len({port for _, port in ports}) == 2
    report = run.report()
    assert (report["status"], report["exit_code"]) == ("Completed", 0)
    (earlier,) = report["restarts"]
    assert (earlier["rank"], earlier["exit_code"], earlier["round"]) == (3, 3, 0)
    assert earlier["decision"] == "restarted at once (1 of 2)"


def test_budget_ends(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "run", plan("exit $((4 + JOBSDK_RESTART_COUNT))", nodes=1, **again(2)))
    assert run.wait() == 6
    report = run.report()
    assert report["status"] == "Failed"
    assert [earlier["exit_code"] for earlier in report["restarts"]] == [4, 5]
    assert "max_restarts = 2 is used up" in report["then"]


#: Reports to step 7 in the first attempt, to step 6 in each other.
REPORTS = "echo '{\"step\": '$((7 - (JOBSDK_RESTART_COUNT > 0)))', \"t\": 0}' >> $JOBSDK_REPORTS; exit 5"
METRICS = (
    'step=$((7 - (JOBSDK_RESTART_COUNT > 0))); folder="${MLFLOW_TRACKING_URI#file://}/0/run/metrics"; '
    'mkdir -p "$folder"; printf "1 0.5 3\n1 0.4 $step\n" > "$folder/loss"; exit 5'
)


@pytest.mark.parametrize("text", [REPORTS, METRICS], ids=["reports", "MLflow"])
def test_a_job_that_makes_no_progress_ends(text: str, tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "run", plan(text, nodes=1, **again(9, max_no_progress=2)))
    assert run.wait() == exit_codes.NO_PROGRESS
    report = run.report()
    assert (report["status"], report["cause"]["class"], len(report["restarts"])) == ("Failed", "no_progress", 2)
    assert report["message"] == "rank 0 on node 0 exited with code 5"
    assert report["then"].endswith("not restarted: max_no_progress = 2 is used up, and step 7 is still the latest")


def test_a_job_that_makes_progress_goes_on(tmp_path: Path) -> None:
    text = "echo '{\"step\": '$JOBSDK_RESTART_COUNT'}' >> $JOBSDK_REPORTS; exit $((JOBSDK_RESTART_COUNT < 5))"
    run = LocalRun(tmp_path / "run", plan(text, nodes=1, **again(9, max_no_progress=1)))
    assert run.wait() == 0
    assert len(run.report()["restarts"]) == 5


def test_delay_between_two_starts_can_be_cancelled(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "run", plan("exit 3", **again(1, delay_s=300.0)))
    run.until(lambda: run.events("restart"))
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 130
    assert run.report()["status"] == "Canceled"


def test_time_limit_holds_for_all_starts_together(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "run", plan("exit 3", timeout_s=1, **again(1, delay_s=300.0)))
    assert run.wait() == 124
    assert run.report()["status"] == "TimedOut"


@pytest.mark.parametrize("node", [0, 1])
def test_node_that_is_killed_is_replaced(tmp_path: Path, node: int) -> None:
    run = LocalRun(tmp_path / "run", plan(WAITING, **again(1)))
    run.until(started(run))
    os.kill(run.bootstrap_pid(node), signal.SIGKILL)
    assert run.wait() == 0
    (earlier,) = run.report()["restarts"]
    assert (earlier["class"], earlier["node"]) == ("node_lost", node)
    assert len([event for event in run.events("bootstrap_up") if event["node"] == node]) == 2
    assert not processes_of(run.folder)


@pytest.mark.parametrize("node", [0, 1])
def test_node_that_is_taken_away_is_replaced_from_a_budget_of_its_own(tmp_path: Path, node: int) -> None:
    run = LocalRun(tmp_path / "run", plan(WAITING, **again(0, max_preemptions=1)))
    run.until(started(run))
    os.kill(run.bootstrap_pid(node), signal.SIGTERM)
    assert run.wait() == 0
    (earlier,) = run.report()["restarts"]
    assert (earlier["class"], earlier["node"]) == ("preempted", node)
    assert not processes_of(run.folder)


@pytest.mark.parametrize("node", [0, 1])
def test_node_that_is_taken_away_ends_the_job_as_preempted_without_that(tmp_path: Path, node: int) -> None:
    run = LocalRun(tmp_path / "run", plan("sleep 600", **again(3)))
    run.until(started(run))
    os.kill(run.bootstrap_pid(node), signal.SIGTERM)
    assert run.wait() == 143
    report = run.report()
    assert (report["status"], report["cause"]["class"], report["cause"]["node"]) == ("Preempted", "preempted", node)
    assert not processes_of(run.folder)


def test_node_0_that_is_killed_again_and_again_uses_up_the_budget(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "run", plan("sleep 600", **again(1)))
    for start in range(2):
        run.until(lambda start=start: len(run.events("rank_started")) == 4 * (start + 1))
        os.kill([event["pid"] for event in run.events("bootstrap_up") if event["node"] == 0][-1], signal.SIGKILL)
    assert run.wait() == 125
    report = run.report()
    assert (report["status"], len(report["restarts"])) == ("Lost", 1)
    assert not processes_of(run.folder)


def test_patterns_in_the_output_decide(tmp_path: Path) -> None:
    text = "echo attempt $JOBSDK_RESTART_COUNT; test $JOBSDK_RESTART_COUNT = 0 || echo loss is nan; exit 9"
    rules = again(5, retry_on=[9], never_retry_on=["loss is nan"])
    run = LocalRun(tmp_path / "run", plan(text, nodes=1, **rules))
    assert run.wait() == 9
    assert len(run.report()["restarts"]) == 1
    assert "never_retry_on has 'loss is nan'" in run.report()["then"]


def test_what_the_first_start_left_running_is_gone_before_the_second(tmp_path: Path) -> None:
    pids, left = tmp_path / "pids", tmp_path / "left"
    (tmp_path / "leave.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.setsid()\n"
        "    time.sleep(99)\n"
        f"open({str(pids)!r}, 'w').write(str(child))\n"
        "sys.exit(3)\n"
    )
    text = f"test $JOBSDK_RESTART_COUNT = 0 || {{ kill -0 $(cat {pids}) 2> {left}; exit 0; }}; "
    run = LocalRun(tmp_path / "run", plan(text + f"exec python {tmp_path}/leave.py", nodes=1, grace_s=0.5, **again(1)))
    assert run.wait() == 0
    assert "No such process" in left.read_text()


def test_node_0_that_is_killed_is_replaced_after_the_delay(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "run", plan(WAITING, nodes=1, **again(1, delay_s=0.5)))
    run.until(started(run, 2))
    os.kill(run.bootstrap_pid(0), signal.SIGKILL)
    assert run.wait() == 0
    assert len(run.report()["restarts"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("node", [0, 1])
def test_node_that_is_taken_away_between_two_starts(tmp_path: Path, node: int) -> None:
    text = "case $JOBSDK_RESTART_COUNT in 0) exit 3;; 1) sleep 600;; esac"  # the signal may come after the pause
    run = LocalRun(tmp_path / "run", plan(text, **again(1, max_preemptions=1, delay_s=5.0)))
    run.until(lambda: run.events("restart"))
    os.kill(run.bootstrap_pid(node), signal.SIGTERM)
    assert run.wait() == 0
    assert [earlier["class"] for earlier in run.report()["restarts"]] == ["exit", "preempted"]


@pytest.mark.slow
def test_the_time_limit_goes_on_with_another_node_0(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "run", plan("sleep 600", nodes=1, timeout_s=10, **again(0, max_preemptions=5)))
    run.until(started(run, 2))
    os.kill(run.bootstrap_pid(0), signal.SIGTERM)
    assert run.wait() == 124
    report = run.report()
    assert report["started"] == pytest.approx(run.events("started")[0]["t"], abs=0.1)
    assert len(run.events("started")) == 2


def test_an_event_that_a_full_disk_cut_short_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(
        '{"t":1.0,"event":"restart","restart":1}\n{"t":2.0,"event":"resta{"t":3.0,"event":"restart","restart":2}\n'
    )
    assert [event["restart"] for event in events.of(str(tmp_path), "restart")] == [1, 2]

"""However a job is ended, every process of every rank is asked, has the grace time, and is gone after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobsdk import MLClient, command
from tests.bootstrap import stopping
from tests.bootstrap.runs import LocalRun, plan, processes_of

#: Says in a file of its own that it is there, that it is asked to end, and that it had the time for it.
POLITE = """
import os, signal, sys, time
def asked(*_):
    print("asked", file=said, flush=True)
    time.sleep(0.3)
    print("saved", file=said, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, asked)
said = open("%s.%s" % (sys.argv[1], os.environ["RANK"]), "a")
print("up", file=said, flush=True)
while True:
    signal.pause()
"""
#: A rank, its child, a process that is in another session, and one whose parent has gone.
TREE = "{0}child & setsid {0}session & ({0}orphan &) ; exec {0}rank"
SAID = [f"{name}.{rank}" for name in ("child", "orphan", "rank", "session") for rank in range(4)]


def tree(folder: Path) -> str:
    (folder / "polite.py").write_text(POLITE)
    return TREE.format(f"python -S {folder}/polite.py {folder}/said-")


def said(folder: Path) -> dict[str, str]:
    return {path.name.removeprefix("said-"): " ".join(path.read_text().split()) for path in folder.glob("said-*")}


def is_up(folder: Path) -> Callable[[], bool]:
    return lambda: said(folder) == dict.fromkeys(SAID, "up")


def bootstrap(node: int) -> Callable[[LocalRun], int]:
    return lambda run: run.bootstrap_pid(node)


@pytest.mark.parametrize(
    ("who", "signum", "status"),
    [
        (lambda run: run.process.pid, signal.SIGTERM, "Canceled"),
        (lambda run: run.process.pid, signal.SIGINT, "Canceled"),
        (bootstrap(0), signal.SIGTERM, "Preempted"),
        (bootstrap(1), signal.SIGTERM, "Preempted"),
        (bootstrap(1), signal.SIGINT, "Canceled"),
    ],
)
def test_every_process_is_asked_and_has_the_grace_time(
    tmp_path: Path, who: Callable[[LocalRun], int], signum: int, status: str
) -> None:
    run = LocalRun(tmp_path / "run", plan(tree(tmp_path), grace_s=30.0))
    run.until(is_up(tmp_path))
    os.kill(who(run), signum)
    run.wait()
    assert run.report()["status"] == status
    assert said(tmp_path) == dict.fromkeys(SAID, "up asked saved")
    assert [rank["signal"] for rank in run.report()["ranks"]] == [None] * 4
    assert processes_of(run.folder) == []


@pytest.mark.parametrize("how", ["exit 5", "kill -9 $$"])
def test_a_ranks_failure_asks_the_processes_of_all_others(tmp_path: Path, how: str) -> None:
    there = f"[ $(cat {tmp_path}/said-* | grep -c up) = 12 ]"
    text = f"if [ $RANK = 2 ]; then until {there}; do sleep 0.05; done; {how}; fi; {tree(tmp_path)}"
    run = LocalRun(tmp_path / "run", plan(text, grace_s=30.0))
    assert run.wait() == (5 if how == "exit 5" else 137)
    asked = dict.fromkeys((name for name in SAID if not name.endswith(".2")), "up asked saved")
    assert said(tmp_path) == asked
    assert run.report()["cause"]["rank"] == 2


@pytest.mark.slow
def test_the_time_limit_asks_too(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "run", plan(tree(tmp_path), grace_s=30.0, timeout_s=8, heartbeat_s=120.0))
    run.until(lambda: len(run.events("rank_started")) == 4)
    node_0 = run.bootstrap_pid(0)
    os.kill(node_0, signal.SIGSTOP)  # it finds the time to be up when all are there, and not before
    run.until(is_up(tmp_path))
    os.kill(node_0, signal.SIGCONT)
    assert run.wait() == 124
    assert said(tmp_path) == dict.fromkeys(SAID, "up asked saved")


def test_who_ignores_it_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    text = f"trap '' TERM; echo up > {tmp_path}/up.$RANK; while :; do sleep 600; done"
    run = LocalRun(tmp_path / "run", plan(text, grace_s=0.3))
    run.until(lambda: len(list(tmp_path.glob("up.*"))) == 4)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 130
    assert [rank["signal"] for rank in run.report()["ranks"]] == [signal.SIGKILL] * 4
    assert processes_of(run.folder) == []


def test_a_stopped_process_is_woken_to_hear_it(tmp_path: Path) -> None:
    text = "trap 'echo saved; exit 0' TERM; echo up; kill -STOP $$; sleep 600"
    run = LocalRun(tmp_path / "run", plan(text, nodes=1, grace_s=30.0))
    run.until(lambda: len(run.events("rank_started")) == 2)
    pids = [event["pid"] for event in run.events("rank_started")]
    run.until(lambda: all(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T" for pid in pids))
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 130
    assert [run.log(rank) for rank in range(2)] == ["up\nsaved\n"] * 2


@pytest.mark.parametrize(("given", "seconds"), [("400ms", 0.4), (90, 90.0), (None, 10.0)])
def test_the_grace_period_of_a_job_is_that_of_its_plan(given: str | int | None, seconds: float) -> None:
    job = command(command="true", grace_period=given)
    compiled = MLClient().jobs.compile(job, name="graceful")
    assert compiled.plan["grace_s"] == seconds


@pytest.mark.slow
@pytest.mark.parametrize("way", range(len(stopping.WAYS)), ids=list(stopping.WAYS))
def test_nothing_is_left_of_a_random_job(way: int, tmp_path: Path) -> None:
    trials = [stopping.trial(7, way + round * len(stopping.WAYS)) for round in range(3)]
    with ThreadPoolExecutor(3) as pool:
        left = list(pool.map(lambda one: stopping.left_after(one, tmp_path), trials))
    assert left == [{}, {}, {}], trials

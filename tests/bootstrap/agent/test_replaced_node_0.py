"""Node 0 is lost where whoever starts bootstraps starts another one: the others join it, and the job goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.agent import resume
from jobsdk.bootstrap.spec import exit_codes
from jobsdk.bootstrap.system import network
from tests.bootstrap.agent.test_cluster_node import start
from tests.bootstrap.runs import PYTORCH, events_in, plan, processes_of, wait_for

#: The first attempt waits for its end; later ones say which they are.
COMMAND = "if [ $JOBSDK_RESTART_COUNT -lt {attempts} ]; then exec sleep 600; fi; echo $RANK in $JOBSDK_RESTART_COUNT"


class Job:
    """Three nodes of one process, each with a folder of its own; `folders[0]` is that of the present node 0."""

    def __init__(
        self, folder: Path, attempts: int = 1, more: dict[str, Any] | None = None, nodes: int = 3, **budgets: Any
    ) -> None:
        self.folders = [folder / str(rank) for rank in range(nodes)]
        self._replaced = 0
        restarts = {**plan("true")["restarts"], "delay_s": 0.0, **budgets}
        one = {**PYTORCH, "processes": 1}
        self.plan = plan(COMMAND.format(attempts=attempts), nodes, one, restarts=restarts, **(more or {}))
        (self._port,) = network.free_ports(1)
        self.nodes = [self._start(rank) for rank in range(nodes)]

    def _start(self, rank: int) -> subprocess.Popen[str]:
        replaced = str(self._replaced) if rank == 0 and self._replaced else ""
        return start(self.folders[rank], self.plan, rank, self._port, JOBSDK_REPLACES="1", JOBSDK_REPLACED=replaced)

    def runs(self, attempt: int) -> bool:
        """Whether all ranks of an attempt have been started."""
        events = events_in(self.folders[0])
        begun = [index for index, one in enumerate(events) if one["event"] == "started" and one["restart"] == attempt]
        return bool(begun) and sum(one["event"] == "rank_started" for one in events[begun[0] :]) == len(self.nodes)

    def lose_node_0(self) -> None:
        """All that runs there, as when the machine loses its power."""
        self.nodes[0].kill()
        while left := processes_of(self.folders[0]):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.nodes[0].wait()

    def replace_node_0(self) -> None:
        """The new one only knows how often the engine has replaced it."""
        self._replaced += 1
        self.folders[0] = self.folders[0].with_name(self.folders[0].name + "+")
        self.nodes[0] = self._start(0)

    def codes(self) -> list[int]:
        return [node.wait(timeout=200) for node in self.nodes]

    def report(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folders[0] / "report.json").read_text())
        return content


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def begin(**budgets: Any) -> Job:
        made.append(Job(tmp_path, **budgets))
        return made[-1]

    yield begin
    for job in made:
        for node in job.nodes:
            if node.poll() is None:
                node.kill()
                node.wait()


def test_the_job_goes_on_with_another_node_0(begin: Callable[..., Job]) -> None:
    job = begin(max=2, attempts=2)
    for attempt in range(2):
        wait_for(lambda number=attempt: job.runs(number))
        job.lose_node_0()
        job.replace_node_0()
    assert job.codes() == [0, 0, 0]
    for rank in range(3):
        log = job.folders[rank] / f"logs/node-{rank}/rank-{rank}.restart-2.log"
        assert log.read_text() == f"{rank} in 2\n"
    report = job.report()
    assert report["status"] == "Completed"
    lost = "node 0 was lost, and another bootstrap has taken its place"
    assert [(one["round"], one["message"], one["decision"]) for one in report["restarts"]] == [
        (number, lost, f"restarted at once ({number + 1} of 2)") for number in range(2)
    ]


def test_the_budget_outlives_node_0(begin: Callable[..., Job]) -> None:
    job = begin(max=1, attempts=2)
    for attempt in range(2):
        wait_for(lambda number=attempt: job.runs(number))
        job.lose_node_0()
        job.replace_node_0()
    assert job.codes() == [exit_codes.LOST] * 3
    report = job.report()
    assert (report["status"], report["cause"]["class"], report["cause"]["node"]) == ("Lost", "node_lost", 0)
    assert report["then"].endswith("not restarted: max_restarts = 1 is used up")
    assert len(report["restarts"]) == 1


def test_node_0_hands_over_when_it_is_taken_away(begin: Callable[..., Job]) -> None:
    job = begin(max_preemptions=1)
    wait_for(lambda: job.runs(0))
    job.nodes[0].send_signal(signal.SIGTERM)
    assert job.nodes[0].wait(timeout=60) == exit_codes.PREEMPTED
    (restart,) = [one for one in events_in(job.folders[0]) if one["event"] == "restart"]
    assert (restart["restart"], restart["handed_over"]) == (1, True)
    job.replace_node_0()
    assert job.codes() == [0, 0, 0]
    assert not [one for one in events_in(job.folders[0]) if one["event"] in ("restart", "failure")]
    (summary,) = job.report()["restarts"]
    assert (summary["class"], summary["node"]) == ("preempted", 0)


def test_without_another_node_0_the_others_end(begin: Callable[..., Job]) -> None:
    job = begin(max=1, more={"rendezvous_timeout_s": 2.0})
    wait_for(lambda: job.runs(0))
    job.lose_node_0()
    assert [node.wait(timeout=200) for node in job.nodes[1:]] == [exit_codes.LOST] * 2


def test_a_node_0_that_was_only_silent_goes_on_itself(begin: Callable[..., Job]) -> None:
    job = begin(max=3, more={"heartbeat_s": 1.0})
    wait_for(lambda: job.runs(0))
    job.nodes[0].send_signal(signal.SIGSTOP)
    ranks = [int(one["pid"]) for one in events_in(job.folders[0]) if one["event"] == "rank_started" and one["node"]]
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks))  # the others have lost it
    job.nodes[0].send_signal(signal.SIGCONT)
    assert job.codes() == [0, 0, 0]
    assert job.report()["status"] == "Completed"
    assert {one["class"] for one in job.report()["restarts"]} == {"node_lost"}


def test_a_job_of_one_node_counts_how_often_it_was_replaced(begin: Callable[..., Job]) -> None:
    job = begin(nodes=1, attempts=2, max=1, max_preemptions=1)
    for attempt in range(2):
        wait_for(lambda number=attempt: job.runs(number))
        job.lose_node_0()
        job.replace_node_0()
    assert job.codes() == [0]
    assert (job.folders[0] / "logs/node-0/rank-0.restart-2.log").read_text() == "0 in 2\n"
    (restart,) = [one for one in events_in(job.folders[0]) if one["event"] == "restart"]
    assert (restart["used"], restart["decision"]) == ([1, 1, 0, 0, -1], "restarted at once (1 of 1)")


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (None, None), ("", None), ("0", None),
        ("1", (0, "preempted", (0, 0, 0, 0, -1))), ("2", (1, "preempted", (0, 1, 0, 0, -1))),
        ("3", (2, "node_lost", (0, 2, 0, 0, -1))),
        ("5", (4, "node_lost", (2, 2, 0, 0, -1))),
    ],
)  # fmt: skip
def test_what_a_count_of_replacements_says(times: str | None, expected: tuple[Any, ...] | None) -> None:
    found = resume.replaced(plan("true", restarts={**plan("true")["restarts"], "max": 3, "max_preemptions": 2}), times)
    assert (found and (found["restart"], found["lost_as"], tuple(found["used"]))) == expected

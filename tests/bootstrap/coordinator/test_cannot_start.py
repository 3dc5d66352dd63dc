"""A member that cannot start ends the job before any rank is started, whoever joins when."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.control.loop import Loop
from jobsdk.bootstrap.coordinator.coordinator import Coordinator, Settings
from jobsdk.bootstrap.coordinator.inbox import Inbox
from jobsdk.bootstrap.coordinator.journal import Journal
from jobsdk.bootstrap.system import network
from tests.bootstrap.agent.test_cluster_node import has_joined, start
from tests.bootstrap.coordinator.test_parts import Connection, offer
from tests.bootstrap.coordinator.test_start_again import again
from tests.bootstrap.runs import events_in, plan, wait_for


class Job:
    """Node 0's side of a job of two nodes, which has heard of nothing yet."""

    def __init__(self, folder: Path, loop: Loop) -> None:
        self._folder = folder
        the_plan = plan("x")
        listener = network.listener("127.0.0.1", 0)
        settings = Settings(str(folder), b"t" * 32)
        self.coordinator = Coordinator(loop, the_plan, listener, settings, lambda code: loop.stop())
        self._inbox = Inbox(the_plan, Journal(str(folder)), False, self.coordinator)
        self._peers = [Connection(node) for node in range(2)]

        loop.every(0.01, self._obey)

    def hears(self, number: int, kind: str, **message: Any) -> None:
        self._inbox.heard(self._peers[number], {"type": kind, **message})

    def events(self) -> list[dict[str, Any]]:
        return events_in(self._folder)

    def _obey(self) -> None:
        """Both nodes have nothing running, once they are told to stop."""
        for node in range(2) if self.coordinator.attempt.reason is not None else ():
            self.hears(node, "quiet")


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def job(tmp_path: Path, loop: Loop) -> Job:
    return Job(tmp_path, loop)


def failure(kind: str, code: int) -> dict[str, Any]:
    what = {"t": time.time(), "node": 1, "rank": None, "exit_code": code, "host": "h", "class": kind}
    return {**what, "message": "node 1: no input"}


@pytest.mark.parametrize("is_last", [True, False])
def test_a_member_that_cannot_start_is_not_ready(job: Job, loop: Loop, is_last: bool) -> None:
    if is_last:
        job.hears(0, "join", **offer(0))
    job.hears(1, "join", **offer(1), is_broken=True)
    job.hears(1, "failed", **failure("bootstrap_error", 126))
    if not is_last:
        job.hears(0, "join", **offer(0))
    assert job.coordinator.is_gathering
    loop.run()
    assert "started" not in [event["event"] for event in job.events()]
    assert job.events()[-1]["message"] == "node 1: no input"


def test_nothing_is_started_while_a_failure_is_held(job: Job, loop: Loop) -> None:
    job.hears(1, "join", **offer(1))
    job.hears(1, "failed", **failure("preempted", 143))
    job.hears(0, "join", **offer(0))
    loop.run()
    assert "started" not in [event["event"] for event in job.events()]
    assert job.events()[-1]["status"] == "Preempted"


def test_no_rank_is_started_where_the_last_node_misses_an_input(tmp_path: Path) -> None:
    missing = {"data": {"type": "uri_file", "mode": None, "uri": "/no/such"}}
    (port,) = network.free_ports(1)
    first = start(tmp_path / "0", plan("exec sleep 600"), 0, port)
    wait_for(lambda: has_joined(tmp_path / "0"))
    second = start(tmp_path / "1", plan("exec sleep 600", inputs=missing), 1, port)
    assert [node.wait(timeout=200) for node in (first, second)] == [126, 126]
    report = json.loads((tmp_path / "0/report.json").read_text())
    assert report["message"] == "node 1: input data: there is no /no/such"
    assert "started" not in [event["event"] for event in events_in(tmp_path / "0")]


def test_a_node_that_cannot_start_cannot_start_again_either(tmp_path: Path) -> None:
    missing = {"data": {"type": "uri_file", "mode": None, "uri": "/no/such"}}
    (port,) = network.free_ports(1)
    the_plan = plan("exec sleep 600", **again(1, retry_on=["bootstrap_error"]))
    plans = [the_plan, {**the_plan, "inputs": missing}]
    nodes = [start(tmp_path / str(rank), one, rank, port) for rank, one in enumerate(plans)]
    assert [node.wait(timeout=200) for node in nodes] == [126, 126]
    kinds = [event["event"] for event in events_in(tmp_path / "0")]
    assert (kinds.count("failure"), kinds.count("restart"), kinds.count("started")) == (2, 1, 0)

"""The parts of the coordinator, each on its own: who is there, who is waited for, what is blamed and written down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobsdk.bootstrap.control.loop import Loop
from jobsdk.bootstrap.control.server import ControlServer, Peer
from jobsdk.bootstrap.coordinator import blame, gathering
from jobsdk.bootstrap.coordinator.attempt import Attempt
from jobsdk.bootstrap.coordinator.gathering import Gathering
from jobsdk.bootstrap.coordinator.journal import Journal
from jobsdk.bootstrap.coordinator.members import Members
from jobsdk.bootstrap.coordinator.uploads import Uploads
from jobsdk.bootstrap.spec import events, exit_codes
from tests.bootstrap.runs import plan


class Connection(Peer):
    """A node's connection that records the messages sent to it."""

    def __init__(self, node: int) -> None:
        channel: Any = SimpleNamespace(remote_address=f"10.0.0.{node}", local_address="10.0.0.0")
        super().__init__("node", node, channel)
        self.told: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)


def offer(node: int, pid: int = 1) -> dict[str, Any]:
    return {"host": f"host-{node}", "pid": pid, "gpus": None, "cores": 4, "ports": [1000 + node]}


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


class Job:
    """Members of a job of two nodes without a network; what was broadcast, and who was asked for."""

    def __init__(self, folder: Path, loop: Loop) -> None:
        self.folder = folder
        self.said: list[dict[str, Any]] = []
        self.asked: list[int] = []
        self.outcome: Any = None
        server: Any = SimpleNamespace(broadcast=self.said.append)
        self.members = Members(plan("x"), cast(ControlServer, server), ["first"], self.asked.append)
        self.gathering = Gathering(
            loop, plan("x"), str(folder), self.members, Journal(str(folder)),
            lambda: self._end("complete"), self._end,
        )  # fmt: skip

    def _end(self, outcome: Any) -> None:
        self.outcome = outcome


@pytest.fixture
def job(tmp_path: Path, loop: Loop) -> Job:
    return Job(tmp_path, loop)


def test_a_node_joins_once_and_may_come_again_after_it_left(job: Job) -> None:
    first, again, stranger = Connection(1), Connection(1), Connection(2)
    assert job.members.join(first, offer(1, pid=7))
    assert not job.members.join(again, offer(1, pid=8))
    assert again.told == [{"type": "refused", "reason": "node 1 has joined already"}]
    assert not job.members.join(stranger, offer(2))
    assert stranger.told == [{"type": "refused", "reason": "there is no node 2"}]
    assert job.members.hosts == {0: "first", 1: "host-1"}
    assert job.members.has_joined(1, 7)
    assert not job.members.leave(again), "the node's connection is another one"
    assert job.members.leave(first)
    assert not job.members.tell(1, {"type": "stop"})
    assert job.members.join(Connection(1), offer(1, pid=9))
    assert job.members.has_joined(1, 9)


def test_only_nodes_without_a_bootstrap_are_asked_for(job: Job) -> None:
    job.members.join(Connection(0), offer(0))
    job.members.ask_for(range(2))
    assert (job.asked, job.members.asked) == ([1], 1)


def test_a_node_that_is_let_go_is_told_and_forgotten(job: Job) -> None:
    peer = Connection(1)
    job.members.join(peer, offer(1))
    job.members.release([0, 1], 75)
    assert peer.told == [{"type": "finish", "exit_code": 75}]
    assert not job.members.present


def test_all_nodes_are_told_the_same(job: Job) -> None:
    for node in range(2):
        job.members.join(Connection(node), offer(node))
    message, warning = job.members.start_message([[1000], [1001]], 3)
    assert warning is None
    assert {key: message[key] for key in ("type", "ports", "restart", "infiniband")} == {
        "type": "start", "ports": [[1000], [1001]], "restart": 3, "infiniband": None,
    }  # fmt: skip
    assert len(message["addresses"]) == 2


def test_nodes_gather_in_any_order(job: Job) -> None:
    job.gathering.ready(1, offer(1))
    assert job.outcome is None
    job.gathering.ready(0, offer(0))
    assert job.outcome == "complete"
    assert job.gathering.ports() == [[1000], [1001]]
    job.gathering.left(1)
    assert job.outcome == "complete", "what happens after the start is not its business"


def test_a_node_that_leaves_while_others_come_is_asked_for_again(
    job: Job, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_PATIENCE_S", 0.0)
    job.gathering.ready(1, offer(1))
    job.gathering.left(1)
    loop.later(0.0, loop.stop)
    loop.run()
    assert job.asked == [1]
    job.members.asked = 10
    job.gathering.left(1)
    assert job.outcome["class"] == "never_started"
    assert job.outcome["final"]


def test_a_gathering_that_was_given_up_asks_for_nobody(job: Job, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_PATIENCE_S", 0.0)
    job.gathering.left(1)
    job.gathering.close()
    loop.later(0.0, loop.stop)
    loop.run()
    assert job.asked == []


def test_why_a_bootstrap_never_joined(tmp_path: Path) -> None:
    def why(code: int | None) -> tuple[str, Any]:
        end = blame.never_joined(str(tmp_path), 1, code)
        return end["class"], end["exit_code"]

    assert why(exit_codes.PREEMPTED) == ("preempted", exit_codes.PREEMPTED)
    assert why(1) == ("never_started", exit_codes.LOST)
    events.append(str(tmp_path), "failure", node=1, exit_code=3, message="no room", alone=True)
    assert why(1) == ("bootstrap_error", 3)


def test_what_fails_by_itself_is_believed_sooner_than_what_tells_of_others() -> None:
    by_itself: Any = {"t": 1.0, "rank": 0, "exit_code": 1, "signal": None, "error": "ValueError: no"}
    of_others: Any = {"t": 1.0, "rank": 0, "exit_code": 1, "signal": None, "error": "RuntimeError: Connection reset"}
    assert blame.hold_s(by_itself) == blame.BLAME_WINDOW_S < blame.LONG_BLAME_WINDOW_S
    assert blame.hold_s(of_others) == blame.LONG_BLAME_WINDOW_S


def test_a_rank_that_is_ended_with_all_others_has_not_failed() -> None:
    attempt = Attempt(0)
    end: Any = {"rank": 2, "exit_code": 143, "signal": 15, "stopped": False, "t": 5.0}
    assert not attempt.note_end(cast(Any, dict(end)))["stopped"]
    attempt.reason = "failure"
    assert attempt.note_end(cast(Any, dict(end)))["stopped"]
    late = attempt.note_end(cast(Any, {**end, "failed_before": 3.0}))
    assert (late["t"], late["exit_code"], late["signal"], late["stopped"]) == (3.0, 1, None, False)
    assert attempt.ends[2] is late


def test_events_are_as_readers_expect_them(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.waiting("waiting 1/99", list(range(99)))
    journal.node_joined(1, offer(1))
    journal.started({"type": "start", "addresses": ["10.0.0.1"], "ports": [[29500, 1]], "restart": 2})
    journal.rank_started({"type": "rank_started", "t": 1.0, "node": 0, "rank": 3, "pid": 7, "restart": 2})
    journal.metric({"type": "metric", "t": 1.0, "node": 0, "rank": 3, "restart": 2})
    journal.rank_ended({"t": 2.0, "node": 0, "rank": 3, "exit_code": 0, "signal": None, "stopped": False, "pid": 7})
    journal.warning("careful")
    journal.warning("careful", 4)

    def of(kind: str) -> list[dict[str, Any]]:
        return [{key: one[key] for key in one if key not in ("event", "t")} for one in events.of(str(tmp_path), kind)]

    assert of("waiting") == [{"message": "waiting 1/99", "missing": list(range(50))}]
    assert of("node_joined") == [{"node": 1, "host": "host-1", "pid": 1}]
    assert of("started") == [{"master_addr": "10.0.0.1", "master_port": 29500, "restart": 2}]
    assert of("rank_started") == [{"node": 0, "rank": 3, "pid": 7}]
    assert of("metric") == [{"node": 0, "rank": 3}]
    assert of("rank_ended") == [{"node": 0, "rank": 3, "exit_code": 0, "signal": None}]
    assert of("warning") == [{"message": "careful"}, {"node": 4, "message": "careful"}]


# -- uploads -----------------------------------------------------------------------------------------------------------


class Uploading:
    """A job with an output in an object store, whose ranks have ended."""

    def __init__(self, job: Job, reason: str | None) -> None:
        self.job, self.now, self.done = job, Attempt(0), 0
        self.now.reason = reason
        self.peers = [Connection(0), Connection(1)]
        for peer in self.peers:
            job.members.join(peer, offer(peer.number))
        outputs = {"model": {"type": "uri_folder", "mode": None, "uri": "s3://b/models"}}
        self.part = Uploads(cast(Any, plan("x", outputs=outputs)), job.members, Journal(str(job.folder)), self._done)

    def _done(self) -> None:
        self.done += 1

    def heard(self, node: int, **message: Any) -> None:
        self.part.heard(node, cast(Any, {"type": "uploaded", **message}))

    def events(self, kind: str) -> list[Any]:
        return events.of(str(self.job.folder), kind)


def test_the_end_waits_until_every_node_has_uploaded(job: Job) -> None:
    one = Uploading(job, "complete")
    assert not one.part.are_done(one.now)
    assert not one.part.are_done(one.now)
    assert job.said == [{"type": "upload"}], "they are asked once"
    facts = {"url": "s3://b/models", "files": 1, "bytes": 5, "seconds": 0.1}
    one.heard(0, name="model", last=True, **facts)
    assert not one.part.are_done(one.now)
    one.heard(1, last=True)
    assert one.part.are_done(one.now)
    assert (one.done, one.now.failures) == (2, [])
    (event,) = one.events("output_uploaded")
    assert {key: event[key] for key in ("node", "name", *facts)} == {"node": 0, "name": "model", **facts}
    assert not one.part.are_done(Attempt(1)), "the next attempt has outputs of its own"


def test_a_job_that_succeeded_fails_by_an_upload_or_a_node_that_is_lost_before(job: Job) -> None:
    one = Uploading(job, None)
    assert not one.part.are_done(one.now)
    one.heard(0, name="model", last=True, error="output model: no access")
    job.members.leave(one.peers[1])
    assert one.part.are_done(one.now)
    assert one.now.reason == "failure"
    (failure,) = one.now.failures
    assert (failure["class"], failure["message"]) == ("upload_failed", "node 0: output model: no access")
    (warning,) = one.events("warning")
    assert warning["message"] == "node 1 was lost before its outputs were uploaded"


def test_an_upload_is_not_the_cause_of_what_failed_before(job: Job) -> None:
    one = Uploading(job, "failure")
    assert not one.part.are_done(one.now)
    one.heard(0, name="model", last=True, error="output model: no access")
    assert (one.now.reason, one.now.failures) == ("failure", [])
    assert [event["message"] for event in one.events("warning")] == ["node 0: output model: no access"]


def test_a_checkpoint_that_is_not_uploaded_is_a_warning(job: Job) -> None:
    one = Uploading(job, None)
    one.heard(1, name="model", checkpoint="checkpoints/.parts/one", error="output model: no access")
    assert one.now.failures == []
    assert [event["message"] for event in one.events("warning")] == ["output model: no access"]


def test_a_job_that_is_cancelled_waits_for_no_upload(job: Job) -> None:
    one = Uploading(job, "complete")
    assert not one.part.are_done(one.now)
    one.part.give_up()
    assert one.part.are_done(one.now)
    assert (one.done, one.now.reason) == (1, "cancelled")

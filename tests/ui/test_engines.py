"""Engines that do not answer: the page goes on with what is known here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobsdk.compute.base import Compute
from jobsdk.errors import ComputeError
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.refresh import Pace
from jobsdk.ui.listing import Listing
from tests.bootstrap.runs import plan, wait_for


class _Engine:
    """Stands for a compute that does not answer before it is told to; no real engine does so on demand."""

    pace = Pace(0.0, 0.0)
    read, following = Compute.read, Compute.following

    def __init__(self) -> None:
        self.asked, self.answers, self.count = threading.Event(), threading.Event(), 0
        self.fails = False

    def refresh(self, run: RunFolder) -> None:
        self.count += 1
        self.asked.set()
        assert self.answers.wait(200)
        if self.fails:
            raise ComputeError("the cluster refused the connection")
        run.append_event("ended", status="Completed", exit_code=0, message="")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Engine]:
    one = _Engine()
    monkeypatch.setattr("jobsdk.compute.of_run", lambda run: one)
    yield one
    one.answers.set()


@pytest.fixture
def run(engine: _Engine) -> RunFolder:
    made = RunFolder.create("far")
    made.write_json("native.json", {"type": "slurm", "compute": "cluster"})
    made.write_json("plan.json", plan("true"))
    made.write_json("run.json", {"name": "far", "compute": "cluster", "created": 1.0, "host": "elsewhere"})
    made.append_event("submitted", by=1)
    return made


def get(client: TestClient, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_run_is_shown_while_its_engine_is_silent(client: TestClient, engine: _Engine, run: RunFolder) -> None:
    for _ in range(3):
        assert get(client, "/api/runs/far")["status"] == "Queued"
        assert get(client, "/api/runs/far/lines?count=1")["total"] == 0
    assert engine.asked.wait(200)
    assert engine.count == 1  # not once more for each look
    engine.answers.set()
    wait_for(lambda: get(client, "/api/runs/far")["status"] == "Completed")


def test_why_an_engine_cannot_be_asked_is_told(client: TestClient, engine: _Engine, run: RunFolder) -> None:
    engine.fails = True
    engine.answers.set()
    wait_for(lambda: get(client, "/api/runs/far")["trouble"] == "the cluster refused the connection")
    wait_for(lambda: get(client, "/api/runs")["trouble"] == "cluster: the cluster refused the connection")


def test_the_list_does_not_wait_either(engine: _Engine, run: RunFolder) -> None:
    listing = Listing()
    assert [one["status"] for one in listing.runs({})["runs"]] == ["Queued"]
    assert engine.asked.wait(200)
    assert [one["status"] for one in listing.runs({"words": "FA"})["runs"]] == ["Queued"]
    assert engine.count == 1
    engine.answers.set()
    wait_for(lambda: [one["status"] for one in listing.runs({})["runs"]] == ["Completed"])


def test_a_new_run_of_the_same_name_is_another_one(client: TestClient, engine: _Engine, run: RunFolder) -> None:
    run.append_event("ended", status="Failed", exit_code=1, message="old")
    assert get(client, "/api/runs/far")["status"] == "Failed"
    run.path.rename(run.path.with_name("gone"))
    assert client.get("/api/runs/far").status_code == 404
    again = RunFolder.create("far")
    again.write_json("run.json", {"name": "far", "compute": "cluster", "created": 2.0})
    again.append_event("ended", status="Completed", exit_code=0, message="new")
    found = get(client, "/api/runs/far")
    assert (found["status"], found["message"]) == ("Completed", "new")


def test_the_list_says_that_there_are_more_and_keeps_archived_runs_apart(
    engine: _Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobsdk.ui.listing._MOST", 3)
    for number in range(5):
        made = RunFolder.create(f"run-{number}")
        made.write_json("run.json", {"name": made.name, "created": float(number), "archived": number == 4})
        made.append_event("ended", status="Completed", exit_code=0, message="")
    listing = Listing()
    found = listing.runs({})
    assert [one["name"] for one in found["runs"]] == ["run-3", "run-2", "run-1"]
    assert not found["is_all"]
    assert [one["name"] for one in listing.runs({"view": "archived"})["runs"]] == ["run-4"]
    assert listing.runs({"view": "all", "words": "run-4"})["is_all"]

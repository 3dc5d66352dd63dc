from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from jobsdk.runs.folder import RunFolder
from jobsdk.runs.history import History


def make(name: str, created: float, status: str | None = "Completed", **facts: object) -> RunFolder:
    run = RunFolder.create(name)
    base = {
        "name": name,
        "created": created,
        "tags": {},
        "archived": False,
        "compute": "local",
        "experiment": "e",
    }
    run.write_json("run.json", {**base, "submitter_pid": os.getpid(), **facts})
    run.append_event("submitted")
    if status is not None:
        run.append_event("ended", status=status, exit_code=0 if status == "Completed" else 3, message="")
    return run


def names(**filters: object) -> list[str]:
    return [row["name"] for row in History().list(**filters)]  # type: ignore[arg-type]


def test_filters() -> None:
    make("first", 1, tags={"team": "vision", "n": "1"})
    make("second", 2, "Failed", experiment="other")
    make("third", 3, archived=True, tags={"team": "speech"})
    make("fourth", 4, None, compute="cluster")
    assert names() == ["fourth", "second", "first"]
    assert names(archived=None) == ["fourth", "third", "second", "first"]
    assert names(archived=True) == ["third"]
    assert names(status="FAILED") == ["second"]
    assert names(status="queued") == ["fourth"]
    assert names(tag="team") == ["first"]
    assert names(tag="team=vision", archived=None) == ["first"]
    assert names(tag="team=audio") == []
    assert names(experiment="other") == ["second"]
    assert names(compute="cluster") == ["fourth"]
    assert names(max_results=2) == ["fourth", "second"]
    with pytest.raises(ValueError, match="Completed"):
        names(status="finished")


@pytest.mark.parametrize("status", ["canceled", "Cancelled", "timed-out", "TIMED_OUT", "Timed out"])
def test_a_status_in_any_spelling(status: str) -> None:
    make("timed", 1, "TimedOut")
    make("canceled", 2, "Canceled")
    assert names(status=status) == ["timed" if status[0] in "tT" else "canceled"]


def test_what_happens_after_the_first_look_is_seen() -> None:
    run = make("one", 1, None)
    gone = make("gone", 2)
    assert {row["name"]: row["status"] for row in History().list()} == {"one": "Queued", "gone": "Completed"}
    run.append_event("ended", status="Failed", exit_code=7, message="")
    run.update_facts({"tags": {"late": "yes"}})
    shutil.rmtree(gone.path)
    (row,) = History().list(tag="late=yes")
    assert (row["status"], row["exit_code"]) == ("Failed", 7)
    assert names() == ["one"]


@pytest.mark.parametrize("damage", ["missing", "garbage", "cut", "other table", "other version"])
def test_a_lost_index_is_made_again(home: Path, damage: str) -> None:
    for number in range(200):
        make(f"run{number}", 1 + number)
    assert len(names()) == 200
    path = home / "history.db"
    if damage == "missing":
        path.unlink()
    elif damage == "garbage":
        path.write_bytes(os.urandom(9000))
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    else:
        with sqlite3.connect(path) as database:
            database.execute("ALTER TABLE runs RENAME TO others" if "table" in damage else "PRAGMA user_version = 9")
    assert len(names()) == 200
    History().record(make("new", 1000))
    assert names(max_results=1) == ["new"]
    path.unlink()
    assert len(names()) == 201


def test_a_home_that_cannot_hold_an_index_can_be_listed(home: Path) -> None:
    make("one", 1)
    (home / "history.db").mkdir()
    assert names() == ["one"]
    History().record(make("two", 2))
    assert names() == ["two", "one"]


_WRITER = """
import os, sys, time
from jobsdk.runs.history import History
from jobsdk.runs.folder import RunFolder
for number in range(20):
    run = RunFolder.create(f"w{sys.argv[1]}-{number}")
    run.write_json("run.json", {"created": time.time(), "submitter_pid": os.getpid()})
    run.append_event("submitted")
    history = History()
    history.record(run)
    run.append_event("ended", status="Completed", exit_code=0, message="")
    history.record(run)
    if number % 5 == 0:
        history.list()
"""


@pytest.mark.slow
def test_16_processes_write_at_once(home: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(number)]) for number in range(16)]
    assert [writer.wait() for writer in writers] == [0] * 16
    with sqlite3.connect(home / "history.db") as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (320,)
    assert [row["status"] for row in History().list()] == ["Completed"] * 320

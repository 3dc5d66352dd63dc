"""`jobsdk job stacks`, from the command line to the ranks and back."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from jobsdk import MLClient
from jobsdk.client.run import Run
from tests.bootstrap.runs import wait_for

from .conftest import Jobsdk

TRAIN = """import os, time
def wait_for_all():
    time.sleep(600)
def load_batch():
    time.sleep(600)
open("in-" + os.environ["RANK"], "w").close()
if os.environ["RANK"] == "2":
    load_batch()
wait_for_all()
"""
GROUPS = ["3 ranks in wait_for_all at train.py:3 (ranks 0-1, 3)", "rank 2 in load_batch at train.py:5"]


@pytest.fixture
def run(work: Path, jobsdk: Jobsdk) -> Run:
    """A job of 2 nodes with 2 processes each, all of them waiting, one elsewhere than the others."""
    (work / "train.py").write_text(TRAIN)
    (work / "job.yml").write_text(
        f"command: {sys.executable} train.py; echo ended\n"
        "code: .\n"
        "name: stuck\n"
        "resources: {instance_count: 2}\n"
        "distribution: {type: pytorch, process_count_per_instance: 2}\n"
    )
    done = jobsdk("job", "create", "-f", "job.yml")
    assert done.code == 0, done
    run = MLClient().jobs.get("stuck")
    for rank in range(4):
        wait_for((run.folder.code / f"in-{rank}").exists)
    return run


def end(run: Run) -> None:
    MLClient().jobs.cancel(run.name)
    run.wait()


def test_where_all_ranks_are_while_they_go_on(run: Run, jobsdk: Jobsdk) -> None:
    def settled() -> bool:  # a rank has said that it is about to wait
        return jobsdk("job", "stacks", "stuck").out.splitlines()[:2] == GROUPS

    wait_for(settled)
    shown = jobsdk("job", "stacks", "stuck")
    assert shown.code == 0, shown
    lines = shown.out.splitlines()
    assert lines[:4] == [*GROUPS, "", "rank 0"]
    assert [line for line in lines if line.startswith("rank ")] == [GROUPS[1], *(f"rank {rank}" for rank in range(4))]
    rank_2 = lines[lines.index("rank 2") + 1 : lines.index("rank 3") - 1]
    assert [line.strip() for line in rank_2[-2:]] == ["load_batch train.py:5", "<module> train.py:8"]

    answer = json.loads(jobsdk("job", "stacks", "stuck", "-o", "json").out)
    assert (answer["groups"], answer["nodes_missing"]) == (GROUPS, [])
    assert run.stacks()["groups"] == MLClient().jobs.stacks("stuck")["groups"] == GROUPS
    assert sorted(answer["ranks"]) == ["0", "1", "2", "3"]
    assert answer["ranks"]["2"][0]["threads"][0]["frames"][0] == ["load_batch", str(run.folder.code / "train.py"), 5]
    assert run.status == "Running"
    end(run)
    assert run.status == "Canceled"


def test_a_run_that_has_ended_has_no_ranks_to_ask(jobsdk: Jobsdk) -> None:
    assert jobsdk("job", "create", "-f", "job.yml", "--name", "done", "--wait").code == 0
    shown = jobsdk("job", "stacks", "done")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == "error: run done has ended (Completed): there are no ranks to ask\n"


def test_the_stacks_that_were_taken_before_a_run_was_stopped(jobsdk: Jobsdk) -> None:
    jobsdk("job", "create", "-f", "job.yml", "--name", "hung", "--wait")
    folder = MLClient().jobs.get("hung").folder
    folder.write_json("report.json", {**folder.report(), "stacks": GROUPS})
    assert jobsdk("job", "stacks", "hung").out.splitlines() == GROUPS


def test_no_run_and_one_that_only_prepares(jobsdk: Jobsdk, home: Path) -> None:
    assert jobsdk("job", "stacks", "nosuch").code == 2
    folder = home / "runs/early"
    folder.mkdir(parents=True)
    # This very process passes for its supervisor, and would die of the signal.
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    (folder / "owner.json").write_text(json.dumps({"pid": os.getpid(), "start": start}))
    events = [{"t": 1.0, "event": "submitted"}, {"t": 2.0, "event": "preparing"}]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    shown = jobsdk("job", "stacks", "early")
    assert (shown.code, shown.err) == (2, "error: run early is Preparing: no rank runs yet\n")
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"t": 3.0, "event": "started"}) + "\n")
    shown = jobsdk("job", "stacks", "early")
    assert (shown.code, shown.err) == (
        2,
        "error: run early cannot be asked where its ranks are: its supervisor is not there\n",
    )

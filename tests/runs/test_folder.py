from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jobsdk import home as home_
from jobsdk.bootstrap.system.processes import start_time
from jobsdk.errors import RunExists, RunNotFound
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.names import generate_name
from jobsdk.runs.state import EventReader, State
from tests.bootstrap.runs import processes_of, wait_for


def started(name: str = "run", **facts: object) -> RunFolder:
    run = RunFolder.create(name)
    run.write_json("run.json", {"created": time.time(), "submitter_pid": os.getpid(), **facts})
    run.append_event("submitted")
    return run


def state_after(*events: str) -> State:
    state = State()
    details = {"t": 1.0, "status": "Failed", "exit_code": 3, "pid": 1, "start": 1}
    state.feed([{**details, "event": event} for event in events])
    return state


def dead_process() -> tuple[int, int | None]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = start_time(process.pid)
    process.kill()
    process.wait()
    return process.pid, start


def test_home_is_where_it_is_told_to_be(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home_.home() == home
    monkeypatch.delenv("JOBSDK_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert home_.home() == tmp_path / "data" / "jobsdk"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/to/be/ignored")
    assert home_.home() == Path.home() / ".local/share/jobsdk"


def test_names_are_all_different_and_fit_azures_form() -> None:
    names = {generate_name() for _ in range(1000)}
    assert len(names) == 1000
    for name in names:
        adjective, noun, tail = name.split("_")
        assert adjective.isalpha()
        assert noun.isalpha()
        assert len(tail) == 10
        assert tail.isalnum()


def test_a_name_is_taken_once() -> None:
    RunFolder.create("one")
    with pytest.raises(RunExists, match="'one'"):
        RunFolder.create("one")


@pytest.mark.parametrize("name", ["", ".", "..", "../runs", "a/b", "nothing"])
def test_what_is_no_run_is_not_found(name: str) -> None:
    RunFolder.create("other")
    with pytest.raises(RunNotFound):
        RunFolder.find(name)


def test_a_misspelt_name_is_told_the_nearest() -> None:
    RunFolder.create("calm_otter_1234567890")
    with pytest.raises(RunNotFound, match="did you mean 'calm_otter_1234567890'"):
        RunFolder.find("calm_oter_1234567890")


@pytest.mark.parametrize(
    ("events", "status"),
    [
        (["submitted"], "Queued"),
        (["submitted", "preparing"], "Preparing"),
        (["submitted", "preparing", "bootstrap_up", "warning"], "Starting"),
        (["submitted", "preparing", "started", "bootstrap_up", "rank_started"], "Running"),
        (["submitted", "cancel_requested", "preparing", "started"], "CancelRequested"),
        (["submitted", "started", "ended", "cancel_requested"], "Failed"),
    ],
)
def test_status_is_read_from_the_events(events: list[str], status: str) -> None:
    assert state_after(*events).status == status


def test_the_first_end_counts() -> None:
    state = state_after("submitted", "ended")
    state.feed([{"t": 9.0, "event": "ended", "status": "Lost", "exit_code": 125}])
    assert (state.status, state.exit_code, state.ended) == ("Failed", 3, 1.0)


def test_events_are_read_as_they_come_and_never_in_halves() -> None:
    run = started()
    reader = EventReader(run.events_file)
    assert [event["event"] for event in reader.read()] == ["submitted"]
    line = json.dumps({"t": 1.0, "event": "preparing"}) + "\n"
    with run.events_file.open("a") as file:
        file.write(line[:10])
        file.flush()
        assert reader.read() == []
        file.write(line[10:])
    assert [event["event"] for event in reader.read()] == ["preparing"]
    assert reader.read() == []


def test_an_event_that_a_full_disk_cut_short_hides_no_other() -> None:
    run = started()
    with run.events_file.open("a") as file:
        file.write('{"t":1.0,"event":"war')
    run.append_event("preparing")
    with run.events_file.open("a") as file:
        file.write("nonsense\n[]\n")
    assert [event["event"] for event in run.events()] == ["submitted", "preparing"]


def test_many_writers_of_events_and_facts_do_not_mix() -> None:
    run = started()

    def write(number: int) -> None:
        for count in range(200):
            run.append_event("warning", message=f"{number} {count} " + "x" * 500)
            if count % 10 == 0:
                run.update_facts({f"key{number}": count})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(run.events()) == 1601
    assert {run.facts()[f"key{number}"] for number in range(8)} == {190}


def test_a_run_of_a_living_supervisor_is_not_lost() -> None:
    run = started()
    run.write_json("owner.json", {"pid": os.getpid(), "start": start_time(os.getpid())})
    assert run.state().status == "Queued"


def test_a_pid_that_another_process_has_by_now_is_not_the_supervisor() -> None:
    run = started()
    run.write_json("owner.json", {"pid": os.getpid(), "start": 1})
    assert (run.state().status, run.state().exit_code) == ("Lost", 125)


def test_only_the_machine_of_a_run_judges_its_processes() -> None:
    run = started(host="another")
    run.write_json("owner.json", {"pid": os.getpid(), "start": 1})
    assert run.state().status == "Queued"


def test_a_run_whose_supervisor_was_killed_is_lost_and_its_processes_are_ended() -> None:
    run = started()
    left = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={**os.environ, "JOBSDK_RUN_DIR": str(run.path)},
        start_new_session=True,
    )
    wait_for(lambda: left.pid in processes_of(run.path))
    pid, start = dead_process()
    run.write_json("owner.json", {"pid": pid, "start": start})
    states = [run.state() for _ in range(2)]
    assert left.wait(200) == -signal.SIGKILL
    assert [state.status for state in states] == ["Lost", "Lost"]
    assert [event["event"] for event in run.events()].count("ended") == 1
    assert run.report()["exit_code"] == 125


def test_a_supervisor_that_died_at_its_start_is_found_out() -> None:
    run = started()
    pid, start = dead_process()
    run.append_event("supervisor_started", pid=pid, start=start)
    assert run.state().status == "Lost"


def test_a_submitter_that_was_killed_is_found_out_after_a_while() -> None:
    pid, start = dead_process()
    run = started(submitter_pid=pid, submitter_start=start)
    for since, status in ((60, "Queued"), (-60, "Lost")):
        run.events_file.write_text(json.dumps({"t": time.time() + since, "event": "submitted"}) + "\n")
        assert run.state().status == status


def test_a_run_that_was_being_cancelled_when_its_supervisor_died_is_cancelled() -> None:
    run = started()
    pid, start = dead_process()
    run.write_json("owner.json", {"pid": pid, "start": start})
    run.append_event("cancel_requested", by="me")
    assert (run.state().status, run.state().exit_code) == ("Canceled", 130)


def test_a_report_without_its_event_is_believed() -> None:
    run = started()
    pid, start = dead_process()
    run.write_json("owner.json", {"pid": pid, "start": start})
    run.write_json("report.json", {"status": "Failed", "exit_code": 3, "message": "rank 0 exited with code 3"})
    assert (run.state().status, run.state().exit_code) == ("Failed", 3)


def test_waiting_ends_with_the_run_or_with_the_time() -> None:
    run = started()
    with pytest.raises(TimeoutError, match="Queued"):
        run.wait(0)
    threading.Timer(0.05, lambda: run.append_event("ended", status="Completed", exit_code=0)).start()
    assert run.wait(200).status == "Completed"


def test_a_run_whose_folder_is_elsewhere_is_found_and_listed(home: Path, tmp_path: Path) -> None:
    run = RunFolder.create("shared")
    run.path.rename(tmp_path / "shared")
    run.path.symlink_to(tmp_path / "shared")
    (run.path.parent / "gone").symlink_to(tmp_path / "gone")
    assert [one.name for one in RunFolder.all()] == ["shared"]
    assert RunFolder.find("sha").path == run.path

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
import yaml

from jobsdk import Input, JobsdkError, MLClient, Output, command
from jobsdk.compute import user_file
from jobsdk.errors import RunNotFound
from jobsdk.runs import deletion
from jobsdk.runs.deletion import Retention, expired
from jobsdk.runs.folder import RunFolder

DAY = 86400.0


def make(name: str, days: float = 0, status: str | None = "Completed", **inputs: Path | str) -> RunFolder:
    """A run that ended so many days ago; without a status one that has not ended, whose process is this one."""
    run = RunFolder.create(name)
    ended = time.time() - days * DAY
    facts = {"name": name, "created": ended, "submitter_pid": os.getpid(), "host": "elsewhere"}
    run.write_json("run.json", facts)
    run.write_json("plan.json", {"inputs": {key: {"uri": str(uri)} for key, uri in inputs.items()}})
    run.append_event("submitted")
    if status is not None:
        run.append_event("ended", status=status, exit_code=0, message="")
        lines = run.events_file.read_text().splitlines()
        lines[-1] = re.sub(r'"t":[^,]+', f'"t":{ended}', lines[-1])
        run.events_file.write_text("".join(f"{line}\n" for line in lines))
    return run


def left() -> set[str]:
    return {run.name for run in RunFolder.all()}


def retain(**fields: object) -> None:
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text(yaml.dump({"retention": fields}))


def test_a_run_goes_with_all_that_it_has_and_nothing_else(home: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("kept")
    jobs = MLClient().jobs
    job = command(
        command="ls ${{inputs.data}} > ${{outputs.model}}/list",
        code=str(tmp_path / "data"),
        inputs={"data": Input(path=str(tmp_path / "data"))},
        outputs={"model": Output()},
    )
    run = jobs.create_or_update(job).wait()
    other = jobs.create_or_update(job).wait()
    assert run.status == "Completed"
    (gone,) = jobs.delete(run.name)
    assert (gone.name, gone.status) == (run.name, "Completed")
    assert gone.size > 0
    assert left() == {other.name}
    assert [one.name for one in jobs.list()] == [other.name]
    assert (tmp_path / "data" / "x").read_text() == "kept"
    assert not (home / "deleted").exists()
    with pytest.raises(RunNotFound):
        jobs.delete(run.name)


def test_a_run_that_has_not_ended_is_ended_first_and_only_by_force() -> None:
    jobs = MLClient().jobs
    run = jobs.create_or_update(command(command="sleep 600"))
    with pytest.raises(JobsdkError, match=rf"run {run.name} is \w+\. Fix: cancel it first"):
        jobs.delete(run)
    assert left() == {run.name}
    (gone,) = jobs.delete(run, force=True)
    assert gone.status == "Canceled"
    assert left() == set()


def test_what_other_runs_use_stays_unless_they_go_too() -> None:
    first = make("first")
    make("second", data=first.path / "outputs" / "model")
    make("third", data="https://example.com/runs/first", other="/runs/first", own=first.path.with_name("firstly"))
    jobs = MLClient().jobs
    with pytest.raises(JobsdkError, match="run first has outputs that are inputs of second"):
        jobs.delete("third", "first")
    assert left() == {"first", "second", "third"}  # none is deleted
    assert [one.name for one in jobs.delete("first", "second", jobs.get("first"))] == ["first", "second"]
    make("first")
    make("fourth", data=first.path)
    jobs.delete("first", force=True)
    assert left() == {"third", "fourth"}


def test_names_are_whole() -> None:
    make("calm_otter")
    with pytest.raises(RunNotFound, match="did you mean 'calm_otter'"):
        MLClient().jobs.delete("calm")
    assert left() == {"calm_otter"}


def test_a_folder_elsewhere_goes_with_its_link(tmp_path: Path) -> None:
    run = make("linked")
    run.path.rename(tmp_path / "elsewhere")
    run.path.symlink_to(tmp_path / "elsewhere")
    MLClient().jobs.delete("linked")
    assert left() == set()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("retention", "names"),
    [
        (Retention(older_than=10 * DAY), {"old", "old_failed"}),
        (Retention(keep=2), {"old", "old_failed"}),
        (Retention(keep=0), {"new", "failed", "old", "old_failed"}),
        (Retention(older_than=10 * DAY, keep=3), {"old_failed"}),
        (Retention(older_than=10 * DAY, keep=4), set()),
        (Retention(failed=True), {"failed", "old_failed"}),
        (Retention(failed=True, keep=1), {"old_failed"}),
        (Retention(failed=True, older_than=10 * DAY), {"old_failed"}),
    ],
)
def test_which_runs_a_retention_lets_go(retention: Retention, names: set[str]) -> None:
    make("running", 99, None)
    make("new", 1)
    make("failed", 2, "Failed")
    make("old", 20)
    make("old_failed", 30, "TimedOut")
    assert {run.name for run in expired(retention)} == names


def test_what_a_run_that_stays_uses_is_not_pruned() -> None:
    a = make("a", 40)
    b = make("b", 30, data=a.path / "outputs")
    c = make("c", 20, data=b.path / "outputs")
    make("d", 1, data=c.path / "outputs")
    jobs = MLClient().jobs
    assert jobs.prune(older_than="10d") == ()
    jobs.delete("d")
    dry = jobs.prune(older_than="10d", dry_run=True)
    assert [one.name for one in dry] == ["c", "b", "a"]
    assert left() == {"a", "b", "c"}
    assert jobs.prune(older_than=10 * DAY) == dry
    assert left() == set()


def test_nothing_is_pruned_without_saying_what() -> None:
    make("old", 99)
    with pytest.raises(JobsdkError, match="nothing says which runs may go"):
        MLClient().jobs.prune()
    with pytest.raises(ValueError, match="30d or 12h"):
        MLClient().jobs.prune(older_than="a month")
    assert left() == {"old"}


def test_a_retention_is_kept_once_a_day_when_a_job_is_submitted(home: Path) -> None:
    make("old", 40)
    make("new", 1)
    retain(older_than="30d")
    said: list[str] = []
    jobs = MLClient().jobs
    run = jobs.create_or_update(command(command="true"), warn=said.append)
    (text,) = said
    assert text.startswith("retention: deleted 1 old runs (old), ")
    assert left() == {"new", run.wait().name}

    make("old", 40)
    again = jobs.create_or_update(command(command="true"), warn=said.append).wait()
    assert left() == {"old", "new", run.name, again.name}
    os.utime(home / "pruned", (time.time() - 2 * DAY,) * 2)
    jobs.create_or_update(command(command="true"), warn=said.append).wait()
    assert "old" not in left()
    assert len(said) == 2


def test_a_retention_that_cannot_be_kept_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: RunFolder) -> None:
        raise JobsdkError(f"run {run.name} cannot be deleted: it is busy")

    make("old", 40)
    retain(older_than="30d")
    monkeypatch.setattr(deletion, "remove", refuse)
    said: list[str] = []
    run = MLClient().jobs.create_or_update(command(command="true"), warn=said.append)
    assert run.wait().status == "Completed"
    assert said == ["retention: run old cannot be deleted: it is busy"]


def test_what_a_deletion_that_was_killed_left_goes_with_the_next(home: Path) -> None:
    make("first")
    make("second")
    for name in ("earlier", "second"):
        (home / "deleted" / name / "outputs").mkdir(parents=True)
    MLClient().jobs.delete("second")
    assert left() == {"first"}
    assert not (home / "deleted").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("30d", "retention must be a mapping, as in retention: {older_than: 30d, keep: 20}"),
        ({"older": "30d"}, "retention has no key 'older', only"),
        ({"older_than": "a month"}, "retention.older_than must be a length of time such as 30d, not 'a month'"),
        ({"keep": True}, "retention.keep must be a number of runs, not True"),
        ({"failed": "yes"}, "retention.failed must be true or false, not 'yes'"),
    ],
)
def test_a_wrong_retention_is_said(given: object, message: str) -> None:
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text(yaml.dump({"retention": given}))
    with pytest.raises(JobsdkError, match=re.escape(message)):
        MLClient().jobs.prune()


def test_a_project_deletes_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("old", 40)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "computes.yml").write_text("retention: {keep: 0}\n")
    with pytest.raises(JobsdkError, match="retention deletes your runs, so it belongs in your own"):
        MLClient().jobs.create_or_update(command(command="true"))
    assert left() == {"old"}

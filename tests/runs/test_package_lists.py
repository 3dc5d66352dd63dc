"""The list of installed packages is kept once for all runs that have the same."""

from __future__ import annotations

import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest

from jobsdk import MLClient, command
from jobsdk.bootstrap.spec import package_lists
from jobsdk.client.run import Run
from jobsdk.home import home, runs_folder
from jobsdk.runs import provenance
from jobsdk.runs.folder import RunFolder


def ran() -> Run:
    job = command(command=f"{sys.executable} -c pass", compute="local")
    run = MLClient().jobs.create_or_update(job)
    run.result(100)
    return run


def lists() -> list[Path]:
    return sorted((home() / package_lists.FOLDER).iterdir())


def test_runs_share_one_list_until_the_last_is_deleted() -> None:
    first, second = ran(), ran()
    (kept,) = lists()
    for run in (first, second):
        assert (run.folder.path / "packages.json").samefile(kept)
        python = provenance.of_run(run.folder).python
        assert python is not None
        assert python.packages["pytest"] == metadata.version("pytest")
        assert "pytest" not in (run.folder.path / "events.jsonl").read_text()
    MLClient().jobs.delete(first.name)
    assert lists() == [kept]
    assert str(provenance.of_run(second.folder).python).endswith(" packages")
    MLClient().jobs.delete(second.name)
    assert lists() == []


def test_a_copy_of_a_run_has_its_list() -> None:
    run = ran()
    shutil.copytree(run.folder.path, runs_folder() / "copied")
    MLClient().jobs.delete(run.name)
    python = provenance.of_run(RunFolder(runs_folder() / "copied")).python
    assert python is not None
    assert "pytest" in python.packages
    (runs_folder() / "copied/packages.json").unlink()
    assert str(provenance.of_run(RunFolder(runs_folder() / "copied")).python).endswith("packages not recorded here")


def test_without_a_folder_for_them_the_list_is_in_the_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "runs/r"
    run.mkdir(parents=True)
    assert not package_lists.share(str(run), {"torch": "2"})
    (tmp_path / package_lists.FOLDER).mkdir()
    assert package_lists.share(str(run), {"torch": "2"})
    assert package_lists.share(str(run), {"torch": "3"}), "another attempt"
    assert '"3"' in (run / "packages.json").read_text()
    package_lists.sweep(str(tmp_path))
    assert len(list((tmp_path / package_lists.FOLDER).iterdir())) == 1

    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    assert not package_lists.share(str(run), {"torch": "4"})

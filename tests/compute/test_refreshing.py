"""Bringing many runs up to date at once: engines that fail or hang hold nobody up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jobsdk import MLClient
from jobsdk.compute import refreshing
from jobsdk.errors import ComputeError
from jobsdk.runs.folder import RunFolder


class _Engine:
    """Stands for a compute: answers, refuses, or never answers. No real engine can be made to do so on demand."""

    def __init__(self, name: str, hang: threading.Event) -> None:
        self._name, self._hang = name, hang

    def refresh(self, run: RunFolder) -> None:
        if self._name == "hanging":
            self._hang.wait(60)
        if self._name == "broken":
            raise ComputeError("the login host refused the connection")
        run.append_event("ended", status="Completed", exit_code=0, message="")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, RunFolder]]:
    """One run on each of three computes."""
    released = threading.Event()
    made = {}
    for name in ("good", "broken", "hanging"):
        run = made[name] = RunFolder.create(f"run-{name}")
        run.write_json("native.json", {"type": "slurm", "compute": name})
        run.write_json("run.json", {"name": run.name, "compute": name, "created": 1.0, "host": "elsewhere"})
        run.append_event("submitted")
    monkeypatch.setattr(refreshing, "_PATIENCE_S", 5.0)  # enough for the one that answers, on a busy machine too

    def engine(run: RunFolder) -> Any:
        return _Engine(run.facts()["compute"], released)

    monkeypatch.setattr("jobsdk.compute.of_run", engine)
    yield made
    released.set()


def test_the_list_has_what_engines_say_and_tells_which_did_not_answer(
    runs: dict[str, RunFolder], caplog: pytest.LogCaptureFixture
) -> None:
    listed = {run.name: run.folder.recorded_state().status for run in MLClient().jobs.list()}
    assert listed == {"run-good": "Completed", "run-broken": "Queued", "run-hanging": "Queued"}
    said = sorted(record.getMessage() for record in caplog.records)
    assert said == [
        "compute broken: the login host refused the connection",
        "compute hanging: has not answered within 5 s",
    ]


def test_runs_that_have_ended_are_not_asked_again(runs: dict[str, RunFolder], caplog: pytest.LogCaptureFixture) -> None:
    for run in runs.values():
        run.append_event("ended", status="Failed", exit_code=1, message="")
    MLClient().jobs.list()
    assert not caplog.records


@pytest.mark.parametrize("native", [{"type": "gone"}, {"type": "kubernetes"}], ids=["type", "settings"])
def test_a_run_whose_compute_cannot_be_made_any_more_is_listed_as_it_was(native: dict[str, str]) -> None:
    run = RunFolder.create("old-run")
    run.write_json("native.json", {"compute": "there", **native})
    run.write_json("compute.json", {"image": 5})
    run.write_json("run.json", {"name": run.name, "compute": "there", "created": 1.0, "host": "elsewhere"})
    run.append_event("ended", status="Completed", exit_code=0, message="")
    assert [(one.status, *one.outputs) for one in MLClient().jobs.list()] == [("Completed", "default")]

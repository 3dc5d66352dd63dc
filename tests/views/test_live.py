"""Cards of runs that go on, and the threads that keep them up to date."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from jobsdk import MLClient, command
from jobsdk.client.run import Run
from jobsdk.views import live
from tests.bootstrap.runs import wait_for

WORK = r"""echo '{"t": 1, "rank": 0, "step": 7, "metrics": {"loss": 0.25, "<b>": 1}}' >> $JOBSDK_REPORTS
printf 'up\n 45%%|####      | 45/100\r 46%%|####      | 46/100'
"""


class Handle:
    """What IPython's `display` gives back, as a list of pictures."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    def update(self, data: dict[str, str], raw: bool) -> None:
        self.pages.append(data["text/html"])


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    """Whatever is displayed."""
    handles: list[Handle] = []

    def display(data: dict[str, str], **_: Any) -> Handle:
        handles.append(Handle())
        handles[-1].pages.append(data["text/html"])
        return handles[-1]

    monkeypatch.setattr("IPython.display.display", display)
    return handles


def submit(go: Path) -> Run:
    return MLClient().jobs.create_or_update(command(command=f"{WORK}until [ -e {go} ]; do sleep 0.05; done"))


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "jobsdk-card"]


def test_a_run_that_is_displayed_in_a_loop_has_one_thread(shown: list[Handle], tmp_path: Path) -> None:
    run = submit(tmp_path / "go")
    for _ in range(20):
        live.show(run)
        live.show(MLClient().jobs.get(run.name))
    assert len(threads()) == 1
    (tmp_path / "go").touch()
    wait_for(lambda: not threads())
    assert all("Completed" in handle.pages[-1] for handle in shown)
    live.show(run)
    assert not threads()


def test_progress_is_shown_before_its_line_has_an_end(shown: list[Handle], tmp_path: Path) -> None:
    run = submit(tmp_path / "go")
    live.show(run)
    expected = ("width: 46%", "step 7: loss 0.25, &lt;b&gt; 1", "[0]  46%|####")  # each is read for itself
    wait_for(lambda: all(part in shown[0].pages[-1] for part in expected))
    (tmp_path / "go").touch()
    wait_for(lambda: not threads())
    assert "width: 46%" not in shown[0].pages[-1]


def test_a_run_that_is_deleted_ends_its_thread_quietly(
    shown: list[Handle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    run = submit(tmp_path / "go")
    log = run.folder.logs / "node-0/rank-0.log"
    wait_for(lambda: log.exists() and "46%" in log.read_text())  # from then on nothing makes the folder again
    live.show(run)
    run.folder.path.rename(tmp_path / "deleted")
    try:
        wait_for(lambda: not threads())
    finally:
        (tmp_path / "deleted").rename(run.folder.path)
    run.cancel().wait(200)
    assert raised == []

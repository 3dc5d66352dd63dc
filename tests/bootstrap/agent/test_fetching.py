"""Inputs from object stores, for several nodes that share a run's folder."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.agent import fetching
from jobsdk.bootstrap.agent.fetching import FetchError
from jobsdk.bootstrap.archive import command
from tests.bootstrap.runs import plan

pytestmark = pytest.mark.framework("stores")


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that this process starts again, and its Python."""
    monkeypatch.setattr(sys, "argv", [command()[-1]])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run/inputs").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("alpha")
    return tmp_path / "run"


def _plan(path: Path) -> Any:
    return plan("x", inputs={"data": {"type": "uri_folder", "mode": None, "uri": f"local://{path}"}})


def at_once(run: Path, path: Path, nodes: int = 4) -> list[Any]:
    """What each of several nodes finds, or the words of its error."""
    found: list[Any] = []

    def node() -> None:
        try:
            found.append(fetching.bring(_plan(path), "data", str(run)))
        except FetchError as error:
            found.append(str(error))

    threads = [threading.Thread(target=node) for _ in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_one_node_fetches_and_all_have_it(run: Path, tmp_path: Path) -> None:
    found = at_once(run, tmp_path / "data")
    assert len(found) == 4
    assert all(one == found[0] for one in found), "one copy, of which all know"
    assert (found[0]["files"], found[0]["bytes"]) == (1, 5)
    assert (run / "inputs/data/a.txt").read_text() == "alpha"
    assert sorted(path.name for path in (run / "inputs").iterdir()) == [".data.claim", "data"]


def test_all_nodes_know_why_there_is_none(run: Path, tmp_path: Path) -> None:
    found = at_once(run, tmp_path / "none")
    assert found == [f"input data: there is no local://{tmp_path}/none. Fix: correct the URL; case matters"] * 4
    assert [path.name for path in (run / "inputs").iterdir()] == [".data.claim"]


def test_another_node_takes_over_from_one_that_has_died(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_STALLED_S", 0.0)
    (run / "inputs/.data.claim").write_text("3: 17 bytes")
    assert fetching.bring(_plan(tmp_path / "data"), "data", str(run))["files"] == 1
    assert (run / "inputs/data/a.txt").read_text() == "alpha"

"""Checkpoints: kept with the run, put together from several ranks' parts, found again after a restart."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobsdk.train import Checkpoint, TrainError, checkpoints, get_checkpoint, get_context, report, reporting


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("RANK", "WORLD_SIZE", "LOCAL_", "JOBSDK_R", "JOBSDK_STORAGE", "TORCHELASTIC_", "MASTER_")):
            monkeypatch.delenv(name)
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has just begun."""
    monkeypatch.setattr(reporting, "_state", reporting._State())
    monkeypatch.setattr(checkpoints, "_states", {})


@pytest.fixture
def be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`be(RANK, RESTART)`: from now on this is a fresh process of a run of two ranks."""

    def become(rank: int, restart: int = 0, world: int = 2) -> None:
        forget(monkeypatch)
        run = {"JOBSDK_RUN_NAME": "r", "JOBSDK_RUN_DIR": f"{tmp_path}/run", "JOBSDK_RESTART_COUNT": restart}
        for name, value in {**run, "RANK": rank, "WORLD_SIZE": world}.items():
            monkeypatch.setenv(name, str(value))

    return become


def folder(tmp_path: Path, **files: str) -> Checkpoint:
    """A checkpoint with these files."""
    path = tmp_path / "made"
    path.mkdir(exist_ok=True)
    for old in path.rglob("*"):
        old.unlink()
    for name, text in files.items():
        (path / name).write_text(text)
    return Checkpoint.from_directory(path)


def name_of(checkpoint: Checkpoint | None) -> str | None:
    return os.path.basename(checkpoint.path) if checkpoint else None


def content(checkpoint: Checkpoint | None) -> dict[str, str]:
    assert checkpoint is not None
    return {path.name: path.read_text() for path in sorted(Path(checkpoint.path).iterdir())}


def test_it_is_copied_to_the_runs_outputs(be: Any, tmp_path: Path) -> None:
    be(0)
    assert get_checkpoint() is None
    made = folder(tmp_path, model="one")
    report({"loss": 1}, checkpoint=made)
    (Path(made.path) / "model").write_text("two")
    report({"loss": 1}, made)
    kept = tmp_path / "run/outputs/default/checkpoints"
    assert sorted(path.name for path in kept.iterdir()) == [".parts", "checkpoint_000000", "checkpoint_000001"]
    assert (kept / "checkpoint_000000/model").read_text() == "one"
    assert content(get_checkpoint()) == {"model": "two"}


def test_parts_of_several_ranks_come_together(be: Any, tmp_path: Path) -> None:
    for step in range(2):
        for rank in (1, 0):
            be(rank)
            for number in range(step + 1):
                report({}, folder(tmp_path, **{f"shard-{rank}": f"{number}"}))
    be(0, restart=1)
    assert content(get_checkpoint()) == {"shard-0": "1", "shard-1": "1"}


def test_after_a_restart_only_a_whole_one_counts_and_numbers_go_on(be: Any, tmp_path: Path) -> None:
    for rank in (0, 1):
        be(rank)
        report({}, folder(tmp_path, **{f"shard-{rank}": "a"}), step=40)
        if rank == 0:
            report({}, folder(tmp_path, **{f"shard-{rank}": "b"}))  # rank 1 does not come to its own
    for rank in (0, 1):
        be(rank, restart=1)
        assert name_of(get_checkpoint()) == "checkpoint_000000"
        report({}, folder(tmp_path, **{f"shard-{rank}": "c"}))
    assert name_of(get_checkpoint()) == "checkpoint_000002"
    be(0, restart=2)
    assert content(get_checkpoint()) == {"shard-0": "c", "shard-1": "c"}


def test_a_damaged_one_is_named_and_the_one_before_is_taken(
    be: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    be(0, world=1)
    for number in range(4):
        report({}, folder(tmp_path, model=f"good {number}", other="x"), step=number)
    kept = tmp_path / "run/outputs/default/checkpoints"
    (kept / "checkpoint_000003/model").write_text("evil 3")
    (kept / "checkpoint_000002/model").write_text("short")
    be(0, restart=1, world=1)
    assert name_of(get_checkpoint()) == "checkpoint_000001"
    said = capsys.readouterr().err
    assert "checkpoint_000003 is damaged: the content of model has changed; checkpoint_000002 is damaged: " in said
    assert said.endswith("model has 5 bytes, and had 6. Going back to checkpoint_000001\n")
    report({})
    assert reporting._state.next_step == 3
    (kept / "checkpoint_000001/model").unlink()
    (kept / "checkpoint_000000").rename(kept / "away")
    be(0, restart=2, world=1)
    assert get_checkpoint() is None
    assert "model: No such file or directory. There is no earlier one\n" in capsys.readouterr().err


def test_metadata_may_change(be: Any, tmp_path: Path) -> None:
    be(0, world=1)
    report({}, folder(tmp_path, model="x"))
    found = get_checkpoint()
    assert found is not None
    found.set_metadata({"epoch": 3})
    be(0, restart=1, world=1)
    found = get_checkpoint()
    assert found is not None
    assert found.get_metadata() == {"epoch": 3}


def test_those_of_earlier_versions_have_no_checksums(be: Any, tmp_path: Path) -> None:
    be(0, world=1)
    report({}, folder(tmp_path, model="x"))
    (note,) = tmp_path.glob("run/outputs/default/checkpoints/.parts/*/rank-0.json")
    old = {key: value for key, value in json.loads(note.read_text()).items() if key not in ("files", "metrics")}
    note.write_text(json.dumps(old))
    be(0, restart=1, world=1)
    assert content(get_checkpoint()) == {"model": "x"}


@pytest.mark.parametrize(
    ("rule", "staying"),
    [
        ({"newest": 2}, [4, 5]), ({"newest": 1}, [5]), ({"newest": 9}, [0, 1, 2, 3, 4, 5]), ({}, [0, 1, 2, 3, 4, 5]),
        ({"newest": 2, "best": 1, "metric": "loss"}, [1, 4, 5]),
        ({"newest": 2, "best": 1, "metric": "loss", "mode": "max"}, [3, 4, 5]),
        ({"newest": 1, "best": 2, "metric": "loss"}, [1, 5]),
        ({"newest": 1, "best": 3, "metric": "loss"}, [1, 4, 5]),
        ({"newest": 1, "best": 1, "metric": "nothing reported"}, [5]),
    ],
)  # fmt: skip
def test_the_newest_and_the_best_stay(
    rule: dict[str, Any], staying: list[int], be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(checkpoints.RETENTION, json.dumps(rule))
    for number, loss in enumerate((5, 1, 4, 9, 3, 2)):
        for rank in (0, 1):  # both parts of one before those of the next; after each second one the job restarts
            be(rank, restart=number // 2)
            checkpoints.state_of(get_context()).count = number
            report({"loss": loss} if rank == 0 else {}, folder(tmp_path, **{f"part-{rank}": str(number)}))
    kept = tmp_path / "run/outputs/default/checkpoints"
    names = [f"checkpoint_{number:06}" for number in staying]
    assert sorted(path.name for path in kept.iterdir()) == [".parts", *names]
    assert sorted(os.listdir(kept / ".parts")) == names


def test_a_rank_that_comes_late_begins_as_the_others_have(be: Any, tmp_path: Path) -> None:
    be(0)
    report({}, folder(tmp_path, model="x"))
    be(1)
    assert get_checkpoint() is None


def test_steps_go_on_where_the_checkpoint_was(be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be(0)
    report({}, folder(tmp_path, model="x"), step=40)
    report({}, step=41)
    be(0, restart=1)
    report({"loss": 1})
    assert reporting._state.next_step == 42


def test_names_of_ones_own_and_what_ray_made(be: Any, tmp_path: Path) -> None:
    be(0, world=1)
    of_ray = SimpleNamespace(path=folder(tmp_path, model="x").path)
    report({}, of_ray, checkpoint_dir_name="epoch=3")
    assert name_of(get_checkpoint()) == "epoch=3"
    with pytest.raises(TrainError, match="must be one name"):
        report({}, of_ray, checkpoint_dir_name="../x")
    kept = tmp_path / "run/outputs/default/checkpoints/mine"
    kept.mkdir()
    (kept / "model").write_text("written there at once")
    report({}, str(kept), checkpoint_dir_name="mine")
    assert content(get_checkpoint()) == {"model": "written there at once"}


def test_in_a_place_that_all_nodes_see(be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be(0)
    monkeypatch.setenv("JOBSDK_STORAGE_PATH", f"{tmp_path}/shared")
    report({}, folder(tmp_path, model="x"))
    assert (tmp_path / "shared/r/checkpoints/checkpoint_000000/model").exists()


def test_alone_an_earlier_training_is_not_taken_for_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report({}, folder(tmp_path, model="first"))
    assert content(get_checkpoint()) == {"model": "first"}
    forget(monkeypatch)
    monkeypatch.setattr(checkpoints, "_own_start", lambda: "another process")
    assert get_checkpoint() is None
    report({}, folder(tmp_path, model="second"))
    assert name_of(get_checkpoint()) == "checkpoint_000001"
    assert (tmp_path / "outputs/checkpoints/checkpoint_000000/model").read_text() == "first"


def test_torchrun_starts_its_processes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    report({}, folder(tmp_path, model="x"))
    forget(monkeypatch)
    assert get_checkpoint() is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert content(get_checkpoint()) == {"model": "x"}


def test_a_copy_that_fails_leaves_nothing(be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be(0)
    made = folder(tmp_path, model="x")
    monkeypatch.setattr("jobsdk.train.storage.Folder.put", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        report({}, made)
    assert list((tmp_path / "run/outputs/default/checkpoints").iterdir()) == []
    assert get_checkpoint() is None


def test_what_a_killed_process_of_the_same_number_has_copied_is_not_taken(be: Any, tmp_path: Path) -> None:
    be(1)
    partly = tmp_path / f"run/outputs/default/checkpoints/.partly-1-{os.getpid()}"
    partly.mkdir(parents=True)
    (partly / "of-another").write_text("x")
    report({}, folder(tmp_path, model="y"))
    (kept,) = (path for path in partly.parent.iterdir() if path.name != ".parts")
    assert [path.name for path in kept.iterdir()] == ["model"]


def test_rays_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folder(tmp_path, model="x")
    assert made.get_metadata() == {}
    made.set_metadata({"epoch": 3})
    made.update_metadata({"best": True})
    copy = Checkpoint(made.to_directory(tmp_path / "copy"))
    assert copy.get_metadata() == {"epoch": 3, "best": True}
    with copy.as_directory() as path:
        assert (Path(path) / "model").read_text() == "x"
    assert Checkpoint(tmp_path / "copy") == copy
    assert copy != made
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert sorted(os.listdir(made.to_directory())) == [".metadata.json", "model"]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setenv("JOBSDK_STORAGE_PATH", f"{tmp_path}/taken")
    with pytest.raises(
        TrainError, match=r"no checkpoint can be kept in .*/taken/checkpoints: Not a directory. Fix: name"
    ):
        report({}, folder(tmp_path, model="1"))

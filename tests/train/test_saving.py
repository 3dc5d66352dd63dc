"""Checkpoints that are written beside the training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.train import Checkpoints, TrainError, get_checkpoint, report, reporting, storage
from tests import stores
from tests.bootstrap.runs import PYTORCH, LocalRun, plan
from tests.train.test_checkpoints import be, content, folder, forget, nobody

__all__ = ["be", "nobody"]  # fixtures


def reports(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "reports.log").read_text().splitlines()]


def test_a_state_comes_back_after_a_restart(be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBSDK_REPORTS", f"{tmp_path}/reports.log")
    be(0, world=1)
    with Checkpoints() as saved:
        assert saved.load() is None
        state = {"weights": [1.0, 2.0], "nested": {"step": 3}, "pair": (1, "x")}
        saved.save(state, {"loss": 0.5}, step=7)
        state["weights"].append(3.0)  # type: ignore[attr-defined]  # the training goes on
    be(0, restart=1, world=1)
    assert Checkpoints().load() == {"weights": [1.0, 2.0], "nested": {"step": 3}, "pair": (1, "x")}
    begun, done = reports(tmp_path)
    assert (begun["step"], begun["metrics"], begun["checkpoint"]) == (7, {"loss": 0.5}, None)
    assert (done["step"], done["metrics"], Path(done["checkpoint"]).name) == (7, {}, "checkpoint_000000")


def test_the_rank_waits_only_for_the_copy(be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()
    put = storage.Folder.put

    def slow(self: storage.Folder, staged: str, name: str) -> None:
        assert written.wait(60)
        put(self, staged, name)

    monkeypatch.setattr(storage.Folder, "put", slow)
    be(0, world=1)
    saved = Checkpoints()
    saved.save({"step": 0})
    report({"loss": 1})  # the training goes on, and counts its steps on
    assert reporting._state.next_step == 2
    assert get_checkpoint() is None
    written.set()
    saved.wait()
    assert reporting._state.next_step == 2
    assert saved.load() == {"step": 0}


def test_what_goes_wrong_beside_the_training_is_raised_by_the_next_call(
    be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    be(0, world=1)
    saved = Checkpoints()
    with monkeypatch.context() as patched:
        patched.setattr(storage.Folder, "put", full)
        saved.save({"step": 0})
        with pytest.raises(OSError, match="No space left"):
            saved.save({"step": 1})
    assert "Checkpoints.save(): OSError: [Errno 28] No space left on device" in capsys.readouterr().err
    saved.save({"step": 2})
    saved.wait()
    assert saved.load() == {"step": 2}


def test_each_rank_gets_its_own(be: Any) -> None:
    for rank in (0, 1):
        be(rank)
        with Checkpoints() as saved:
            saved.save({"rank": rank})
    for rank in (1, 0):
        be(rank, restart=1)
        assert Checkpoints().load() == {"rank": rank}
    be(2, restart=1, world=3)
    with pytest.raises(TrainError, match=r"has the states of 2 ranks, and none of rank 2 of 3. Fix: start as many"):
        Checkpoints().load()


def test_all_ranks_get_the_only_one(be: Any) -> None:
    be(0, world=4)
    with Checkpoints() as saved:
        saved.save({"step": 5})
    be(6, restart=1, world=8)
    assert Checkpoints().load() == {"step": 5}


def test_one_of_another_run(be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be(0, world=1)
    with Checkpoints() as saved:
        saved.save({"step": 5})
    found = get_checkpoint()
    assert found is not None
    monkeypatch.setenv("JOBSDK_RUN_NAME", "another")
    forget(monkeypatch)
    assert Checkpoints().load() is None
    assert Checkpoints().load(path=found.path) == {"step": 5}


def test_those_that_need_not_stay_are_deleted(be: Any, tmp_path: Path) -> None:
    be(0, world=1)
    with Checkpoints(keep=2, best="loss") as saved:
        for step, loss in enumerate((3.0, 1.0, 2.0, 4.0, 5.0)):
            saved.save({"step": step}, {"loss": loss})
    kept = sorted(path.name for path in (tmp_path / "run/outputs/default/checkpoints").glob("checkpoint_*"))
    assert kept == ["checkpoint_000001", "checkpoint_000003", "checkpoint_000004"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"keep": 0}, "keep must be a whole number from 1"), ({"keep": True}, "keep must be"),
        ({"keep": "3"}, "keep must be"), ({"best": "loss"}, r"best has no effect without keep.*Fix: Checkpoints\(keep"),
        ({"keep": 1, "mode": "least"}, "mode must be 'min' or 'max'"),
    ],
)  # fmt: skip
def test_mistakes_are_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainError, match=words):
        Checkpoints(**wrong)


# -- object stores ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with stores.s3_server() as url:
        yield url


def test_in_an_object_store_another_machine_finds_them(
    server: str, be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.S3(server, "checkpoints")
    store.make_bucket()
    stores.use(store, monkeypatch)
    monkeypatch.setenv("JOBSDK_STORAGE_PATH", "s3://checkpoints/runs")
    be(0, world=1)
    with Checkpoints(keep=2) as saved:
        for step in range(3):
            saved.save({"step": step})
    report({}, folder(tmp_path, model="whole"))
    names = {name.split("/")[0] for name in store.objects("runs/r/checkpoints")}
    assert names == {".parts", "checkpoint_000002", "checkpoint_000003"}
    machine = tmp_path / "another machine"
    machine.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(machine))
    be(0, restart=1, world=1)
    assert content(get_checkpoint()) == {"model": "whole"}
    store.put("runs/r/checkpoints/checkpoint_000003/model", b"other")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    be(0, restart=1, world=1)
    assert Checkpoints().load() == {"step": 2}, "the newest is damaged"


def test_a_store_without_its_package_is_named(be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBSDK_STORAGE_PATH", "s3://checkpoints/runs")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    be(0, world=1)
    with pytest.raises(TrainError, match=r"no checkpoint can be kept in s3://checkpoints/runs/r/checkpoints: .*Fix: "):
        report({}, folder(tmp_path, model="x"))
    with pytest.raises(TrainError, match="no checkpoint can be kept"):
        Checkpoints().load()


# -- torch -----------------------------------------------------------------------------------------------------------

TENSORS = """
    import os, torch
    from jobsdk.train import Checkpoints
    model = torch.nn.Linear(2, 2)
    saved = Checkpoints()
    before = model.weight.detach().clone()
    saved.save({"model": model.state_dict(), "step": 1})
    with torch.no_grad():
        model.weight.zero_()  # the next step of the training
    saved.wait()
    os.environ["JOBSDK_RESTART_COUNT"] = "1"
    found = saved.load()
    assert found["step"] == 1 and torch.equal(found["model"]["weight"], before), found
    model.load_state_dict(found["model"])
    print("equal")
"""

SHARDED = """
    import os, sys, torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from jobsdk.train import Checkpoints, destroy_process_group, get_context, init_process_group, get_checkpoint
    init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(32.0).reshape(8, 4)
    with Checkpoints(sharded=True, keep=1) as saved:
        if len(sys.argv) == 1:  # the first attempt is killed when the second checkpoint is there
            if get_context().restart_count == 0:
                for step in (1, 2):
                    saved.save({"weight": distribute_tensor(whole * step, mesh, [Shard(0)]), "step": step}, step=step)
                saved.wait()
                dist.barrier()
                os._exit(9)
            state = {"weight": distribute_tensor(torch.zeros(8, 4), mesh, [Shard(0)]), "step": 0}
            assert saved.load(state) is state
        else:
            state = {"weight": distribute_tensor(torch.zeros(8, 4), mesh, [Shard(0)]), "step": 0}
            saved.load(state, path=sys.argv[1])
        assert state["step"] == 2, state
        assert torch.equal(state["weight"].full_tensor(), whole * 2)
        print("equal", tuple(state["weight"].to_local().shape))
    destroy_process_group()
"""


@pytest.mark.framework("torch")
def test_tensors_are_copied_before_the_training_changes_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(TENSORS))
    variables = {"JOBSDK_RUN_DIR": f"{tmp_path}/run", "JOBSDK_RUN_NAME": "r"}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("equal\n", 0), done.stderr


@pytest.mark.framework("torch")
def test_a_sharded_state_is_read_by_another_world_size(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SHARDED))
    restarts = {**plan("true")["restarts"], "max": 1}
    four = dict(PYTORCH, processes=4)
    first = LocalRun(tmp_path / "first", plan(f"{sys.executable} {script}", 1, four, restarts=restarts))
    assert first.wait() == 0
    assert [(first.folder / f"logs/node-0/rank-{rank}.restart-1.log").read_text() for rank in range(4)] == [
        "equal (2, 4)\n"
    ] * 4
    (kept,) = first.folder.glob("outputs/*/checkpoints/checkpoint_*")
    assert kept.name == "checkpoint_000001"
    second = LocalRun(tmp_path / "second", plan(f"{sys.executable} {script} {kept}", nodes=1))
    assert second.wait() == 0
    assert [second.log(rank) for rank in range(2)] == ["equal (4, 4)\n"] * 2
    (part,) = [path for path in kept.iterdir() if path.name.startswith("__3_")]
    part.write_bytes(b"x" * part.stat().st_size)
    notes = json.loads((kept.parent / f".parts/{kept.name}/rank-3.json").read_text())
    assert storage.damage(str(kept), {3: notes}) == f"the content of {part.name} has changed"


@pytest.mark.framework("torch")
def test_a_sharded_state_needs_a_group_and_a_folder(be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be(0, world=1)
    saved = Checkpoints(sharded=True)
    with pytest.raises(TrainError, match=r"needs the process group. Fix: call init_process_group\(\) first"):
        saved.save({"step": 0})
    report({}, folder(tmp_path, model="x"))
    with pytest.raises(TrainError, match=r"is loaded into the present one. Fix: load\(\{'model'"):
        saved.load()
    monkeypatch.setenv("JOBSDK_STORAGE_PATH", "memory://checkpoints")
    with pytest.raises(TrainError, match=r"cannot be kept in memory://.*Fix: set JOBSDK_STORAGE_PATH to a folder"):
        saved.save({"step": 0})

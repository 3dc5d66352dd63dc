from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any, cast

import pytest

from jobsdk.bootstrap.spec.store_messages import Request
from jobsdk.bootstrap.transport import store
from jobsdk.bootstrap.transport.store import StoreError, fetch, upload

pytestmark = pytest.mark.framework("stores")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("alpha")
    (folder / "deep/b.txt").write_text("beta")
    return folder


def test_a_folder_is_copied_with_its_structure(source: Path, tmp_path: Path) -> None:
    moved = fetch(f"local://{source}", str(tmp_path / "target"), False)
    assert moved == {"files": 2, "bytes": 9}
    assert (tmp_path / "target/deep/b.txt").read_text() == "beta"


def test_a_file_keeps_its_name(source: Path, tmp_path: Path) -> None:
    assert fetch(f"local://{source}/a.txt", str(tmp_path / "target"), True) == {"files": 1, "bytes": 5}
    assert (tmp_path / "target/a.txt").read_text() == "alpha"


def test_a_disk_without_room_is_told_before_anything_is_copied(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 2, 8))
    target = tmp_path / "target"
    with pytest.raises(StoreError, match=r"disk of .*target is full: 9 B needed, 8 B free. Fix: free space"):
        fetch(f"local://{source}", str(target), False)
    assert not list(target.iterdir())


def test_what_may_pass_is_tried_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.local import LocalFileSystem

    tries, get_file = [], LocalFileSystem.get_file

    def torn(self: LocalFileSystem, place: str, path: str) -> None:
        tries.append(place)
        get_file(self, place, path)
        if len(tries) == 1:
            Path(path).write_text("al")

    monkeypatch.setattr(LocalFileSystem, "get_file", torn)
    monkeypatch.setattr(store, "_FIRST_PAUSE_S", 0.0)
    assert fetch(f"local://{source}/a.txt", str(tmp_path / "target"), True) == {"files": 1, "bytes": 5}
    assert (tmp_path / "target/a.txt").read_text() == "alpha"
    assert len(tries) == 2


def test_what_stays_torn_is_an_error(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.local import LocalFileSystem

    monkeypatch.setattr(LocalFileSystem, "get_file", lambda self, place, path: Path(path).write_text("al"))
    monkeypatch.setattr(store, "_FIRST_PAUSE_S", 0.0)
    with pytest.raises(StoreError, match="ended after 2 of 5 bytes"):
        fetch(f"local://{source}/a.txt", str(tmp_path / "target"), True)


def request(source: Path, tmp_path: Path, **more: Any) -> Request:
    given = {"operation": "upload", "url": f"local://{tmp_path}/store", "path": str(source), "is_file": False}
    return cast("Request", {**given, "state": str(tmp_path / "state.json"), "mark": {"run": "r", "node": 0}, **more})


def test_only_what_is_new_is_uploaded_again(source: Path, tmp_path: Path) -> None:
    assert upload(request(source, tmp_path)) == {"files": 2, "bytes": 9}
    assert upload(request(source, tmp_path)) == {"files": 0, "bytes": 0}
    (source / "a.txt").write_text("alpha 2")
    assert upload(request(source, tmp_path)) == {"files": 1, "bytes": 7}
    assert (tmp_path / "store/a.txt").read_text() == "alpha 2"
    mark = json.loads((tmp_path / "store/.jobsdk-upload.json").read_text())
    assert mark == {"run": "r", "node": 0, "files": {"a.txt": 7, "deep/b.txt": 4}}


def test_nothing_is_uploaded_where_nothing_was_written(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert upload(request(tmp_path / "empty", tmp_path)) == {"files": 0, "bytes": 0}
    assert not (tmp_path / "store").exists()


def test_what_tells_that_a_checkpoint_is_whole_comes_last(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    (source / "checkpoints/.parts/one").mkdir(parents=True)
    (source / "checkpoints/.parts/one/rank-0.json").write_text("{}")
    (source / "checkpoints/one").mkdir()
    (source / "checkpoints/one/weights").write_text("w")
    order, put_file = [], LocalFileSystem.put_file

    def noted(self: LocalFileSystem, path: str, place: str) -> None:
        order.append(os.path.relpath(path, source))
        put_file(self, path, place)

    monkeypatch.setattr(LocalFileSystem, "put_file", noted)
    below = ["checkpoints/one", "checkpoints/.parts/one"]
    assert upload(request(source, tmp_path, below=below, mark=None)) == {"files": 2, "bytes": 3}
    assert order == ["checkpoints/one/weights", "checkpoints/.parts/one/rank-0.json"]
    assert not (tmp_path / "store/.jobsdk-upload.json").exists()


def test_a_checkpoint_that_is_deleted_meanwhile_is_passed_over(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    put_file = LocalFileSystem.put_file

    def late(self: LocalFileSystem, path: str, place: str) -> None:
        if path.endswith("b.txt"):
            os.unlink(path)
        put_file(self, path, place)

    monkeypatch.setattr(LocalFileSystem, "put_file", late)
    upload(request(source, tmp_path))
    mark = json.loads((tmp_path / "store/.jobsdk-upload.json").read_text())
    assert mark["files"] == {"a.txt": 5}


def test_an_object_of_another_size_is_uploaded_again_and_then_an_error(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    monkeypatch.setattr(store, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(LocalFileSystem, "put_file", lambda self, path, place: Path(place).write_text("al"))
    with pytest.raises(StoreError, match=r"store/a.txt has 2 of 5 bytes"):
        upload(request(source / "a.txt", tmp_path, url=f"local://{tmp_path}/store/a.txt", is_file=True))
    monkeypatch.undo()
    assert upload(request(source, tmp_path)) == {"files": 2, "bytes": 9}
    assert (tmp_path / "store/a.txt").read_text() == "alpha"

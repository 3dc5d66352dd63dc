from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from jobsdk.bootstrap.transport import store
from jobsdk.bootstrap.transport.store import StoreError, fetch

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

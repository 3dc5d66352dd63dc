"""What Download sends."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from pathlib import Path

from jobsdk.ui.zipped import zipped


def archive(top: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(b"".join(zipped(top, ("logs", "outputs")))))


def test_files_of_any_name_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    top, secret = tmp_path / "run", tmp_path / "secret"
    secret.write_text("secret")
    (top / "logs").mkdir(parents=True)
    (top / "outputs/deep").mkdir(parents=True)
    (top / "logs/empty").touch()
    (top / "outputs/deep/a\nb <ü>").write_text("text")
    Path(os.fsdecode(os.fsencode(top / "outputs") + b"/\xff\xfe")).write_text("no utf-8")
    os.utime(top / "logs/empty", (0, 0))  # before a zip file's first year
    (top / "outputs/link").symlink_to(secret)
    (top / "outputs/folder").symlink_to(tmp_path)
    os.mkfifo(top / "outputs/pipe")
    with archive(top) as found:
        assert found.testzip() is None
        content = {name: found.read(name) for name in found.namelist()}
    left = content.pop("left-out.txt").decode()
    assert content == {"logs/empty": b"", "outputs/deep/a\nb <ü>": b"text", "outputs/??": b"no utf-8"}
    assert sorted(line.partition(":")[0] for line in left.splitlines()) == [
        "outputs/folder", "outputs/link", "outputs/pipe",
    ]  # fmt: skip


def test_large_files_are_sent_piece_by_piece(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "outputs").mkdir()
    with open(tmp_path / "outputs/model", "wb") as file:
        file.truncate(100 << 20)
    tracemalloc.start()
    parts = [len(part) for part in zipped(tmp_path, ("logs", "outputs"))]
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert len(parts) > 50


def test_who_stops_reading_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs/model").write_bytes(os.urandom(3 << 20))
    before = len(os.listdir("/proc/self/fd"))
    sending = zipped(tmp_path, ("outputs",))
    assert next(sending)
    sending.close()
    assert len(os.listdir("/proc/self/fd")) == before

"""Bringing a job's code into its run folder: from a folder, an archive, a URL; once, whoever comes first."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.agent import code
from jobsdk.bootstrap.archive import command
from tests.bootstrap.runs import plan


def _told(event: str, **facts: object) -> None:
    assert event == "code_staged"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/train.py").write_text("print(1)\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("deep/train.py")
    return folder


@pytest.fixture
def archive(source: Path, tmp_path: Path) -> Path:
    path = tmp_path / "code.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(source, ".")
    return path


def _digest(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def _plan(patience: float) -> Any:
    return plan("x", rendezvous_timeout_s=patience)


def _bring(source: Path | str, run: Path, digest: str = "") -> Path:
    run.mkdir(exist_ok=True)
    return Path(code.bring(_plan(5.0), str(source), digest, str(run), _told))


def _is_whole(folder: Path) -> bool:
    assert (folder / "deep/train.py").read_text() == "print(1)\n"
    assert os.access(folder / "run.sh", os.X_OK)
    return os.readlink(folder / "link") == "deep/train.py"


def test_from_a_folder_whose_files_are_not_touched_by_the_run(source: Path, tmp_path: Path) -> None:
    found = _bring(source, tmp_path / "run")
    assert _is_whole(found)
    (found / "deep/train.py").write_text("changed")
    assert (source / "deep/train.py").read_text() == "print(1)\n"


def test_from_an_archive_and_from_a_url(archive: Path, tmp_path: Path) -> None:
    assert _is_whole(_bring(archive, tmp_path / "a", _digest(archive)))
    handler = partial(SimpleHTTPRequestHandler, directory=str(archive.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/code.tar.gz?sig=secret"
            assert _is_whole(_bring(url, tmp_path / "b", _digest(archive)))
            with pytest.raises(
                code.CodeError, match=r"code\.tar\.gz cannot be brought here: its content has changed"
            ) as e:
                _bring(url, tmp_path / "c", "sha256:" + "0" * 64)
            assert "secret" not in str(e.value)
        finally:
            server.shutdown()


def test_a_missing_or_broken_source_is_said_to_all_nodes(tmp_path: Path) -> None:
    for name, content in (
        ("missing.tar.gz", None),
        ("broken.tar.gz", b"\x1f\x8bnot an archive"),
        ("cut.tar", b"x" * 9),
    ):
        path, run = tmp_path / name, tmp_path / f"run-{name}"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(code.CodeError, match="cannot be brought here") as first:
            _bring(path, run)
        with pytest.raises(code.CodeError) as second:
            _bring(path, run)
        assert str(second.value) == str(first.value)


def test_an_archive_may_not_write_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(__file__, "../evil.py")
    with pytest.raises(code.CodeError, match="a member outside its folder"):
        _bring(path, tmp_path / "run")
    assert not (tmp_path / "run/evil.py").exists()


def test_of_many_nodes_with_one_folder_one_copies_and_all_have_it(source: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    told: list[str] = []
    found: list[str] = []

    def node() -> None:
        found.append(code.bring(_plan(120.0), str(source), "", str(run), lambda event, **facts: told.append(event)))

    threads = [threading.Thread(target=node) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {str(run / "code")}
    assert len(found) == 8
    assert told == ["code_staged"]


def test_who_waits_for_a_node_that_died_says_so(source: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "code.claim").touch()
    with pytest.raises(code.CodeError, match="another node has been copying the code for 0 s"):
        code.bring(_plan(0.1), str(source), "", str(run), _told)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that this process starts again."""
    monkeypatch.setattr(sys, "argv", [command()[-1]])


@pytest.mark.usefixtures("program")
@pytest.mark.framework("stores")
@pytest.mark.parametrize("form", ["folder", "tar", "zip"])
def test_from_an_object_store(source: Path, archive: Path, tmp_path: Path, form: str) -> None:
    (source / "link").unlink()
    where = {"folder": source, "tar": archive, "zip": tmp_path / "code.zip"}[form]
    if form == "zip":
        shutil.make_archive(str(tmp_path / "code"), "zip", source)
    found = _bring(f"local://{where}", tmp_path / "run", _digest(archive) if form == "tar" else "")
    assert (found / "deep/train.py").read_text() == "print(1)\n"
    assert not (tmp_path / "run/code.fetched").exists()


@pytest.mark.usefixtures("program")
@pytest.mark.framework("stores")
def test_code_that_is_not_in_the_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(code.CodeError, match=r"the code at local:///none.zip cannot be brought here: there is no"):
        _bring("local:///none.zip", tmp_path / "run")

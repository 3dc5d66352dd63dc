"""Locks on the GPUs of a machine, held by processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobsdk.bootstrap.system import gpu_locks

NOTE = {"run": "first", "user": "me"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gpu_locks, "FOLDER", str(tmp_path / "locks"))
    monkeypatch.setattr(gpu_locks, "_PATIENCE_S", 0.1)
    return tmp_path / "locks"


def test_gpus_are_shared_out() -> None:
    first = gpu_locks.claim(["0", "1", "GPU-ab/c"], 2, NOTE)
    assert first.gpus == ["0", "1"]
    second = gpu_locks.claim(["0", "1", "GPU-ab/c"], 1, NOTE)
    assert second.gpus == ["GPU-ab/c"]
    with pytest.raises(gpu_locks.Taken, match=r"GPU 0, GPU 1, GPU GPU-ab_c are in use by run first of me since \d{4}-"):
        gpu_locks.claim(["0", "1", "GPU-ab/c"], 1, NOTE)
    gpu_locks.release(first)
    again = gpu_locks.claim(["0", "1"], None, NOTE)
    assert again.gpus == ["0", "1"]
    gpu_locks.release(again)
    gpu_locks.release(second)


def test_nothing_is_held_of_a_claim_that_fails() -> None:
    first = gpu_locks.claim(["1"], None, NOTE)
    with pytest.raises(gpu_locks.Taken):
        gpu_locks.claim(["0", "1"], None, NOTE)
    gpu_locks.release(gpu_locks.claim(["0"], None, NOTE))
    gpu_locks.release(first)


def test_a_whole_machine_and_its_gpus_exclude_one_another() -> None:
    machine = gpu_locks.claim(None, None, {"run": "whole", "user": "me"})
    for gpus in (None, ["0"], []):
        with pytest.raises(gpu_locks.Taken, match="it is in use by run whole of me"):
            gpu_locks.claim(gpus, None, NOTE)
    gpu_locks.release(machine)
    gpu = gpu_locks.claim(["0"], None, NOTE)
    with pytest.raises(gpu_locks.Taken, match="GPU 0 is in use by run first of me"):
        gpu_locks.claim(None, None, NOTE)
    gpu_locks.release(gpu)


def test_a_look_changes_nothing(folder: Path) -> None:
    assert gpu_locks.look(["0"], None) is None
    assert gpu_locks.look(None, None) is None
    assert not folder.exists()
    held = gpu_locks.claim(["0"], None, NOTE)
    files = sorted(path.name for path in folder.iterdir())
    assert "run first" in str(gpu_locks.look(["0"], None))
    assert gpu_locks.look(["1"], None) is None
    assert sorted(path.name for path in folder.iterdir()) == files
    gpu_locks.release(held)


def test_who_only_looks_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(gpu_locks, "_PATIENCE_S", 10.0)
    looking = gpu_locks.claim(["0"], None, NOTE)
    timer = threading.Timer(0.1, gpu_locks.release, [looking])
    timer.start()
    gpu_locks.release(gpu_locks.claim(["0"], None, NOTE))
    timer.join()


_HOLDER = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from jobsdk.bootstrap.system import gpu_locks as claims
claims.keep(os.environ)
child = subprocess.Popen(["sleep", "600"], close_fds=False, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_killed_process_frees_what_it_was_started_with(folder: Path) -> None:
    """Although what it had started lives on."""
    held = gpu_locks.claim(["0"], None, NOTE)
    for file in held.files:
        os.set_inheritable(file, True)
    root = str(Path(gpu_locks.__file__).parents[3])
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, root],
        env={**os.environ, gpu_locks.HELD: ",".join(map(str, held.files))},
        pass_fds=held.files,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    gpu_locks.release(held)
    assert gpu_locks.look(["0"], None) is not None
    process.kill()
    process.communicate()
    assert gpu_locks.look(["0"], None) is None
    os.kill(child, signal.SIGKILL)


def test_other_users_can_lock_the_same_file(folder: Path) -> None:
    mask = os.umask(0o077)
    try:
        gpu_locks.release(gpu_locks.claim(["0"], None, NOTE))
    finally:
        os.umask(mask)
    assert oct(folder.stat().st_mode & 0o7777) == "0o1777"
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o666"}

"""Other users of the same machine: what they put where all may write harms nobody's runs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jobsdk.bootstrap.system import gpu_locks

_OTHER, _MINE = 65533, 65532  # users that no machine has
_NOTE = {"run": "mine", "user": "me"}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder as /tmp is, in which the locks are kept, and a home of the user who runs the jobs."""
    with TemporaryDirectory(dir="/tmp") as name:  # a test's own folder for temporary files is closed to others
        folder = Path(name)
        folder.chmod(0o1777)
        (folder / "home").mkdir()
        if os.geteuid() == 0:
            os.chown(folder / "home", _MINE, _MINE)
        monkeypatch.setenv("HOME", str(folder / "home"))
        monkeypatch.setattr(gpu_locks, "FOLDER", str(folder / "jobsdk-locks"))
        monkeypatch.setattr(gpu_locks, "_PATIENCE_S", 0.1)
        yield folder


def _as_user(user: int, act: Callable[[], None]) -> None:
    """Do it in a process of that user; what it raises fails the test."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _entry(name: str) -> Path:
    return Path(gpu_locks.FOLDER, f"{os.uname().nodename}.{name}")


def _claim_twice() -> None:
    """A claim is held against a second one."""
    held = gpu_locks.claim(["0"], None, _NOTE)
    with pytest.raises(gpu_locks.Taken, match="GPU 0 is in use by run mine of me"):
        gpu_locks.claim(["0"], None, _NOTE)
    assert "run mine of me" in str(gpu_locks.look(["0"], None))
    gpu_locks.release(held)


def _closed_folder() -> None:
    os.mkdir(gpu_locks.FOLDER, 0o700)


def _file() -> None:
    Path(gpu_locks.FOLDER).touch()


def _link() -> None:
    os.mkdir(f"{gpu_locks.FOLDER}-of-another")
    os.chmod(f"{gpu_locks.FOLDER}-of-another", 0o1777)
    os.symlink(f"{gpu_locks.FOLDER}-of-another", gpu_locks.FOLDER)


@needs_root
@pytest.mark.parametrize(("squat", "kind"), [(_closed_folder, "folder"), (_file, "file"), (_link, "link")])
def test_who_comes_first_cannot_block_the_jobs_of_others(squat: Callable[[], None], kind: str, shared: Path) -> None:
    _as_user(_OTHER, squat)
    _as_user(_MINE, _claim_twice)
    trouble = str(gpu_locks.trouble())
    assert f"is a {kind} of user {_OTHER} with mode " in trouble
    assert trouble.endswith("Fix: let its owner or root delete it")
    assert (shared / f"home/.cache/jobsdk/locks/{_entry('gpu-0').name}").exists()
    redirected = shared / "jobsdk-locks-of-another"
    assert not redirected.exists() or not list(redirected.iterdir())


@needs_root
def test_users_share_a_folder_that_is_open_to_all() -> None:
    _as_user(_OTHER, lambda: gpu_locks.release(gpu_locks.claim(["0"], None, {"run": "theirs", "user": "them"})))
    assert gpu_locks.trouble() is None
    held = gpu_locks.claim(["0"], None, _NOTE)  # as root

    def find_it_taken() -> None:
        with pytest.raises(gpu_locks.Taken, match="GPU 0 is in use by run mine of me"):
            gpu_locks.claim(["0"], None, _NOTE)

    _as_user(_MINE, find_it_taken)
    gpu_locks.release(held)
    _as_user(_MINE, _claim_twice)


def _in_place_of_a_lock(put: Callable[[str], None]) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(gpu_locks.FOLDER)
    os.chmod(gpu_locks.FOLDER, 0o1777)
    put(str(_entry("gpu-0")))


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
def test_a_lock_writes_to_no_other_file(kind: str, shared: Path) -> None:
    mine = shared / "home/precious"
    mine.write_text("mine")
    put: dict[str, Callable[[str], None]] = {
        "link": lambda path: os.symlink(mine, path),
        "hard link": lambda path: os.link(mine, path),
        "pipe": os.mkfifo,
        "folder": os.mkdir,
    }
    _in_place_of_a_lock(put[kind])
    with pytest.raises(
        gpu_locks.Taken, match=r"gpu-0 in the folder of locks belongs to \S+ and is no lock file .* Fix: "
    ):
        gpu_locks.claim(["0"], None, _NOTE)
    assert mine.read_text() == "mine"
    gpu_locks.release(gpu_locks.claim(["1"], None, _NOTE))


@pytest.mark.parametrize(
    "note",
    [
        {"run": "\x1b]0;owned\x07", "user": "\x1b]52;c;cm0=\x07\x9b2J\u202e", "since": 0},
        {"run": "x", "user": "y", "since": 1e300},
        {"run": ["x" * 5000], "user": {}, "since": "\x1b[2J"},
        "[" * 4000,
    ],
)
def test_a_note_reaches_a_terminal_as_plain_text(note: object) -> None:
    def put(path: str) -> None:
        Path(path).write_text(note if isinstance(note, str) else json.dumps(note))

    _in_place_of_a_lock(put)
    with open(_entry("gpu-0"), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = str(gpu_locks.look(["0"], None))
    assert said.startswith("GPU 0 is in use by ")
    assert said.isprintable()
    assert len(said) < 300


def test_a_name_of_a_lock_does_too() -> None:
    _in_place_of_a_lock(lambda _: Path(_entry("gpu-\x1b]0;owned\x07")).touch())
    with open(_entry("gpu-\x1b]0;owned\x07"), "r+b") as file, open(_entry("host"), "w") as host:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.flock(host, fcntl.LOCK_SH)
        said = str(gpu_locks.look(None, None))
    assert "GPU ?]0;owned? is in use" in said

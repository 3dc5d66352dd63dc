"""The rights of what jobsdk makes do not depend on the umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsdk.bootstrap.system import private


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct, autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def write(path: Path) -> None:
    with open(path, "a", opener=private.opener) as file:
        file.write("x")


def test_folders_and_files_are_for_their_owner(tmp_path: Path) -> None:
    folder = tmp_path / "home/runs/r"
    private.make_folder(str(folder))
    private.make_within(str(folder / "logs/node-0"))
    write(folder / "logs/node-0/rank-0.log")
    os.close(private.open_file(str(folder / "tool"), os.O_WRONLY | os.O_CREAT, executable=True))
    assert [mode(path) for path in (folder.parent.parent, folder.parent, folder, folder / "logs/node-0")] == [0o700] * 4
    assert mode(folder / "logs/node-0/rank-0.log") == 0o600
    assert mode(folder / "tool") == 0o700


def test_a_group_gets_what_the_folder_gives_it(tmp_path: Path) -> None:
    folder = tmp_path / "runs/r"
    private.make_folder(str(folder) + "/", 0o2770)
    private.make_within(str(folder / "logs"))
    write(folder / "logs/rank-0.log")
    os.close(private.open_file(str(folder / "tool"), os.O_WRONLY | os.O_CREAT, executable=True))
    assert (mode(folder), mode(folder / "logs"), mode(folder / "logs/rank-0.log")) == (0o2770, 0o2770, 0o660)
    assert mode(folder / "tool") == 0o770


def test_what_exists_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    folder.chmod(0o750)
    write(folder / "new")
    (folder / "old").write_text("y")
    (folder / "old").chmod(0o604)
    (folder / "link").symlink_to("target")
    private.make_folder(str(folder), 0o700)
    write(folder / "old")
    write(folder / "link")
    assert (mode(folder), mode(folder / "old"), mode(folder / "new")) == (0o750, 0o604, 0o640)
    assert (folder / "old").read_text() == "yx"
    assert (folder / "target").read_text() == "x"
    with pytest.raises(FileExistsError):
        os.close(private.open_file(str(folder / "old"), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    with pytest.raises(FileExistsError):
        private.make_folder(str(folder / "old/below"))


def test_in_a_folder_that_anybody_may_write_the_umask_decides(tmp_path: Path, umask: int) -> None:
    tmp_path.chmod(0o777)
    private.make_within(str(tmp_path / "a/b"))
    write(tmp_path / "file")
    assert mode(tmp_path / "file") == 0o666 & ~umask
    assert mode(tmp_path / "a") == 0o777 & ~umask


@pytest.mark.parametrize(("folder_mode", "of_file", "of_folder"), [(0o700, 0o600, 0o700), (0o750, 0o640, 0o750)])
def test_a_process_of_ours_follows_the_folder_and_the_users_programs_do_not(
    tmp_path: Path, umask: int, folder_mode: int, of_file: int, of_folder: int
) -> None:
    private.make_folder(str(tmp_path / "run"), folder_mode)
    program = (
        "import os, sys\n"
        "from jobsdk.bootstrap.system import private, processes\n"
        "os.chdir(sys.argv[1])\n"
        "private.follow('run')\n"
        "open('run/file', 'w').close()\n"
        "os.makedirs('run/a/b')\n"
        "with private.users_umask():\n"
        "    open('own', 'w').close()\n"
        "pid = processes.start(['/bin/sh', '-c', 'umask; : > theirs'], {}, 'run/log')\n"
        "os.waitpid(pid, 0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert mode(tmp_path / "run/file") == mode(tmp_path / "run/log") == of_file
    assert mode(tmp_path / "run/a/b") == of_folder
    assert mode(tmp_path / "own") == mode(tmp_path / "theirs") == 0o666 & ~umask
    assert int((tmp_path / "run/log").read_text(), 8) == umask

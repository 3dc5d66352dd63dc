"""What a node measures: real cgroups and file systems; version 2 of cgroups by files as its kernel writes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsdk.bootstrap.failures import classify, evidence
from tests.bootstrap.endings import python
from tests.cgroups import memory_cgroup

LIMIT = 64 << 20
#: Waits for a line, so that its cgroup can be set and read first.
EATS = "import sys; sys.stdin.readline(); x = bytearray(400 << 20)"


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A memory cgroup with a limit."""
    with memory_cgroup(LIMIT) as folder:
        yield folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """1 MiB, 8 files."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=8", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def start(*argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(argv, stdin=subprocess.PIPE, text=True)


def test_a_process_that_ate_its_cgroups_memory(cgroup: Path) -> None:
    watch = evidence.Watch([])
    process = start(sys.executable, "-c", EATS)
    (cgroup / "cgroup.procs").write_text(str(process.pid))
    group = evidence.cgroup_of(process.pid)
    process.communicate("go\n")
    assert process.returncode == -9
    assert watch.of(group, 137, 9)["oom"] == {"source": "cgroup", "limit": LIMIT, "kills": 1}


def test_a_child_that_ate_the_memory(cgroup: Path) -> None:
    """The shell that started it says 137, and is not killed itself."""
    watch = evidence.Watch([])
    process = start("bash", "-c", f"read; {sys.executable} -c 'x = bytearray(400 << 20)'; exit $?")
    (cgroup / "cgroup.procs").write_text(str(process.pid))
    group = evidence.cgroup_of(process.pid)
    process.communicate("go\n")
    assert process.returncode == 137
    assert watch.of(group, 137, None)["oom"]["kills"] == 1


def test_what_was_counted_before_does_not_count(cgroup: Path) -> None:
    for _ in range(2):
        process = start(sys.executable, "-c", EATS)
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        group = evidence.cgroup_of(process.pid)
        process.communicate("go\n")
    assert evidence.Watch([]).of(group, 137, 9)["oom"]["kills"] == 1


def test_a_process_that_was_killed_by_somebody() -> None:
    """The count of the whole machine is not asked where the process's own cgroup has one."""
    watch = evidence.Watch([])
    process = start(sys.executable, "-c", EATS)
    group = evidence.cgroup_of(process.pid)
    process.kill()
    process.communicate()
    assert group is not None
    assert watch.of(group, 137, 9) == {}


def test_nothing_is_measured_of_a_success() -> None:
    assert evidence.Watch([]).of(evidence.cgroup_of(os.getpid()), 0, None) == {}


def test_a_process_that_has_gone_has_no_cgroup() -> None:
    process = start("true")
    process.communicate()
    assert evidence.cgroup_of(process.pid) is None


def version_2(folder: Path, kills: int, limited: int, limit: str = "max") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 9\noom {limited}\noom_kill {kills}\noom_group_kill 0\n")
    (folder / "memory.max").write_text(limit + "\n")


@pytest.mark.parametrize(
    ("limited", "found"),
    [
        ((1, 1), {"source": "cgroup", "limit": 1 << 30, "kills": 1}),
        ((0, 0), {"source": "kernel", "limit": None, "kills": 1}),
    ],
    ids=["the limit of the group around it", "the machine's memory"],
)
def test_version_2(tmp_path: Path, limited: tuple[int, int], found: dict[str, object]) -> None:
    """memory.events counts what happens in the groups within, too; only a group with a limit has `oom` for it."""
    outer, inner = tmp_path / "job", tmp_path / "job/step"
    version_2(outer, 4, 4, str(1 << 30))
    version_2(inner, 0, 0)
    counts = {str(folder): evidence._count(str(folder)) for folder in (inner, outer)}
    group = evidence.Group(list(counts), {folder: count for folder, count in counts.items() if count is not None})
    version_2(outer, 5, 4 + limited[0], str(1 << 30))
    version_2(inner, 1, limited[1])
    assert evidence.Watch([]).of(group, 137, 9)["oom"] == found


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """It is named in the advice."""
    watch = evidence.Watch([str(tmp_path), str(small_disk)])
    assert "disk" not in watch.of(None, 1, None)
    code = f"file = open({str(small_disk / 'model')!r}, 'wb', buffering=0); [file.write(bytes(1 << 20)) for _ in 'ab']"
    ended = python(tmp_path / "log", code)
    ended["evidence"] = watch.of(None, ended["exit_code"], ended["signal"])
    assert ended["evidence"]["disk"] == {"path": str(small_disk), "free": 0, "size": 1 << 20}
    verdict = classify.judge(ended)
    assert verdict["class"] == "disk_full"
    assert verdict["advice"].startswith(f"{small_disk} has 0 bytes left")


def test_a_disk_that_can_hold_no_more_files(small_disk: Path) -> None:
    watch = evidence.Watch([str(small_disk)])
    free = os.statvfs(small_disk).f_favail
    for number in range(free):
        (small_disk / str(number)).touch()
    assert watch.of(None, 1, None)["disk"]["path"] == str(small_disk)


def test_after_a_bus_error_the_size_of_shared_memory() -> None:
    disk = evidence.Watch([]).of(None, 135, 7)["disk"]
    stat = os.statvfs("/dev/shm")
    assert (disk["path"], disk["size"]) == ("/dev/shm", stat.f_blocks * stat.f_frsize)


def test_a_path_that_is_not_there() -> None:
    assert evidence.Watch(["/no/such/folder"]).of(None, 1, None) == {}

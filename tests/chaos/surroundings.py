"""What a job may run in: too little memory, disk, file descriptors; other hosts, clocks, users, neighbours."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.bootstrap.namespaces import Hosts
from tests.cgroups import memory_cgroup
from tests.chaos.harness import Job
from tests.clocks import off_by

Around = Callable[[Job], AbstractContextManager[None]]


def memory(limit: int) -> Around:
    """The whole job in a memory cgroup of `limit` bytes."""

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        with memory_cgroup(limit) as group:
            shell = 'echo $$ > "$0"/cgroup.procs; exec "$@"'
            job.wraps[0] = lambda argv: ["sh", "-c", shell, str(group), *argv]
            yield

    return around


def small_disk(size: str, folder: Callable[[Job], Path]) -> Around:
    """A file system of its own, of `size`, at a folder of the job."""

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        path = folder(job)
        path.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True)

    return around


@contextmanager
def small_shared_memory(job: Job) -> Iterator[None]:
    """A /dev/shm of 1 MiB that only the job sees."""
    shell = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    job.wraps[0] = lambda argv: ["unshare", "--mount", "sh", "-c", shell, "sh", *argv]
    yield


def few_files(limit: int, node: int = 0) -> Around:
    """A limit of open files for the bootstrap of a node, and all that it starts."""

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        job.wraps[node] = lambda argv: ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *argv]
        yield

    return around


def clock(offset: str, node: int) -> Around:
    """The clock of one node is wrong by `offset`."""

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        wrong = [f"{name}={value}" for name, value in off_by(offset, sleeps=True).items()]
        job.wraps[node] = lambda argv: ["env", *wrong, *argv]
        yield

    return around


@contextmanager
def hosts(job: Job) -> Iterator[None]:
    """Each node on a host with a network of its own; `job.hosts` can cut it."""
    with Hosts(job.folder, job.fault.nodes) as made:
        job.hosts = made
        job.address = made.address(0)
        for node in range(job.fault.nodes):
            job.wraps[node] = lambda argv, node=node: made.argv(node, argv)  # type: ignore[misc]
        yield


@contextmanager
def taken_port(job: Job) -> Iterator[None]:
    """Another program has the port that the script wants."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        job.environ["PORT"] = str(taken.getsockname()[1])
        yield


@contextmanager
def taken_control_port(job: Job) -> Iterator[None]:
    with socket.create_server(("", job.port)):
        yield


@contextmanager
def without_programs(job: Job) -> Iterator[None]:
    """A PATH with a shell and nothing else."""
    folder = job.folder / "bin"
    folder.mkdir()
    for name in ("bash", "sh"):
        (folder / name).symlink_to(f"/bin/{name}")
    job.environ["PATH"] = str(folder)
    yield


def program(name: str, text: str, mode: int = 0o755) -> Around:
    """A file in the code folder."""

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        path = job.work / name
        path.write_text(text)
        path.chmod(mode)
        yield

    return around


@contextmanager
def no_working_folder(job: Job) -> Iterator[None]:
    """The code folder is gone when the job starts."""
    job.wraps[0] = lambda argv: ["sh", "-c", 'rm -r "$0"; exec "$@"', str(job.work), *argv]
    yield


@contextmanager
def local_input(job: Job) -> Iterator[None]:
    """An input that is there until somebody removes it."""
    data = job.folder / "data"
    data.mkdir()
    job.more["inputs"] = {"data": {"type": "uri_folder", "mode": None, "uri": str(data)}}
    yield

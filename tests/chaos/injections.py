"""What is done to a running job from outside."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.system import procfs
from tests.chaos.harness import Job

Injection = Callable[[Job], object]


def to_rank(rank: int, signum: int) -> Injection:
    return lambda job: os.kill(job.pid(rank), signum)


def to_ranks(signum: int, *ranks: int) -> Injection:
    return lambda job: [os.kill(job.pid(rank), signum) for rank in ranks]


def to_bootstrap(signum: int, *nodes: int) -> Injection:
    return lambda job: [os.kill(pid, signum) for pid in [job.bootstrap(node) for node in nodes]]


def at_once(act: Injection) -> Injection:
    """Something that ends ranks, and the bootstraps look only when all of them have ended."""

    def inject(job: Job) -> None:
        nodes = {node: job.bootstrap(node) for node in range(job.fault.nodes)}
        ranks = [job.pid(rank) for rank in job.fault.ranks or ()]
        for pid in nodes.values():
            os.kill(pid, signal.SIGSTOP)
        act(job)
        job.until(lambda: all((one := procfs.stat(pid)) is None or one.is_zombie for pid in ranks))
        for node in reversed(nodes):  # node 0 hears of the others' ranks before it sees the ends of its own
            own = [pid for pid in ranks if (one := procfs.stat(pid)) is not None and one.parent == nodes[node]]
            os.kill(nodes[node], signal.SIGCONT)
            job.until(lambda own=own: all(procfs.stat(pid) is None for pid in own))

    return inject


def go(job: Job) -> None:
    job.go()


def one_after_the_other(first: int, second: int) -> Injection:
    """Two ranks fail, and node 0, which stands still in between, hears of both before it stops anything."""

    def inject(job: Job) -> None:
        job.go()
        job.until(lambda: [one for one in job.events("rank_ended") if one["rank"] == first])
        os.kill(job.bootstrap(0), signal.SIGSTOP)
        time.sleep(1.0)  # more than clocks may differ that were compared by a slow exchange
        (job.told / "second").touch()
        job.until(lambda: (one := procfs.stat(job.pid(second))) is None or one.is_zombie)
        os.kill(job.bootstrap(0), signal.SIGCONT)

    return inject


def let_the_time_be_up(job: Job) -> None:
    """Once all ranks are where they stay: as long as node 0 stands still it cannot find the time to be up."""
    job.until(lambda: len(job.events("rank_started")) == distributions.of(job.plan()).world_size())
    os.kill(job.bootstrap(0), signal.SIGSTOP)
    job.until_up()
    ranks = [job.pid(rank) for rank in range(distributions.of(job.plan()).world_size())]
    job.until(lambda: all((one := procfs.stat(pid)) is not None and one.state == "S" for pid in ranks))
    os.kill(job.bootstrap(0), signal.SIGCONT)


def to_supervisor(signum: int) -> Injection:
    return lambda job: job.processes[0].send_signal(signum)


def cut_the_network(job: Job) -> None:
    job.hosts.ip(1, "link", "set", "eth0", "down")


def take_the_master_port(job: Job) -> None:
    """Before rank 0 binds it; another program is there first."""
    port = job.events("started")[-1]["master_port"]
    job.held += [socket.create_server(("", port))]


def start_late(job: Job) -> None:
    job.until(lambda: job.events("node_joined"))
    job.start_node(1)


def start_with_another_token(job: Job) -> None:
    job.until(lambda: job.events("node_joined"))
    job.start_node(1, JOBSDK_TOKEN="cd" * 32)


def start_twice(job: Job) -> None:
    """A scheduler that starts one node's bootstrap a second time: that one is sent away."""
    second = job.start_node(1, job.folder / "run-1-again")
    assert second.wait(timeout=200) == 125


def _connect(job: Job) -> socket.socket:
    return socket.create_connection((job.address, job.port))


def garbage(job: Job) -> None:
    """What a port scanner, a browser and a misled client send."""
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, b"\x16\x03\x01\x02\x00\x01", b"\0\0\0\2[]", b'\0\0\0\2{}',
                 b'\0\0\0\x0e{"kind":"no"}\n', random.randbytes(2000)):  # fmt: skip
        with _connect(job) as sock:
            sock.sendall(text)
            try:
                while sock.recv(4096):
                    pass
            except ConnectionError:
                pass


def half_open(job: Job) -> None:
    """Hundreds of connections that say nothing and stay."""
    job.held += [_connect(job) for _ in range(400)]


def huge_frame(job: Job) -> None:
    """Announces 2 GiB; must be hung up on at once."""
    with _connect(job) as sock:
        sock.sendall(struct.pack(">I", 0x7FFFFFFF) + b"x" * 600)
        try:
            while sock.recv(4096):
                pass
        except ConnectionError:
            pass


def kill_mpirun(job: Job) -> None:
    job.until_up()
    os.kill(_child(job.bootstrap(0), "mpirun", "prterun", "mpiexec"), signal.SIGKILL)


def _child(parent: int, *names: str) -> int:
    listed = subprocess.run(["ps", "--ppid", str(parent), "-o", "pid=,comm="], capture_output=True, text=True).stdout
    return next(int(pid) for pid, name in (line.split() for line in listed.splitlines()) if name.startswith(names))


def cancel_between_starts(job: Job) -> None:
    job.go()
    job.until(lambda: job.events("restart"))
    to_supervisor(signal.SIGTERM)(job)


def cancel_before_all_are_there(job: Job) -> None:
    job.until(lambda: job.events("node_joined"))
    job.processes[0].send_signal(signal.SIGINT)


def start_without_input(job: Job) -> None:
    """What node 0 has found is not to be found on node 1."""
    job.until(lambda: job.events("node_joined"))
    (job.folder / "data").rmdir()
    job.start_node(1)


def freeze_for_a_moment(job: Job) -> None:
    """The whole job is stopped and goes on, as by a suspended laptop: longer than a heartbeat may take."""
    pids = [job.processes[0].pid, *(job.bootstrap(node) for node in range(job.fault.nodes)), *_ranks(job)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * job.plan()["heartbeat_s"])
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)


def _ranks(job: Job) -> list[int]:
    return [int(path.read_text()) for path in job.told.glob("up-*")]

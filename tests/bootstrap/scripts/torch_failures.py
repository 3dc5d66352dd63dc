"""Fails in the ways in which PyTorch fails: each in a process of its own, forked so that torch is imported once.

    python torch_failures.py FOLDER

writes FOLDER/NAME.log, the output of each, and FOLDER/codes.json, how each ended (a negative number: by that signal).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

SHORT = timedelta(seconds=2)


def port_in_use() -> None:
    with socket.create_server(("", 0)) as taken:
        join(0, 2, taken.getsockname()[1])


def nobody_joins() -> None:
    join(0, 2, 0)


def nobody_listens() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        join(1, 2, silent.getsockname()[1])


def wrong_interface() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "eth77"
    join(0, 1, 0)


def killed_peer() -> None:
    pair(lambda: os.kill(os.getpid(), signal.SIGKILL))


def silent_peer() -> None:
    pair(signal.pause)


def join(rank: int, size: int, port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timeout=SHORT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=SHORT)


def pair(other: Callable[[], None]) -> None:
    """Rank 0 reduces with a rank 1 that does something else."""
    meeting = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # it must not outlive a test that was killed
        store = dist.TCPStore("127.0.0.1", meeting.port, 2, False)
        dist.init_process_group("gloo", store=store, rank=1, world_size=2)
        other()
        os._exit(0)
    try:
        dist.init_process_group("gloo", store=meeting, rank=0, world_size=2)
        # Only now: the other one may take its time to come.
        dist.distributed_c10d._set_pg_timeout(SHORT)
        dist.all_reduce(torch.ones(3))
    finally:
        os.kill(pid, signal.SIGKILL)


class Samples(Dataset[torch.Tensor]):
    def __init__(self, act: Callable[[], torch.Tensor]) -> None:
        self.act = act

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.act()


def load(act: Callable[[], torch.Tensor]) -> None:
    list(DataLoader(Samples(act), num_workers=1))


def bad_sample() -> None:
    def act() -> torch.Tensor:
        raise ValueError("a bad sample")

    load(act)


def little_shared_memory() -> None:
    """In a mount namespace of its own, as Docker's 64 MiB are for a large batch."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x20000) != 0:  # CLONE_NEWNS
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"], check=True)
    load(lambda: torch.zeros(1 << 20))


def worker_killed() -> None:
    def act() -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(1)

    load(act)


def worker_crashed() -> None:
    def act() -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGSEGV)
        return torch.zeros(1)

    load(act)


def _in_a_child(number: int) -> None:
    raise ValueError(f"in the child {number}")


def spawned_child() -> None:
    mp.start_processes(_in_a_child, nprocs=1, start_method="fork")


def no_gpu() -> None:
    torch.zeros(1).cuda()


def no_memory() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


def no_process_group() -> None:
    dist.barrier()


CASES = [
    port_in_use, nobody_joins, nobody_listens, wrong_interface, killed_peer, silent_peer, bad_sample,
    little_shared_memory, worker_killed, worker_crashed, spawned_child, no_gpu, no_memory, no_process_group,
]  # fmt: skip


def main(folder: Path) -> None:
    pids = {}
    for case in CASES:
        pid = os.fork()
        if pid == 0:
            log = os.open(folder / f"{case.__name__}.log", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            case()
            return
        pids[pid] = case.__name__
    codes = {}
    for _ in pids:
        pid, status = os.wait()
        codes[pids[pid]] = os.waitstatus_to_exitcode(status)
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

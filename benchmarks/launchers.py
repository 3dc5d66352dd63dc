"""How each launcher is asked for N processes of a script on this machine, or for two nodes of them."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

Command = list[str]

BIN = Path(sys.executable).parent
PEERS = {"torchrun": "torchrun", "mpirun": "mpirun", "accelerate": "accelerate launch"}

#: Starts processes and waits for them, nothing else: the least that is possible.
_BARE = """
count=$1; shift; rank=0
while [ $rank -lt $count ]; do WORLD_SIZE=$count RANK=$rank LOCAL_RANK=$rank "$@" & rank=$((rank + 1)); done
wait
"""


def jobsdk(processes: int, script: Path, *arguments: str, nodes: int = 1, options: Sequence[str] = ()) -> Command:
    counts = ["--nodes", str(nodes), "--processes", str(processes)]
    return [str(BIN / "jobsdk"), "run", *counts, *options, "--", sys.executable, str(script), *arguments]


def bare(processes: int, script: Path, *arguments: str) -> Command:
    master = ["MASTER_ADDR=127.0.0.1", f"MASTER_PORT={free_port()}"]
    return ["env", *master, "/bin/sh", "-c", _BARE, "sh", str(processes), sys.executable, str(script), *arguments]


def torchrun(processes: int, script: Path, *arguments: str, options: Sequence[str] = ()) -> Command:
    return [
        str(BIN / "torchrun"),
        "--standalone",
        f"--nproc-per-node={processes}",
        *options,
        str(script),
        *arguments,
    ]


def torchrun_node(node: int, nodes: int, processes: int, meeting: Sequence[str]) -> Command:
    """The agent of one of several nodes, up to the script; see `rendezvous`."""
    counts = [f"--nnodes={nodes}", f"--nproc-per-node={processes}", f"--node-rank={node}"]
    return [str(BIN / "torchrun"), *counts, "--local-addr=127.0.0.1", *meeting]


def rendezvous(backend: str) -> list[str]:
    """How the agents of one job find each other."""
    port = free_port()
    if backend == "static":
        return ["--master-addr=127.0.0.1", f"--master-port={port}"]
    return [f"--rdzv-backend={backend}", "--rdzv-id=benchmark", f"--rdzv-endpoint=127.0.0.1:{port}"]


def mpirun(processes: int, script: Path, *arguments: str, options: Sequence[str] = ()) -> Command:
    """Open MPI; the flags only allow what a small machine in a container needs."""
    flags = ["--allow-run-as-root", "--oversubscribe", "-np", str(processes)]
    return [str(find("mpirun")), *flags, *options, sys.executable, str(script), *arguments]


def accelerate(processes: int, script: Path, *arguments: str) -> Command:
    """`--cpu` starts one process whatever it is told: several take the way that accelerate has for several GPUs."""
    kind = "--cpu" if processes == 1 else "--multi_gpu"
    counts = [kind, "--num_processes", str(processes), "--num_machines", "1"]
    plain = ["--mixed_precision", "no", "--dynamo_backend", "no"]
    return [str(BIN / "accelerate"), "launch", *counts, *plain, str(script), *arguments]


def find(program: str) -> str | None:
    """Where a program of this environment or of the system is; None for a peer with `--without-peers`."""
    if program in PEERS and os.environ.get("JOBSDK_BENCH_WITHOUT_PEERS") == "1":
        return None
    return shutil.which(program, path=f"{BIN}{os.pathsep}{os.environ['PATH']}")


def present(**launchers: Callable[..., Command]) -> dict[str, Callable[..., Command]]:
    """Those of the launchers that are installed, under the name that users type."""
    return {PEERS.get(name, name): launcher for name, launcher in launchers.items() if find(name)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

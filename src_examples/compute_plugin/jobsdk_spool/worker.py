"""Runs nodes of jobs on this machine: `python -m jobsdk_spool.worker FOLDER [ADDRESS]`, until it gets SIGTERM."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from typing import Any


def main(folder: pathlib.Path, address: str) -> int:
    me = folder / f"{socket.gethostname()}-{os.getpid()}.worker"
    me.touch()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while True:
            if not any(take(path, address) for path in sorted(folder.glob("*.json"))):
                time.sleep(0.2)
    finally:
        me.unlink()


def take(path: pathlib.Path, address: str) -> bool:
    """Run the node of a ticket, unless another worker has it; whether it was run."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with this process, however it ends
            ticket = json.load(file)
            control = pathlib.Path(ticket["run_dir"], "control")
            if control.with_name("report.json").exists():  # the job has ended without this node
                path.unlink(missing_ok=True)
            is_first = ticket["rank"] == 0
            # Node 0 goes first; of one that has begun and is not locked the worker was killed.
            if not path.exists() or is_first == control.exists():
                return False
            if is_first:  # where the others will find it
                control.with_suffix(".new").write_text(f"{address} {free_port()}")
                control.with_suffix(".new").rename(control)
            run(ticket, control.read_text())
            path.unlink(missing_ok=True)
            return True
    except (BlockingIOError, FileNotFoundError):
        return False


def run(ticket: dict[str, Any], control: str) -> None:
    run_dir = ticket["run_dir"]
    environment = {**os.environ, **ticket["variables"], "JOBSDK_CONTROL": control}
    argv = [sys.executable, "-S", "-E", f"{run_dir}/bootstrap.pyz", "node", run_dir]
    log = os.path.join(run_dir, "logs", f"worker-{ticket['rank']}.log")
    with open(log, "ab") as out:
        node = subprocess.Popen(argv, env=environment, cwd=run_dir, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        node.wait()
    finally:
        node.terminate()  # SIGTERM: the bootstrap ends its ranks, and the job knows that a node was taken away
        node.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), (*sys.argv[2:], socket.gethostname())[0]))

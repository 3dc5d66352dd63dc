"""What a plain machine does for a run when it is asked over ssh: the verb `host OPERATION`, with JSON on stdin.

The answer follows MARK on stdout, as one line of JSON: what a login shell's own files print comes before. {"error":
text} says why it could not be done. `host node RUN_DIR` is the verb that `start` starts.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from ..spec import paths, pidfile, plan_file
from ..spec import variables as variables_
from ..system import gpu_locks, network, private, processes

MARK = b"\n\0jobsdk\0"
#: Set to 1 for a node whose folder no other node has: nothing in it is needed once its bootstrap has ended.
OWN_FOLDER = "JOBSDK_OWN_FOLDER"
_ENDING_S = 2.0  # seconds that a bootstrap has to end by itself once its job is over


def probe(folder: str, run: str, gpus: Optional[List[str]], count: Optional[int]) -> Dict[str, Any]:
    """What this machine is and has, found out without leaving anything here."""
    folder = os.path.abspath(os.path.expanduser(folder))
    run_dir, there = "%s/runs/%s" % (folder, run), folder
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    room = os.statvfs(there)
    addresses = [address for _, address in network.interface_addresses()]
    return {
        "python": sys.version.split()[0],
        "system": sys.platform,
        "machine": pidfile.machine(),
        "node": os.uname().nodename,
        "folder": folder,
        "run_dir": run_dir,
        "is_new": not os.path.lexists(run_dir),
        "writable": os.access(there, os.W_OK | os.X_OK),
        "existing": there,
        "free": room.f_bavail * room.f_frsize,
        "in_use": gpu_locks.look(gpus, count),
        "locks": gpu_locks.trouble(),
        "gpus": processes.visible_gpus(os.environ),
        "cores": processes.cores(),
        "addresses": [one for one in addresses if not network.is_loopback(one) and not one.startswith("fe80:")],
        "clock": time.time(),
        "rsync": shutil.which("rsync") is not None,
    }


def start(
    run_dir: str,
    rank: int,
    argv: List[str],
    environment: Dict[str, str],
    setup: str,
    gpus: Optional[List[str]],
    count: Optional[int],
    note: Dict[str, str],
) -> Dict[str, Any]:
    """Start a node's bootstrap, which goes on without this login, and which alone holds what it was given.

    `setup` is shell text that is read before, for modules and environments. Raises claims.Taken.
    """
    variables = dict(os.environ, JOBSDK_RUN_DIR=run_dir)
    variables.update(environment)
    if os.path.isabs(argv[0]):  # the ranks' `python` is this one
        variables["PATH"] = "%s:%s" % (os.path.dirname(argv[0]), variables.get("PATH", os.defpath))
    private.follow(run_dir)
    log = paths.node_logs(run_dir, rank) + "/bootstrap.log"
    os.makedirs(os.path.dirname(log), exist_ok=True)
    if variables_.CODE not in variables:
        variables[variables_.CODE] = run_dir + "/no-code"
        os.makedirs(run_dir + "/no-code", exist_ok=True)
    if setup:
        file = "%s/setup-%d.sh" % (run_dir, rank)
        with open(file, "w") as stream:
            stream.write(setup)
        argv = [*processes.shell_argv('. "$0" && exec "$@"'), file, *argv]
    else:
        argv = [shutil.which(argv[0]) or argv[0], *argv[1:]]
    held = gpu_locks.claim(gpus, count, note)
    trouble = gpu_locks.trouble()
    if trouble:
        with open(log, "a") as out:
            out.write("bootstrap: warning: %s\n" % trouble)
    if held.gpus is not None:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(held.gpus)
    for lock in held.files:
        os.set_inheritable(lock, True)
    variables[gpu_locks.HELD] = ",".join(map(str, held.files))
    pid = processes.start(argv, variables, log)
    pidfile.write(run_dir, rank, pid)
    return {"pid": pid, "gpus": held.gpus}


def cancel(run_dir: str, ranks: List[int]) -> List[int]:
    """Tell the bootstraps of some nodes that the user wants the run to end; which of them live here."""
    with open(paths.cancel_mark(run_dir), "w", opener=private.opener):
        pass
    living = [(rank, pidfile.pid_of(run_dir, rank)) for rank in ranks]
    processes.send([pid for _, pid in living if pid is not None], 15)
    return [rank for rank, pid in living if pid is not None]


def sweep(run_dir: str) -> int:
    """After the run's end: end what a dead bootstrap has left running here, delete the secrets. How many there were."""
    deadline = time.monotonic() + _ENDING_S
    while os.path.isdir(run_dir) and pidfile.living(run_dir) and time.monotonic() < deadline:
        time.sleep(0.02)
    killed = processes.kill_run(run_dir)
    plan_file.forget_secrets(run_dir)
    return killed


def node(run_dir: str) -> int:
    """Be the bootstrap that `start` has started; the job's exit code."""
    from . import cluster_node

    gpu_locks.keep(os.environ)
    is_own = os.environ.pop(OWN_FOLDER, "") == "1"
    os.environ.pop(gpu_locks.HELD, None)
    try:
        return cluster_node.run(run_dir)
    finally:
        if is_own:
            plan_file.forget_secrets(run_dir)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "probe": probe, "start": start, "cancel": cancel, "sweep": sweep,
}  # fmt: skip


def run(operation: str) -> int:
    """Do it, and answer."""
    given = json.loads(sys.stdin.buffer.read() or b"{}")
    try:
        answer = OPERATIONS[operation](**given)
    except gpu_locks.Taken as reason:
        answer = {"error": str(reason)}
    except OSError as error:
        answer = {"error": "%s: %s" % (error.filename, error.strerror) if error.filename else str(error)}
    sys.stdout.buffer.write(MARK + json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()
    return 0

"""All nodes of a job on this machine: the supervisor behind the local compute, one bootstrap for each node.

Each node is a fork of this process with its own identity, log folder and ports; it runs the same code as a node of
a cluster. The supervisor itself only prepares, watches, and cleans up after bootstraps that were killed.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import contract, events, failure, layout, metrics, network, node, processes, staging
from .control import HEARTBEAT_TIMEOUT, Pulse
from .coordinator import CANCELED, LOST
from .loop import Loop

_ADDRESS = "127.0.0.1"


class _Bootstrap(NamedTuple):
    rank: int
    lifeline: socket.socket


class Supervisor:
    """Runs one job in `run_dir` (see the run folder's layout in the documentation) to its end."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._plan = _read(run_dir + "/plan.json")
        self._native = _read(run_dir + "/native.json")
        self._cancelled = False
        self._ended: List[Tuple[int, Optional[int], int]] = []  # (exit code, signal, node) of bootstraps, in order
        self._heard: Dict[int, float] = {}  # when each bootstrap gave a sign of life: pid -> time
        self._bootstraps: Dict[int, _Bootstrap] = {}
        self._began = time.time()

    def run(self) -> int:
        started = processes.start_time(os.getpid())
        events.write_json(self._run_dir + "/owner.json", {"pid": os.getpid(), "start": started})
        self._event("preparing")
        processes.become_subreaper()
        io_dir = staging.io_dir(self._run_dir)
        try:
            self._prepare(io_dir)
            self._start_nodes(io_dir)
            self._watch()
        except (staging.StagingError, OSError) as error:
            self._write_report("Failed", 126, str(error), 0)
        except Exception as error:  # a fault of ours; its traceback goes to supervisor.log
            _print_traceback()
            self._write_report("Failed", 70, "the supervisor failed: %s: %s" % (type(error).__name__, error), 0)
        finally:
            processes.kill_descendants(os.getpid())
            staging.remove_io_dir(io_dir, self._run_dir)
        return self._exit_code()

    def _prepare(self, io_dir: str) -> None:
        signal.signal(signal.SIGTERM, self._cancel_early)
        cache = os.path.join(os.path.dirname(os.path.dirname(self._run_dir)), "cache", "downloads")
        staging.stage(self._plan, self._run_dir, cache, self._event)
        if not self._native["in_place"]:
            self._link_outputs()

    def _link_outputs(self) -> None:
        """What a script leaves in ./outputs is an output of the job, as on Azure ML."""
        link = os.path.join(self._native["working_dir"], "outputs")
        if not os.path.lexists(link):
            os.symlink(self._run_dir + "/outputs/default", link)

    def _cancel_early(self, *_: Any) -> None:
        self._cancelled = True
        raise staging.StagingError("cancelled")

    def _start_nodes(self, io_dir: str) -> None:
        count = self._plan["nodes"]
        listener = network.listener(_ADDRESS, 0)
        port, token = listener.getsockname()[1], os.urandom(32)
        gpus = self._share_gpus(count)
        pairs = [socket.socketpair() for _ in range(count)]
        for rank, (ours, theirs) in enumerate(pairs):
            pid = os.fork()
            if pid == 0:
                code = 70
                try:
                    for other, (mine, yours) in enumerate(pairs):
                        mine.close()
                        if other != rank:
                            yours.close()
                    if rank != 0:
                        listener.close()
                    place = node.Node(
                        rank=rank, control_address=_ADDRESS, control_port=port, token=token, run_dir=self._run_dir,
                        io_dir=io_dir, working_dir=self._native["working_dir"], nodes_here=count, gpus=gpus[rank],
                        lifeline=theirs, listener=listener if rank == 0 else None,
                    )  # fmt: skip
                    code = self._be_node(place)
                finally:
                    os._exit(code)
            theirs.close()
            self._bootstraps[pid] = _Bootstrap(rank, ours)
            self._event("bootstrap_up", node=rank, pid=pid, host=socket.gethostname())
        listener.close()

    def _be_node(self, place: node.Node) -> int:
        """In the fork: this node's own log for what the bootstrap itself says, then the node's life."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        folder = layout.node_logs(self._run_dir, place.rank)
        os.makedirs(folder, exist_ok=True)
        _write_to(folder + "/bootstrap.log")
        try:
            return node.run(self._plan, place)
        except BaseException:
            _print_traceback()
            return 70

    def _share_gpus(self, nodes: int) -> List[Optional[List[str]]]:
        """The machine's GPUs, split over the simulated nodes where the job says how many a process takes."""
        each = (self._plan["gpus_per_process"] or 0) * max(
            len(contract.node_processes(self._plan, rank)) for rank in range(nodes)
        )
        gpus = processes.visible_gpus(os.environ)
        if not each:
            return [gpus] * nodes
        if gpus is None or len(gpus) < each * nodes:
            text = "the job asks for %d GPUs, this machine shows %d: CUDA_VISIBLE_DEVICES is left as it is"
            self._event("warning", message=text % (each * nodes, len(gpus or [])))
            return [None] * nodes
        return [gpus[rank * each : (rank + 1) * each] for rank in range(nodes)]

    # -- watching ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._loop = Loop()
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        self._loop.on_signal(signal.SIGTERM, self._cancel)
        self._loop.on_signal(signal.SIGINT, self._cancel)
        for pid, bootstrap in self._bootstraps.items():
            self._heard[pid] = time.monotonic()
            self._loop.on_readable(bootstrap.lifeline, functools.partial(self._hear, pid, bootstrap.lifeline))
        self._pulse = Pulse(self._loop, self._look_after)
        self._reap()
        if self._bootstraps:
            self._loop.run()
        code, signum, rank = self._ended[0]
        how = failure.describe(code, signum)
        self._write_report("Lost", LOST, "the bootstrap of node %d %s" % (rank, how), rank)

    def _hear(self, pid: int, lifeline: socket.socket) -> None:
        try:
            if lifeline.recv(4096):
                self._heard[pid] = time.monotonic()
                return
        except OSError:
            pass
        self._loop.forget(lifeline)

    def _look_after(self, stood_still: bool) -> None:
        """Kill a bootstrap that hangs or is stopped; what it leaves is then ended as if it had been killed."""
        now = time.monotonic()
        for pid in list(self._bootstraps):
            if stood_still:
                self._heard[pid] = now
            elif now - self._heard[pid] > HEARTBEAT_TIMEOUT:
                processes.send([pid], signal.SIGKILL)

    def _reap(self) -> None:
        for pid, status in processes.reap().items():
            bootstrap = self._bootstraps.pop(pid, None)
            if bootstrap is None:
                continue
            self._loop.forget(bootstrap.lifeline)
            bootstrap.lifeline.close()
            self._ended.append((*processes.exit_code(status), bootstrap.rank))
            self._kill_orphans()
            self._tell_node_0("lost %d" % bootstrap.rank)
            if bootstrap.rank == 0:  # the others follow by themselves, but for one that hangs or is stopped
                self._loop.later(self._plan["grace_s"] + 2.0, self._kill_the_rest)
        if not self._bootstraps:
            self._loop.stop()

    def _kill_the_rest(self) -> None:
        processes.send(list(self._bootstraps), signal.SIGKILL)

    def _kill_orphans(self) -> None:
        """The ranks of a bootstrap that was killed are ours now."""
        mine = set(self._bootstraps)
        kept = {pid for bootstrap in mine for pid in processes.descendants(bootstrap)}
        left = [pid for pid in processes.descendants(os.getpid()) if pid not in mine and pid not in kept]
        processes.send(left, signal.SIGKILL)

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._tell_node_0("cancel")
            self._loop.later(self._plan["grace_s"] + 5.0, self._kill_the_rest)

    def _tell_node_0(self, word: str) -> None:
        for bootstrap in self._bootstraps.values():
            if bootstrap.rank == 0:
                try:
                    bootstrap.lifeline.send(word.encode() + b"\n")
                except OSError:
                    pass  # it is ending

    # -- the end -------------------------------------------------------------------------------------------------

    def _write_report(self, status: str, code: int, message: str, rank: int) -> None:
        """For a job that no coordinator could bring to its end; what one has written stands."""
        if os.path.exists(self._run_dir + "/report.json"):
            return
        if self._cancelled:
            status, code, message = "Canceled", CANCELED, "cancelled on request"
        cause: Dict[str, Any] = {"node": rank, "host": socket.gethostname(), "time": time.time(), "last_lines": []}
        cause.update({"rank": None, "pid": None, "exit_code": code, "signal": None, "message": message})
        cause.update({"traceback": None, "error": None})
        report = {"run": self._plan["run"], "status": status, "exit_code": code, "message": message, "ranks": []}
        report.update({"cause": None if self._cancelled else cause, "started": self._began, "ended": time.time()})
        metrics.finish(report["run"], self._run_dir, status, report["ended"])
        events.write_json(self._run_dir + "/report.json", report)
        self._event("ended", status=status, exit_code=code, message=message)

    def _exit_code(self) -> int:
        return int(_read(self._run_dir + "/report.json")["exit_code"])

    def _event(self, event: str, **facts: Any) -> None:
        events.append(self._run_dir, event, **facts)


def _print_traceback() -> None:
    import traceback  # 5 ms that only a fault of ours needs

    traceback.print_exc()


def _read(path: str) -> Dict[str, Any]:
    with open(path) as file:
        content: Dict[str, Any] = json.load(file)
    return content


def wait_and_run(run_dir: str) -> int:
    """As `run`, once a word has come on stdin: the job is made while this process starts. None comes: 0."""
    if not os.read(0, 1):
        return 0
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    _write_to(run_dir + "/logs/supervisor.log")
    return run(run_dir)


def _write_to(log: str) -> None:
    """From now on stdout and stderr are the end of the file `log`."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def run(run_dir: str) -> int:
    """Run the job in `run_dir` to its end; its exit code, or 66 (sysexits: no input) where there is none to run."""
    run_dir = os.path.abspath(run_dir)
    try:
        supervisor = Supervisor(run_dir)
    except (OSError, ValueError) as error:
        sys.stderr.write("bootstrap: no job to run in %s: %s\n" % (run_dir, error))
        return 66
    if os.path.exists(run_dir + "/report.json"):
        sys.stderr.write("bootstrap: the run in %s has ended already\n" % run_dir)
        return 66
    return supervisor.run()

"""One node of the job: joins the control port, starts its ranks, watches them, ends them."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Set

from . import contract, events, failure, launchers, layout, metrics, network, processes
from .channel import Message
from .control import ControlClient, Pulse
from .coordinator import HOLD, LOST, Coordinator
from .facts import facts_of
from .loop import Loop, Timer
from .start import Starter

if TYPE_CHECKING:  # what few jobs need is imported where it is used
    from .mpi_library import Library


class Node(NamedTuple):
    """Where this bootstrap is: found out by `detect`, or given by the local compute's supervisor."""

    rank: int
    control_address: str
    control_port: int
    token: bytes
    run_dir: str
    io_dir: str  # a name of run_dir that is one word for a shell
    working_dir: str
    nodes_here: int = 1  # how many nodes of the job share this machine
    gpus: Optional[List[str]] = None
    lifeline: Optional[socket.socket] = None  # to and from a local supervisor
    listener: Optional[socket.socket] = None  # node 0 only: the control port, bound already


class _Child(NamedTuple):
    """A running process of this node: a rank, or (rank None) a foreign launcher."""

    process: Optional[contract.Process]
    log: str
    started: float


class NodeAgent:
    """The life of one node, from joining to the job's end. `run()` returns the job's exit code."""

    def __init__(self, plan: Dict[str, Any], node: Node) -> None:
        self._plan = plan
        self._node = node
        self._loop = Loop()
        self._children: Dict[int, _Child] = {}
        self._begun = False
        self._signalled = False  # ranks that end from now on were ended by us
        self._deadline: Optional[float] = None  # when what has not obeyed SIGTERM is killed
        self._asked: Set[int] = set()  # processes that have had their SIGTERM
        self._check_again = Timer(0.0, lambda: None)
        self._quiet = False
        self._orphaned = False  # the local supervisor has gone
        self._code: Optional[int] = None
        self._host = socket.gethostname()
        self._inherited = {key: value for key, value in os.environ.items() if key not in launchers.PRIVATE}
        self._coordinator: Optional[Coordinator] = None
        self._starter: Optional[Starter] = None

    def run(self) -> int:
        node, loop = self._node, self._loop
        processes.become_subreaper()
        loop.on_signal(signal.SIGCHLD, self._children_ended)
        loop.on_signal(signal.SIGTERM, lambda: self._told_to_end(signal.SIGTERM))
        loop.on_signal(signal.SIGINT, lambda: self._told_to_end(signal.SIGINT))
        if node.lifeline is not None:
            node.lifeline.setblocking(False)
            loop.on_readable(node.lifeline, self._supervisor_speaks)
            self._pulse = Pulse(loop, self._tell_supervisor)
        port = node.control_port
        if node.rank == 0:
            listener = node.listener or network.listener("", port)
            port = listener.getsockname()[1]
            self._coordinator = Coordinator(
                loop,
                self._plan,
                listener,
                node.token,
                node.run_dir,
                self._job_ended,
                self._plan["rendezvous_timeout_s"],
            )
        self._client = ControlClient(
            loop, node.control_address, port, node.token, "node", node.rank, self._plan["rendezvous_timeout_s"],
            self._join, self._message, self._control_lost,
        )  # fmt: skip
        self._control_port = port
        loop.run()
        processes.kill_descendants(os.getpid())
        if self._orphaned and self._coordinator is not None:  # nobody else can clean up after other bootstraps
            processes.kill_run(self._node.run_dir)
        return LOST if self._code is None else self._code

    # -- the control port ----------------------------------------------------------------------------------------

    def _join(self) -> None:
        node = self._node
        ranks = [process.rank for process in contract.node_processes(self._plan, node.rank)]
        needed = len(ranks) if self._plan["distribution"]["type"] == "tensorflow" else 1
        self._client.send(
            {
                "type": "join",
                "host": self._host,
                "pid": os.getpid(),
                "gpus": node.gpus,
                "ports": network.free_ports(max(1, needed)),
                "cores": max(1, processes.cores() // node.nodes_here),
            }
        )
        if metrics.has_store(self._plan, self._inherited):  # while the others join
            metrics.prepare(self._plan, node.run_dir, ranks)

    def _message(self, message: Message) -> None:
        kind = message["type"]
        if kind == "start":
            self._start(message)
        elif kind == "stop":
            self._stop(message["reason"])
        elif kind == "finish" and self._coordinator is None:
            self._job_ended(message["exit_code"])
        elif kind == "refused":
            self._say("node 0 refused this node: %s" % message["reason"])
            self._job_ended(LOST)

    def _control_lost(self, why: str) -> None:
        if self._code is None:
            self._say("lost the control port: %s" % why)
            self._code = LOST
            if self._quiet:
                self._loop.stop()
            self._stop("lost")

    def _job_ended(self, code: int) -> None:
        self._code = code
        self._loop.stop()

    def _supervisor_speaks(self) -> None:
        """Lines over the lifeline: "cancel", "lost K" (the bootstrap of node K has ended); its end: nobody is there."""
        assert self._node.lifeline is not None
        try:
            words = self._node.lifeline.recv(4096)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            words = b""
        if not words:
            self._loop.forget(self._node.lifeline)
            self._orphaned = True
        if self._coordinator is None:
            return
        if self._orphaned:
            self._coordinator.lost(0, "the supervisor of this run was killed")
        for line in words.decode().splitlines():
            word, _, number = line.partition(" ")
            if word == "cancel":
                self._coordinator.cancel()
            elif word == "lost" and not self._coordinator.has_joined(int(number)):
                self._coordinator.lost(int(number), "the bootstrap of node %s ended before it joined" % number)

    def _tell_supervisor(self, stood_still: bool) -> None:
        """A sign of life, so that a bootstrap that hangs is found out."""
        assert self._node.lifeline is not None
        try:
            self._node.lifeline.send(b".")
        except OSError:
            pass  # its end is seen where it is read

    def _told_to_end(self, signum: int) -> None:
        if not self._signalled:
            text = "node %d was told to end by %s" % (self._node.rank, signal.Signals(signum).name)
            self._failed(128 + signum, text)

    # -- starting ------------------------------------------------------------------------------------------------

    def _start(self, message: Message) -> None:
        if self._signalled or self._begun:
            return
        self._begun = True
        node = self._node
        facts = facts_of(message, node.rank, self._inherited, node.run_dir, node.io_dir)
        control = launchers.control_variables(node.control_address, self._control_port, node.token)
        self._starter = Starter(self._plan, node.rank, control, self._began_process, self._warn)
        try:
            self._starter.start(facts)
        except OSError as error:
            self._failed(126, "node %d cannot start its processes: %s" % (node.rank, error))
            return
        self._check_quiet()

    def _began_process(self, pid: int, process: Optional[contract.Process], log: str) -> None:
        started = time.time()
        self._children[pid] = _Child(process, log, started)
        if process is None:
            return
        self._client.send(
            {"type": "rank_started", "t": started, "node": self._node.rank, "rank": process.rank, "pid": pid}
        )
        if self._plan["distribution"]["type"] == "mpi":
            from . import mpi_library

            if mpi_library.is_out_of_place(self._plan, process.rank):
                mpi_library.Watch(self._loop, pid, self._warn_of_library)

    def _warn_of_library(self, library: Library) -> None:
        from . import mpi_library

        self._warn(mpi_library.warning(library))

    def _warn(self, text: str) -> None:
        self._client.send({"type": "warning", "message": text})

    # -- watching ------------------------------------------------------------------------------------------------

    def _children_ended(self) -> None:
        ended = processes.reap()
        if self._starter is not None:
            self._starter.adopt()
        for pid, status in ended.items():
            child = self._children.pop(pid, None)  # others are adopted grandchildren
            if child is not None:
                self._child_ended(pid, child, status)
        if self._begun:
            self._check_quiet()

    def _child_ended(self, pid: int, child: _Child, status: int) -> None:
        code, signum = processes.exit_code(status)
        failed = bool(code) and not self._signalled
        if self._starter is not None and self._starter.ended(pid, code, signum, self._signalled):
            return
        if child.process is None:
            self._launcher_ended(pid, child, code, signum, failed)
            return
        message = {
            "type": "rank_ended", "t": time.time(), "node": self._node.rank, "rank": child.process.rank, "pid": pid,
            "exit_code": code, "signal": signum, "stopped": self._signalled, "started": child.started,
            "host": self._host,
        }  # fmt: skip
        if failed:
            message.update(failure.last_words(child.log))
        self._client.send(message)
        if failed:
            self._stop_soon()

    def _launcher_ended(self, pid: int, child: _Child, code: int, signum: Optional[int], failed: bool) -> None:
        if not failed:
            return
        what = "%s on node %d %s" % (launchers.name(self._plan), self._node.rank, failure.describe(code, signum))
        from . import mpirun

        culprit = mpirun.aborted(self._plan, self._node.run_dir)
        if culprit is None:
            self._failed(code, what, pid=pid, **failure.last_words(child.log))
            return
        log = layout.rank_log(self._node.run_dir, culprit.node_rank, culprit.rank)
        what = "rank %d on node %d called MPI_Abort, and %s" % (culprit.rank, culprit.node_rank, what)
        self._failed(code, what, node=culprit.node_rank, rank=culprit.rank, **failure.last_words(log))

    def _failed(self, code: int, message: str, **facts: Any) -> None:
        record = {"type": "failed", "t": time.time(), "node": self._node.rank, "rank": None, "exit_code": code,
                  "message": message, "host": self._host}  # fmt: skip
        record.update(facts)
        self._client.send(record)
        self._stop_soon()

    # -- stopping ------------------------------------------------------------------------------------------------

    def _stop_soon(self) -> None:
        """After a failure here: what it causes in other ranks, or what caused it, is to show itself first."""
        self._loop.later(HOLD, lambda: self._stop("failure"))

    def _stop(self, reason: str) -> None:
        """SIGTERM to all that runs on this node, a grace time, SIGKILL."""
        if not self._signalled:
            self._signalled = True
            self._wind_up()

    def _wind_up(self) -> None:
        """End what is left: ranks that we stop, and what ranks that have ended left behind."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._plan["grace_s"]
        self._check_quiet()

    def _check_quiet(self) -> None:
        if self._quiet or (self._children and self._deadline is None):
            return
        left = processes.descendants(os.getpid())
        if not left and not self._children:
            self._quiet = True
            metrics.tidy(
                self._node.run_dir, [rank.rank for rank in contract.node_processes(self._plan, self._node.rank)]
            )
            self._client.send({"type": "quiet"})
            if self._code is not None:
                self._loop.stop()
        elif self._deadline is None:
            self._wind_up()
        else:
            if time.monotonic() >= self._deadline:
                processes.send(left, signal.SIGKILL)
            else:  # some may have been started since the last look
                unasked = [pid for pid in left if pid not in self._asked and not self._ends_by_itself(pid)]
                processes.send(unasked, signal.SIGTERM)
                self._asked.update(unasked)
            self._check_again.cancel()
            self._check_again = self._loop.later(0.02, self._check_quiet)

    def _ends_by_itself(self, pid: int) -> bool:
        """mpirun ends when its ranks do, and Open MPI 4 crashes on a SIGTERM meanwhile: it has half the grace time."""
        child = self._children.get(pid)
        if child is None or child.process is not None or self._plan["distribution"]["type"] != "mpi":
            return False
        return self._deadline is not None and self._deadline - time.monotonic() > self._plan["grace_s"] / 2

    def _say(self, text: str) -> None:
        print("%s node %d: %s" % (time.strftime("%H:%M:%S"), self._node.rank, text), file=sys.stderr, flush=True)


def run(plan: Dict[str, Any], node: Node) -> int:
    """Run one node to the job's end; returns the job's exit code."""
    try:
        os.chdir(node.working_dir)
        return NodeAgent(plan, node).run()
    except OSError as error:  # no working directory, a control port in use, ...
        text = "node %d cannot start: %s" % (node.rank, error)
        print(text, file=sys.stderr, flush=True)
        events.append(node.run_dir, "failure", node=node.rank, rank=None, exit_code=126, message=text)
        return 126

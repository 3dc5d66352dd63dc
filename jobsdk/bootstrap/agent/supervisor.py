"""All nodes of a job on this machine: the supervisor behind the local compute, one bootstrap for each node.

Each node is a fork of this process with its own identity, log folder and ports; it runs the same code as a node of
a cluster. The supervisor itself only prepares, watches, and cleans up after bootstraps that were killed.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from .. import distributions, launchers
from ..control.channel import Channel, Message, Outgoing
from ..control.loop import Loop
from ..control.server import HEARTBEAT_TIMEOUT_S, Pulse
from ..spec import events, exit_codes, paths, plan_file
from ..spec import ranks as ranks_
from ..system import network, private, processes
from . import agent, staging
from .node import Node

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..spec.event import Facts
    from ..spec.plan import Plan

_ADDRESS = "127.0.0.1"
_Used = Optional[Sequence[int]]  # what of the budgets was used (restarts.Used)


_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class _Bootstrap:
    def __init__(self, rank: int, channel: Channel) -> None:
        self.rank = rank
        self.channel = channel


class Supervisor:
    """Runs one job in `run_dir` (see the run folder's layout in the documentation) to its end."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._plan = plan_file.read(run_dir)
        self._native = events.read_json(run_dir + "/native.json")
        self._cancelled = False
        self._tokens: List[bytes] = []
        self._ended: List[Tuple[int, Optional[int], int]] = []  # (exit code, signal, node) of bootstraps, in order
        self._heard: Dict[int, float] = {}  # when each bootstrap gave a sign of life: pid -> time
        self._bootstraps: Dict[int, _Bootstrap] = {}
        self._to_replace: Set[int] = set()  # nodes that are to have another bootstrap once the present one has ended
        self._is_beginning = False  # all nodes are to be started again, after a delay
        self._began = time.time()
        self._heartbeat: float = self._plan.get("heartbeat_s", HEARTBEAT_TIMEOUT_S)
        self._silent: Set[int] = set()  # nodes whose bootstrap was killed because it hung

    def run(self) -> int:
        own = os.getpid()
        events.write_json(self._run_dir + "/owner.json", {"pid": own, "start": processes.start_time(own)})
        self._event("preparing")
        processes.become_subreaper()
        io_dir = staging.io_dir(self._run_dir)
        try:
            self._prepare(io_dir)
            self._io_dir = io_dir
            self._gpus = _shares_of_gpus(self._plan, self._event)
            self._loop = Loop()
            self._start_nodes(0, None)
            self._watch()
        except (staging.StagingError, OSError) as error:
            self._write_report("Failed", exit_codes.NOT_STARTED, str(error), 0)
        except Exception as error:  # a fault of ours; its traceback goes to supervisor.log
            _print_traceback()
            self._write_report(
                "Failed", exit_codes.FAULT, "the supervisor failed: %s: %s" % (type(error).__name__, error), 0
            )
        finally:
            processes.kill_descendants()
            staging.remove_io_dir(io_dir, self._run_dir)
            for token in self._tokens:
                launchers.clean_up(self._plan, token, os.environ)
            plan_file.forget_secrets(self._run_dir)
        return self._exit_code()

    def _prepare(self, io_dir: str) -> None:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._cancel_early)
        signal.signal(signal.SIGUSR1, lambda *_: None)  # there are no stacks to be shown yet
        cache = os.path.join(os.path.dirname(os.path.dirname(self._run_dir)), "cache", "downloads")
        staging.stage(self._plan, self._run_dir, cache, self._event)
        if not self._native["in_place"]:
            staging.link_outputs(self._native["working_dir"], self._run_dir)

    def _cancel_early(self, *_: Any) -> None:
        self._cancelled = True
        for signum in (signal.SIGTERM, signal.SIGINT):  # once is enough
            signal.signal(signum, lambda *_: None)
        raise staging.StagingError("cancelled")

    def _start_nodes(self, restart: int, used: _Used) -> None:
        """All nodes' bootstraps, with a control port and a token of their own."""
        self._is_beginning = False
        listener = network.listener(_ADDRESS, 0)
        self._control_port, self._token = listener.getsockname()[1], os.urandom(32)
        self._tokens.append(self._token)
        for rank in range(self._plan["nodes"]):
            self._start_node(rank, listener, restart, used)
        listener.close()

    def _start_node(
        self, rank: int, listener: Optional[socket.socket] = None, restart: int = 0, used: _Used = None
    ) -> None:
        ours, theirs = socket.socketpair()
        # What is sent to the fork before it has its own ways with signals would seem to have been sent to us.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            code = exit_codes.FAULT
            try:
                ours.close()
                self._forget_the_others()
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                if listener is not None and rank != 0:
                    listener.close()
                place = Node(
                    rank=rank, control_addresses=[_ADDRESS], control_ports=[self._control_port], token=self._token,
                    run_dir=self._run_dir, io_dir=self._io_dir, working_dir=self._native["working_dir"],
                    nodes_here=self._plan["nodes"], gpus=self._gpus[rank], lifeline=theirs,
                    listener=listener if rank == 0 else None, restart=restart, used=used,
                )  # fmt: skip
                code = _be_node(self._plan, place)
            finally:
                os._exit(code)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._silent.discard(rank)
        self._heard[pid] = time.monotonic()
        self._bootstraps[pid] = _Bootstrap(rank, Channel(self._loop, ours, partial(self._hear, pid), lambda _: None))
        self._event("bootstrap_up", node=rank, pid=pid, host=socket.gethostname())

    def _forget_the_others(self) -> None:
        """In the fork: what belongs to the supervisor alone."""
        self._loop.close()
        for signum in _SIGNALS:
            signal.signal(signum, signal.SIG_DFL)
        for bootstrap in self._bootstraps.values():
            bootstrap.channel.close()

    # -- watching ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        self._loop.on_signal(signal.SIGTERM, self._cancel)
        self._loop.on_signal(signal.SIGINT, self._cancel)
        self._loop.on_signal(signal.SIGUSR1, self._asked_for_stacks)
        self._pulse = Pulse(self._loop, self._look_after, self._heartbeat)
        self._reap()
        if self._bootstraps:
            self._loop.run()
        rank, text = self._first_end()
        said = events.said_by(self._run_dir, rank)
        if said is not None:  # it could not even begin
            self._write_report("Failed", said["exit_code"], said["message"], rank)
        else:
            self._write_report("Lost", exit_codes.LOST, text, rank)

    def _first_end(self) -> Tuple[int, str]:
        """The node whose bootstrap ended first, and how."""
        own = [end for end in self._ended if end[:2] != (exit_codes.LOST, None)]  # the others only lost node 0
        code, signum, rank = (own or self._ended or [(exit_codes.CANCELED, None, 0)])[0]
        how = exit_codes.describe(code, signum)
        if rank in self._silent:
            how = "gave no sign of life for %g s and %s" % (self._heartbeat, how)
        return rank, "the bootstrap of node %d %s" % (rank, how)

    def _hear(self, pid: int, message: Message) -> None:
        """A sign of life, or node 0 asks for another bootstrap of a node."""
        self._heard[pid] = time.monotonic()
        if message["type"] == "replace":
            self._to_replace.add(message["node"])
            self._replace()

    def _replace(self) -> None:
        """Start what node 0 waits for, where nothing of its forerunner is left."""
        if self._cancelled:
            return
        here = {bootstrap.rank for bootstrap in self._bootstraps.values()}
        for rank in sorted(self._to_replace - here):
            self._to_replace.discard(rank)
            self._ended = [end for end in self._ended if end[2] != rank]  # that has been seen to
            self._start_node(rank)

    def _asked_for_stacks(self) -> None:
        for name in os.listdir(self._run_dir):
            if name.startswith("stacks-") and name.endswith(".request"):
                os.unlink("%s/%s" % (self._run_dir, name))
                self._tell_node_0({"type": "stacks", "id": name[len("stacks-") : -len(".request")]})

    def _look_after(self, stood_still: bool) -> None:
        """Kill a bootstrap that hangs or is stopped; what it leaves is then ended as if it had been killed."""
        now = time.monotonic()
        ranks = {pid: bootstrap.rank for pid, bootstrap in self._bootstraps.items()}
        for pid, rank in ranks.items():
            # Of the others node 0 itself says that nothing was heard of them, which a kill would turn into a lost
            # connection: it has as long again for that.
            may_be_told = rank != 0 and rank not in self._to_replace and 0 in ranks.values()
            if stood_still:
                self._heard[pid] = now
            elif now - self._heard[pid] > self._heartbeat * (2 if may_be_told else 1):
                self._silent.add(rank)
                processes.send([pid], signal.SIGKILL)

    def _reap(self) -> None:
        for pid, status in processes.reap().items():
            bootstrap = self._bootstraps.pop(pid, None)
            if bootstrap is None:
                continue
            bootstrap.channel.close()
            code, signum = processes.exit_code(status)
            self._ended.append((code, signum, bootstrap.rank))
            self._kill_orphans()
            self._tell_node_0({"type": "lost", "node": bootstrap.rank, "pid": pid, "code": code})
            if bootstrap.rank == 0:  # the others follow by themselves, but for one that hangs or is stopped
                self._to_replace.clear()
                self._kill_the_rest_after(self._plan["grace_s"] + 2.0)
            self._replace()
        if not self._bootstraps and not self._is_beginning and not self._begin_again():
            self._loop.stop()

    def _begin_again(self) -> bool:
        """Node 0 has gone, and with it who decides: whether the job was or is started again, as far as it may be."""
        done = self._cancelled or os.path.exists(self._run_dir + "/report.json")
        if done or events.said_by(self._run_dir, 0) is not None:
            return False
        from . import resume

        end = next((code, signum) for code, signum, rank in self._ended if rank == 0)
        again = resume.under_supervisor(self._run_dir, self._plan, end, *self._first_end())
        if again is None:
            return False
        self._ended = []
        self._is_beginning = True
        (restart, used), delay = again
        self._loop.later(delay, lambda: self._start_nodes(restart, used) if not self._cancelled else None)
        return True

    def _kill_the_rest_after(self, seconds: float) -> None:
        pids = set(self._bootstraps)  # those of now: others may be started meanwhile
        self._loop.later(seconds, lambda: processes.send(list(pids & set(self._bootstraps)), signal.SIGKILL))

    def _kill_orphans(self) -> None:
        """The ranks of a bootstrap that was killed are ours now."""
        mine = set(self._bootstraps)
        kept = {pid for bootstrap in mine for pid in processes.descendants(bootstrap)}
        left = [pid for pid in processes.descendants(os.getpid()) if pid not in mine and pid not in kept]
        processes.send(left, signal.SIGKILL)

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._tell_node_0({"type": "cancel"})
            self._kill_the_rest_after(self._plan["grace_s"] + 5.0)
            if not self._bootstraps:  # between two starts
                self._loop.stop()

    def _tell_node_0(self, message: Outgoing) -> None:
        for bootstrap in self._bootstraps.values():
            if bootstrap.rank == 0:
                bootstrap.channel.send(message)

    # -- the end -------------------------------------------------------------------------------------------------

    def _write_report(self, status: str, code: int, message: str, rank: int) -> None:
        """For a job that no coordinator could bring to its end; what one has written stands."""
        from ..failures import fallback_report

        if self._cancelled:
            status, code, message = fallback_report.CANCELLED
        fallback_report.write_end(self._run_dir, self._plan, status, code, message, rank, self._began)

    def _exit_code(self) -> int:
        try:
            return int(events.read_json(self._run_dir + "/report.json")["exit_code"])
        except OSError:  # there was no room for it
            return next((int(one["exit_code"]) for one in events.of(self._run_dir, "ended")), exit_codes.LOST)

    def _event(self, event: str, **facts: Unpack[Facts]) -> None:
        events.note(self._run_dir, event, **facts)


def _be_node(plan: Plan, node: Node) -> int:
    """In the fork: this node's own log for what the bootstrap itself says, then the node's life."""
    folder = paths.node_logs(node.run_dir, node.rank)
    os.makedirs(folder, exist_ok=True)
    _write_to(folder + "/bootstrap.log")
    try:
        return agent.run(plan, node)
    except BaseException:
        _print_traceback()
        return exit_codes.FAULT


def _shares_of_gpus(plan: Plan, tell: Callable[..., None]) -> List[Optional[List[str]]]:
    """The machine's GPUs, split over the simulated nodes where the job says how many a process takes."""
    nodes = plan["nodes"]
    each = ranks_.gpus_of(plan, max(len(distributions.of(plan).node_processes(rank)) for rank in range(nodes)))
    gpus = processes.visible_gpus(os.environ)
    if not each:
        return [gpus] * nodes
    if gpus is None or len(gpus) < each * nodes:
        text = "the job asks for %d GPUs, this machine shows %d: CUDA_VISIBLE_DEVICES is left as it is"
        tell("warning", message=text % (each * nodes, len(gpus or [])))
        return [None] * nodes
    return [gpus[rank * each : (rank + 1) * each] for rank in range(nodes)]


def _print_traceback() -> None:
    import traceback  # 5 ms that only a fault of ours needs

    traceback.print_exc()


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
    file = private.open_file(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
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
    private.follow(run_dir)
    return supervisor.run()

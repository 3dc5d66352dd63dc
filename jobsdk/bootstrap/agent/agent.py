"""One node of the job: joins the control port, starts its ranks, watches them, ends them."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, cast

from .. import distributions
from ..control.channel import Message
from ..control.client import ControlClient
from ..control.loop import Loop, Timer
from ..control.server import HEARTBEAT_TIMEOUT_S
from ..coordinator.coordinator import BLAME_WINDOW_S, LONG_BLAME_WINDOW_S, Coordinator, Settings
from ..failures import tracebacks
from ..failures.collect import Autopsy
from ..launchers import base
from ..spec import events, exit_codes, mlflow_store, paths, variables
from ..spec import facts as facts_
from ..spec import ranks as ranks_
from ..system import infiniband, network, processes
from .facts import facts_of
from .log_clock import LogClock
from .requests import Requests
from .starter import RankStarter
from .supervisor_link import Lifeline

if TYPE_CHECKING:  # what few jobs need is imported where it is used
    from ..hangs.watch import Whereabouts
    from ..launchers.mpi_library import Library
    from ..launchers.ray_cluster import Member
    from ..remote_shell.sessions import Sessions
    from ..spec.report import RankEnd


class Node(NamedTuple):
    """Where this bootstrap is: found out by `detect`, or given by the local compute's supervisor."""

    rank: int
    control_addresses: Sequence[str]  # where node 0 may be reached
    control_ports: Sequence[int]  # where its control port may be: it takes the first that is free
    token: bytes
    run_dir: str
    io_dir: str  # a name of run_dir that is one word for a shell
    working_dir: str
    nodes_here: int = 1  # how many nodes of the job share this machine
    gpus: Optional[List[str]] = None
    lifeline: Optional[socket.socket] = None  # to and from a local supervisor
    listener: Optional[socket.socket] = None  # node 0 only: the control port, bound already
    hosts: Optional[List[str]] = None  # the names of all nodes, where they are known before they join
    restart: int = 0  # how often the job was started before node 0's bootstrap was
    broken: Optional[str] = None  # why nothing can be started here; node 0 is to hear of it
    used: Optional[List[int]] = None  # what of the budgets for restarts was used by then (restarts.Used)
    returns: bool = False  # whether somebody starts the whole job again when this node is taken away
    judged: bool = False  # whether somebody else says how the job ended when this node 0 is taken away


class _Child(NamedTuple):
    """A running process of this node: a rank, or (rank None) a foreign launcher."""

    process: Optional[ranks_.Process]
    log: str
    started: float


class NodeAgent:
    """The life of one node, from joining to the job's end. `run()` returns the job's exit code."""

    def __init__(self, plan: Dict[str, Any], node: Node) -> None:
        self._plan = plan
        self._distribution = distributions.of(plan)
        self._node = node
        self._loop = Loop()
        self._children: Dict[int, _Child] = {}
        self._clocks: Dict[int, LogClock] = {}
        self._restart: Optional[int] = None  # which start of the job this is; not known before it is told
        self._begun = False
        self._signalled = False  # ranks that end from now on were ended by us
        self._stopped_at: Optional[float] = None  # when ranks were told to end because of a failure
        self._deadline: Optional[float] = None  # when what has not obeyed SIGTERM is killed
        self._asked: Set[int] = set()  # processes that have had their SIGTERM
        self._check_again = Timer(0.0, lambda: None)
        self._quiet = False
        self._joined = False
        self._autopsy: Optional[Autopsy] = None
        self._whereabouts: Optional[Whereabouts] = None
        self._shells: Optional[Sessions] = None
        self._ray: Optional[Member] = None
        self._shells_opened = 0
        self._orphaned = False  # the local supervisor has gone
        self._code: Optional[int] = None
        self._host = socket.gethostname()
        self._inherited = {key: value for key, value in os.environ.items() if key not in variables.PRIVATE}
        self._coordinator: Optional[Coordinator] = None
        self._starter: Optional[RankStarter] = None

    def run(self) -> int:
        node, loop = self._node, self._loop
        processes.become_subreaper()
        loop.on_signal(signal.SIGCHLD, self._children_ended)
        loop.on_signal(signal.SIGTERM, self._preempted)
        loop.on_signal(signal.SIGINT, self._interrupted)
        heartbeat = self._plan.get("heartbeat_s", HEARTBEAT_TIMEOUT_S)
        lifeline = (
            Lifeline(loop, node.lifeline, self._plan, node.run_dir, self._abandoned, heartbeat)
            if node.lifeline
            else None
        )
        addresses, ports = node.control_addresses, node.control_ports
        if node.rank == 0:
            listener = node.listener or network.listener("", *ports)
            addresses, ports = (network.own_address(listener),), (listener.getsockname()[1],)
            settings = Settings(
                node.run_dir, node.token, node.hosts, lifeline.ask_for_node if lifeline else None, node.restart,
                node.used, node.returns or lifeline is not None, node.judged,
            )  # fmt: skip
            self._coordinator = Coordinator(loop, self._plan, listener, settings, self._job_ended)
            if lifeline is not None:
                lifeline.coordinator = self._coordinator
            else:
                Requests(loop, node.run_dir, self._plan, self._coordinator)
        self._client = ControlClient(
            loop, addresses, ports, node.token, "node", node.rank, self._plan["rendezvous_timeout_s"],
            self._join, self._message, self._control_lost, self._say,
            heartbeat,
        )  # fmt: skip
        try:
            loop.run()
        finally:
            processes.kill_descendants()
            self._leave_cluster()
            if self._starter is not None:
                self._starter.close()
            if self._shells is not None:
                from ..remote_shell import shims

                shims.forget(paths.shell(node.run_dir, node.rank))
        if self._orphaned and self._coordinator is not None:  # nobody else can clean up after other bootstraps
            processes.kill_run(self._node.run_dir)
        return exit_codes.LOST if self._code is None else self._code

    # -- the control port ----------------------------------------------------------------------------------------

    def _join(self) -> None:
        node = self._node
        self._joined = True
        self._send(
            "join", host=self._host, pid=os.getpid(), gpus=node.gpus, ports=self._ports(),
            cores=self._cores(), infiniband=self._infiniband(),
        )  # fmt: skip
        if node.broken is not None:
            self._failed(exit_codes.NOT_STARTED, node.broken, **{"class": "bootstrap_error"})
        else:
            self._prepare_metrics()

    def _cores(self) -> int:
        return max(1, processes.cores() // self._node.nodes_here)

    def _infiniband(self) -> Optional[List[str]]:
        """What this node has of it; of no interest for a node alone."""
        return infiniband.usable(self._plan.get("network") or {}) if self._plan["nodes"] > 1 else None

    def _send(self, kind: str, **facts: Any) -> None:
        """To node 0. What is said of a restart that is over is passed over there."""
        message = {"type": kind, "restart": self._restart}
        message.update(facts)
        self._client.send({key: value for key, value in message.items() if key != "restart" or value is not None})

    def _ports(self) -> List[int]:
        """Free ports that this node offers."""
        return network.free_ports(self._distribution.ports(self._node.rank))

    def _ranks(self) -> List[int]:
        return [process.rank for process in ranks_.node_processes(self._plan, self._node.rank)]

    def _prepare_metrics(self) -> None:
        if mlflow_store.has_store(self._plan, self._inherited):  # while the others join
            mlflow_store.prepare(self._plan, self._node.run_dir, self._ranks())

    def _message(self, message: Message) -> None:
        kind = message["type"]
        if self._code is not None:
            return  # it has been told that all is over
        if kind == "start":
            self._start(message)
        elif kind == "stop":
            self._stop(message["reason"])
        elif kind == "again":
            self._again(message["restart"])
        elif kind == "stacks":
            self._whereabouts_now().take(message["number"], message["places"])
        elif kind == "shell":
            self._shell(message)
        elif kind == "ray":
            self._go_on(message["what"])
        elif kind == "finish" and self._coordinator is None:
            self._job_ended(message["exit_code"])
        elif kind == "refused":
            self._say("node 0 refused this node: %s" % message["reason"])
            self._job_ended(exit_codes.LOST)

    def _control_lost(self, why: str) -> None:
        if self._code is None:
            self._say("lost the control port: %s" % why)
            self._code = exit_codes.LOST
            if self._quiet:
                self._loop.stop()
            self._stop("lost")

    def _again(self, restart: int) -> None:
        """The job is started once more: be as new, and say so."""
        self._restart = restart
        if self._starter is not None:
            self._starter.close()
        self._shells_opened = 0
        self._begun = self._signalled = self._quiet = False
        self._deadline = self._stopped_at = self._starter = self._autopsy = self._shells = None
        self._asked.clear()
        self._check_again.cancel()
        self._leave_cluster()
        self._prepare_metrics()
        self._send("ready", ports=self._ports())

    def _job_ended(self, code: int) -> None:
        self._code = code
        self._loop.stop()

    def _abandoned(self) -> None:
        """The supervisor has gone."""
        self._orphaned = True

    def _preempted(self) -> None:
        """SIGTERM: whoever started this bootstrap wants the node back, and will kill it before long."""
        if os.path.exists(paths.cancel_mark(self._node.run_dir)):
            self._interrupted()
        elif not self._joined:
            self._say("told to end by SIGTERM while waiting for node 0")
            self._job_ended(exit_codes.PREEMPTED)
        else:
            text = "node %d (%s) was told to end by SIGTERM" % (self._node.rank, self._host)
            self._failed(exit_codes.PREEMPTED, text, **{"class": "preempted", "restart": None})  # of whatever start

    def _interrupted(self) -> None:
        """SIGINT: somebody at a terminal ends the job."""
        if self._joined:
            self._send("cancel", restart=None)
        else:
            self._job_ended(128 + signal.SIGINT)

    # -- starting ------------------------------------------------------------------------------------------------

    def _start(self, message: Message) -> None:
        if self._signalled or self._begun:
            return
        self._begun = True
        self._restart = message["restart"]
        node = self._node
        own = {"cores": self._cores(), "gpus": node.gpus}
        facts = facts_of(dict(message, **own), self._inherited, node.run_dir, node.io_dir)
        assert self._client.reached is not None
        control = variables.control_variables(message["addresses"][0], self._client.reached[1], node.token)
        self._autopsy = Autopsy(self._plan, facts)
        self._starter = RankStarter(self._plan, node.rank, control, self._began_process, self._warn)
        try:
            if ranks_.has_shell(self._plan):
                self._shells = self._new_shells(self._starter.prepare_shell(facts), facts.addresses[node.rank])
            if ranks_.has_cluster(self._plan):
                self._join_cluster(facts)
            else:
                self._starter.start(facts)
        except OSError as error:
            self._cannot_start(error)
            return
        if self._plan["hang_timeout_s"]:
            self._whereabouts_now().watch(self._plan["hang_timeout_s"], self._logs)
        self._check_quiet()

    def _join_cluster(self, facts: facts_.Facts) -> None:
        """Be ready for a Ray cluster: its head is the first to start."""
        from ..launchers.ray_cluster import Member

        node = self._node
        self._ray = Member(self._plan, node.rank, facts, node.nodes_here if node.lifeline else 0, node.token)
        self._ray.prepare()
        if node.rank == 0:
            self._go_on("join")

    def _go_on(self, what: str) -> None:
        """The nodes are to join the Ray cluster, or all have, and node 0 is to run the command."""
        if self._ray is None or self._starter is None or self._signalled:
            return
        try:
            if what == "run":
                self._starter.start(self._ray.facts)
            elif self._ray.pid is None:
                pid = self._ray.start(self._loop, lambda: self._send("clustered"))
                self._began_process(pid, None, self._ray.log)
        except OSError as error:
            self._cannot_start(error)

    def _leave_cluster(self) -> None:
        if self._ray is not None:
            self._ray.close()
            self._ray = None

    def _cannot_start(self, error: OSError) -> None:
        text = "node %d cannot start its processes: %s" % (self._node.rank, error)
        self._failed(exit_codes.NOT_STARTED, text, **{"class": "bootstrap_error"})

    def _shell(self, message: Message) -> None:
        """Another process of the job has a command run here."""
        if message["what"] != "open":
            if self._shells is not None:
                self._shells.heard(message)
            return
        self._shells_opened += 1
        self._quiet = False
        if self._signalled or self._shells is None:
            self._send("shell", session=message["session"], what="refused", message="the job is being stopped")
        else:  # what commands before it have left behind may stay as long as it runs
            self._deadline = None
            self._asked.clear()
            self._shells.heard(message)
        self._check_quiet()

    def _new_shells(self, environment: Mapping[str, str], address: str) -> Sessions:
        from ..remote_shell.sessions import Sessions

        def send(session: str, what: str, **facts: Any) -> None:
            self._send("shell", session=session, what=what, **facts)

        return Sessions(self._loop, environment, address, self._plan["grace_s"], send)

    def _began_process(self, pid: int, process: Optional[ranks_.Process], log: str) -> None:
        started = self._client.now()
        self._children[pid] = _Child(process, log, started)
        if self._autopsy is not None:
            self._autopsy.began(pid)
        if process is None:
            return
        self._send("rank_started", t=started, node=self._node.rank, rank=process.rank, pid=pid)
        restart, rank = self._restart, process.rank

        def tell(what: str, when: float) -> None:
            if self._restart == restart:
                self._send(what, t=when + self._client.offset, node=self._node.rank, rank=rank)

        place = (self._node.run_dir, self._node.rank, rank, restart or 0)
        self._clocks[pid] = LogClock(self._loop, log, paths.times(*place), paths.reports(*place), tell)
        if self._distribution.uses_mpi:
            from ..launchers import mpi_library

            if mpi_library.is_out_of_place(self._plan, process.rank):
                mpi_library.Watch(self._loop, pid, self._warn_of_library)

    def _warn_of_library(self, library: Library) -> None:
        from ..launchers import mpi_library

        self._warn(mpi_library.warning(library))

    def _warn(self, text: str) -> None:
        self._send("warning", message=text)

    def _logs(self) -> List[str]:
        """The files that are written to by what runs here; a launcher may have started any of the ranks."""
        own = [child.log for child in self._children.values()]
        if self._plan["distribution"]["launcher"] == "direct":
            return own
        folder, restart = self._node.run_dir, self._restart or 0
        ranks = ranks_.processes(self._plan)
        return own + [paths.rank_log(folder, one.node_rank, one.rank, restart) for one in ranks]

    def _whereabouts_now(self) -> Whereabouts:
        from ..hangs.watch import Whereabouts

        if self._whereabouts is None:
            self._whereabouts = Whereabouts(self._loop, self._node.run_dir, self._node.rank, self._send)
        return self._whereabouts

    # -- watching ------------------------------------------------------------------------------------------------

    def _children_ended(self) -> None:
        ended = processes.reap()
        if self._starter is not None:
            self._starter.adopt()
        for pid, status in ended.items():
            child = self._children.pop(pid, None)  # others are adopted grandchildren
            if pid in self._clocks:
                self._clocks.pop(pid).over()
            if child is not None:
                self._child_ended(pid, child, status)
            elif self._shells is not None and self._shells.ended(pid, status):
                self._daemon_ended()
            elif self._whereabouts is not None:
                self._whereabouts.taken(pid)
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
        message: Dict[str, Any] = {
            "t": self._client.now(), "node": self._node.rank, "rank": child.process.rank, "pid": pid,
            "exit_code": code, "signal": signum, "stopped": self._signalled, "started": child.started,
            "host": self._host,
        }  # fmt: skip
        if failed:
            message.update(self._last_words(pid, child.log, code, signum))
        elif self._stopped_at is not None and signum == signal.SIGTERM and self._autopsy is not None:
            message.update(self._autopsy.before(self._stopped_at, pid, child.log, code, signum))
            if "failed_before" in message:
                message["failed_before"] += self._client.offset
        self._send("rank_ended", **message)
        if failed:
            self._stop_soon(message)

    def _launcher_ended(self, pid: int, child: _Child, code: int, signum: Optional[int], failed: bool) -> None:
        if self._ray is not None and self._ray.pid == pid and not self._signalled:
            how = tracebacks.describe(code, signum)
            what = "ended while the job ran" if self._ray.is_up else "could not be started"
            text = "Ray on node %d %s: %s" % (self._node.rank, what, self._ray.last_words() or how)
            self._failed(code or exit_codes.LOST, text, pid=pid, signal=signum, **{"class": "ray_ended"})
            return
        if not failed:
            return
        what = "%s on node %d %s" % (base.name(self._plan), self._node.rank, tracebacks.describe(code, signum))
        from ..launchers import mpirun

        culprit = mpirun.aborted(self._plan, self._node.run_dir, self._restart or 0)
        if culprit is not None:
            self._blame_abort(culprit[0], code, ", and %s" % what)
        else:
            self._failed(code, what, pid=pid, signal=signum, **self._last_words(pid, child.log, code, signum))

    def _daemon_ended(self) -> None:
        """What others have started here by the remote shell may have been mpirun's daemon, which never says why."""
        if self._plan["distribution"]["launcher"] == "direct" or self._signalled:
            return
        from ..launchers import mpirun

        culprit = mpirun.aborted(self._plan, self._node.run_dir, self._restart or 0, self._node.rank)
        if culprit is not None:
            self._blame_abort(*culprit)

    def _blame_abort(self, culprit: ranks_.Process, code: int, and_then: str = "") -> None:
        log = paths.rank_log(self._node.run_dir, culprit.node_rank, culprit.rank, self._restart or 0)
        what = "rank %d on node %d called MPI_Abort%s" % (culprit.rank, culprit.node_rank, and_then)
        words = self._last_words(None, log, code, None)
        if words["error"] is None:  # else that is what it was; MPICH's own words after the abort speak of lost peers
            words["class"] = "mpi_abort"
        self._failed(code, what, node=culprit.node_rank, rank=culprit.rank, **words)

    def _last_words(self, pid: Optional[int], log: str, code: int, signum: Optional[int]) -> Dict[str, Any]:
        assert self._autopsy is not None
        return self._autopsy.of(pid, log, code, signum)

    def _failed(self, code: int, message: str, **facts: Any) -> None:
        record = {"t": self._client.now(), "node": self._node.rank, "rank": None, "exit_code": code, "message": message,
                  "host": self._host}  # fmt: skip
        record.update(facts)
        self._send("failed", **record)
        self._stop_soon(record)

    # -- stopping ------------------------------------------------------------------------------------------------

    def _stop_soon(self, record: Message) -> None:
        """After a failure here: what it causes in other ranks, or what caused it, is to show itself first."""
        from ..failures import classify

        restart, hold = (
            self._restart,
            BLAME_WINDOW_S if classify.speaks_for_itself(cast("RankEnd", record)) else LONG_BLAME_WINDOW_S,
        )
        self._loop.later(hold, lambda: self._stop("failure") if restart == self._restart else None)

    def _stop(self, reason: str) -> None:
        """SIGTERM to all that runs on this node, a grace time, SIGKILL."""
        if not self._signalled:
            if reason == "failure":  # what has ended by now has failed too, and was not ended by us
                self._children_ended()
            self._signalled = True
            self._stopped_at = time.time() if reason == "failure" else None
            if self._whereabouts is not None:
                self._whereabouts.close()
            self._wind_up()

    def _wind_up(self) -> None:
        """End what is left: ranks that we stop, and what ranks that have ended left behind."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._plan["grace_s"]
        self._check_quiet()

    def _check_quiet(self) -> None:
        running = bool(self._children or (self._shells is not None and self._shells.living()))
        running = running or (self._ray is not None and not self._signalled)  # it is to join, or to wait for the others
        if self._quiet or (running and self._deadline is None):
            return
        left = processes.descendants(os.getpid())
        if self._whereabouts is not None:
            left = self._whereabouts.others(left)
        if not left and not running:
            self._quiet = True
            if self._plan["distribution"]["launcher"] == "direct":  # else they may still be started from another node
                mlflow_store.tidy(self._node.run_dir, self._ranks())
            self._send("quiet", shells=self._shells_opened)
            if self._code is not None:
                self._loop.stop()
        elif self._deadline is None:
            self._wind_up()
        else:
            if time.monotonic() >= self._deadline:
                processes.send(left, signal.SIGKILL)
                processes.strike()
            else:  # some may have been started since the last look
                spared = self._spared()
                unasked = [pid for pid in left if pid not in self._asked | spared and not self._ends_by_itself(pid)]
                processes.send(unasked, signal.SIGTERM)
                self._asked.update(unasked)
            self._check_again.cancel()
            self._check_again = self._loop.later(0.02, self._check_quiet)

    def _spared(self) -> Set[int]:
        """Of a Ray cluster what is not told to end: all while the command may still need it, for half the grace time,
        and then what `ray start` ends by itself."""
        if self._ray is None or self._deadline is None or self._ray.pid not in self._children:
            return set()
        is_needed = len(self._children) > 1 and self._deadline - time.monotonic() > self._plan["grace_s"] / 2
        own = self._ray.own()
        if not own and self._ray.pid in self._asked:  # it has ended all of them, and takes seconds to end itself
            processes.send([self._ray.pid], signal.SIGKILL)
        return own | ({self._ray.pid} if is_needed else set())

    def _ends_by_itself(self, pid: int) -> bool:
        """Whether it is a launcher, or a launcher's daemon, that may end with its ranks."""
        child = self._children.get(pid)
        if child is None:
            launched = self._shells is not None and pid in self._shells.living()  # its daemon
        else:
            launched = child.process is None
        if not launched or self._deadline is None:
            return False
        return self._distribution.spares_launcher(self._deadline - time.monotonic())

    def _say(self, text: str) -> None:
        print("%s node %d: %s" % (time.strftime("%H:%M:%S"), self._node.rank, text), file=sys.stderr, flush=True)


def run(plan: Dict[str, Any], node: Node) -> int:
    """Run one node to the job's end; returns the job's exit code."""
    try:
        os.chdir(node.working_dir)
    except OSError as error:
        node = node._replace(broken=node.broken or "node %d cannot start: %s" % (node.rank, error))
    try:
        return NodeAgent(plan, node).run()
    except OSError as error:  # the control port is in use, ...
        text = "node %d cannot start: %s" % (node.rank, error)
        print(text, file=sys.stderr, flush=True)
        events.append(
            node.run_dir,
            "failure",
            node=node.rank,
            rank=None,
            exit_code=exit_codes.NOT_STARTED,
            message=text,
            alone=True,
        )
        if node.rank == 0 and node.lifeline is None:  # nobody else will write a report
            from ..failures import fallback_report

            fallback_report.write_end(node.run_dir, plan, "Failed", exit_codes.NOT_STARTED, text, 0, time.time())
        return exit_codes.NOT_STARTED

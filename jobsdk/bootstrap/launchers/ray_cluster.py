"""A Ray cluster over the nodes of a job: what each node starts for it, and how node 0 knows that all have joined.

Each node runs one `ray start --block`: node 0 the head, the others, once that is up, a worker each. When all are up the
command is started on node 0. They end with the job, by signals to them alone: `ray stop` would end every Ray of
the machine. Ray is never imported here: it may be installed for another Python than ours.
"""

from __future__ import annotations

import glob
import os
import re
import signal
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Set

from ..control.loop import Loop
from ..control.rendezvous import Rendezvous
from ..distributions import contract
from ..distributions.ray import _CLIENT, _DASHBOARD, _HEAD, _address, _derived, folder, remove, variables
from ..failures import tracebacks
from ..spec import exit_codes, paths
from ..spec import facts as facts_
from ..system import processes
from . import base

if TYPE_CHECKING:
    from ..spec.plan import Plan

#: `ray start` writes this when its node is known to the head, and alive.
_UP = b"Ray runtime started"
#: And this of each of its processes that has ended unexpectedly.
_DEAD = re.compile(r"(?m)(\w+) \[exit code=(-?\d+)\]")
_LOOK_EVERY = 0.05  # seconds between two looks for that
#: Ray keeps Unix sockets at up to this many bytes below its folder; a path of one has at most 107.
_ROOM = 107 - len("/n9999/session_2026-01-01_00-00-00_123456_1234567/sockets/plasma_store.1")
#: Bytes of each node's object store on the local compute, where it would be 30 % of the machine's memory.
_STORE, _LEAST_STORE = 1 << 30, 80 << 20


class ClusterFailure(NamedTuple):
    """Why there is no cluster: the class of the failure, and what happened."""

    kind: str
    message: str


class Member:
    """One node's part in the cluster, for one start of the job.

    `sharers` is how many nodes of the job share this machine on the local compute, and 0 elsewhere; `token` is the
    run's.
    """

    def __init__(
        self,
        plan: Plan,
        node_rank: int,
        facts: facts_.Facts,
        sharers: int,
        token: bytes,
    ) -> None:
        self.facts = facts = facts._replace(ray=folder(plan, token, facts.inherited))
        self.log = paths.ray_log(facts.run_dir, node_rank, facts.restart_count)
        self.pid: Optional[int] = None
        self.is_up = False
        self._plan = plan
        self._node_rank = node_rank
        self._sharers = sharers
        self._token = token
        self._program = ""
        self._over = False

    def prepare(self) -> None:
        """Make the folder that Ray's files go to. Raises OSError, also where there is no Ray."""
        variables = dict(self.facts.inherited, **self._plan["environment"])
        program = base.find("ray", variables.get("PATH"))
        if program is None:
            raise FileNotFoundError(
                "no ray on PATH. Fix: pip install 'ray[default]' in the environment that all nodes start in, the same "
                "version on each"
            )
        self._program = program
        place = str(self.facts.ray)
        if len(os.fsencode(place)) > _ROOM:
            raise OSError("RAY_TMPDIR is too long for Ray's sockets, by %d characters: %s. Fix: take a shorter one" % (
                len(os.fsencode(place)) - _ROOM, os.path.dirname(place)))  # fmt: skip
        os.makedirs(place, mode=0o700, exist_ok=True)
        if os.stat(place).st_uid != os.getuid():
            raise PermissionError("%s belongs to somebody else" % place)
        partly = "%s/token.%d" % (place, self._node_rank)
        with open(os.open(partly, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(_derived(self._token, "token"))
        os.replace(partly, "%s/token" % place)
        os.makedirs("%s/n%d" % (place, self._node_rank), mode=0o700, exist_ok=True)

    def start(self, loop: Loop, up: Callable[[], None]) -> int:
        """Start this node's Ray; `up` is called when it has joined the cluster. Raises OSError."""
        os.makedirs(os.path.dirname(self.log), exist_ok=True)
        self.pid = processes.start(self._argv(), self._environment(), self.log)

        def look() -> None:
            if self._over:
                return
            if _UP in self._said():
                self.is_up = True
                up()
            else:
                loop.later(_LOOK_EVERY, look)

        look()
        return self.pid

    def close(self) -> None:
        """Nothing of it runs any more: take away what it has left."""
        self._over = True
        remove(str(self.facts.ray), self._node_rank)

    def spared(self, asked: Set[int], is_needed: bool) -> Set[int]:
        """Processes that get no SIGTERM: those that `ray start` has started and ends itself, and, while the command
        still needs the cluster, `ray start`. `asked` are the processes that have had theirs."""
        if self.pid is None:
            return set()
        own = set(processes.descendants(self.pid))
        if not own and self.pid in asked:  # it has ended all of them, and takes seconds to end itself
            processes.send([self.pid], signal.SIGKILL)
        return own | ({self.pid} if is_needed else set())

    def failure(self, code: int, signum: Optional[int]) -> ClusterFailure:
        """Why the cluster of this node has ended before the command."""
        what = "ended while the job ran" if self.is_up else "could not be started"
        how = self.last_words() or exit_codes.describe(code, signum)
        return ClusterFailure("ray_ended", "Ray on node %d %s: %s" % (self._node_rank, what, how))

    def last_words(self) -> str:
        """What `ray start` said of why it ended: the process that it missed, an exception, or its last line."""
        text = tracebacks.plain(self._said().decode("utf-8", "replace"))
        found = _DEAD.search(text)
        if found is not None:
            code = int(found[2])
            return "its %s %s" % (found[1], exit_codes.describe(code, -code if code < 0 else None))
        lines = [line.partition(" -- ")[2] or line for line in text.splitlines() if line.strip()]
        return str(tracebacks.last_words(self.log)["error"] or (lines[-1].strip() if lines else ""))[:200]

    def _said(self) -> bytes:
        try:
            with open(self.log, "rb") as file:
                return file.read()
        except OSError:
            return b""

    def _argv(self) -> List[str]:
        import shlex

        given, facts, number = self._plan["distribution"], self.facts, self._node_rank
        gpus = self._gpus()
        argv = [self._program, "start", "--block", "--log-color=false"]
        address = variables(self._plan, facts)["RAY_ADDRESS"]
        argv += ["--address=" + address] if number else ["--head", *self._of_head()]
        argv += ["--node-ip-address=" + _address(facts.addresses[number], number)]
        argv += ["--temp-dir=%s/n%d" % (facts.ray, number), "--num-cpus=%s" % facts.cores]
        if gpus is not None:
            argv.append("--num-gpus=%d" % len(gpus))
        if self._sharers:
            argv.append("--object-store-memory=%d" % self._store())
        # Ray's own choice are fixed ports, for which two nodes on one machine would fight.
        argv += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        more = given.get("worker_node_additional_args") if number else given.get("head_node_additional_args")
        return argv + shlex.split(more or "")

    def _of_head(self) -> List[str]:
        given, ports = self._plan["distribution"], self.facts.ports[0]
        argv = ["--port=%s" % (given.get("port") or ports[_HEAD])]
        argv.append("--include-dashboard=%s" % ("true" if given.get("include_dashboard") else "false"))
        argv.append("--dashboard-port=%s" % (given.get("dashboard_port") or ports[_DASHBOARD]))
        if self._has_clients():
            argv.append("--ray-client-server-port=%s" % ports[_CLIENT])
        return argv

    def _has_clients(self) -> bool:
        """Whether Ray will start a server for its clients, which it does where grpc is installed, and else refuses."""
        packages = glob.escape(os.path.dirname(os.path.dirname(self._program))) + "/lib/python3*/*-packages"
        return any(os.path.isdir(folder + "/ray") and os.path.isdir(folder + "/grpc") for folder in glob.glob(packages))

    def _gpus(self) -> Optional[List[str]]:
        """The node's own: where nodes share a machine, and the job does not say how many each takes, its part."""
        gpus = self.facts.gpus
        if gpus is None or self._sharers < 2 or self._plan["gpus_per_process"]:
            return None if gpus is None else list(gpus)
        each = len(gpus) // self._sharers
        return list(gpus[self._node_rank * each : (self._node_rank + 1) * each])

    def _store(self) -> int:
        try:
            system = os.statvfs("/dev/shm")
            free = system.f_bavail * system.f_frsize
        except OSError:
            free = 0
        return max(_LEAST_STORE, min(_STORE, free // 2 // self._sharers))

    def _environment(self) -> Dict[str, str]:
        """What the tasks and actors of the job find on this node, too: they inherit it."""
        facts, plan = self.facts, self._plan
        environment = dict(facts.inherited, **contract.Contract(plan, facts).of_node(self._node_rank))
        if "OMP_NUM_THREADS" not in plan["environment"] and "OMP_NUM_THREADS" not in facts.inherited:
            del environment["OMP_NUM_THREADS"]  # Ray gives each task as many as it has of the node's cores
        # Modules of the job's code, wherever that lies on this node.
        environment["PYTHONPATH"] = ":".join(filter(None, (environment.get("PYTHONPATH"), os.getcwd())))
        environment.setdefault(
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0"
        )  # the command has ended: nothing to wait for
        gpus = self._gpus()
        if gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return environment


class Assembly:
    """On node 0, for one start of the job: who has joined, and what is to be done next.

    `tell(node, message)` tells one node, or with None all of them; `wait(text, missing)` hears every ten seconds who is
    missing, `failed(why, missing)` at the end of the job's rendezvous timeout.
    """

    def __init__(
        self,
        loop: Loop,
        plan: Plan,
        hosts: Dict[int, str],
        tell: Callable[[Optional[int], Dict[str, Any]], object],
        wait: Callable[[str, List[int]], None],
        failed: Callable[[ClusterFailure, List[int]], None],
    ) -> None:
        def complete() -> None:
            tell(0, {"type": "cluster", "what": "run"})

        def never_complete(text: str, missing: List[int]) -> None:
            log = paths.ray_log("", missing[0]).lstrip("/")
            failed(ClusterFailure("ray_missing", "no Ray cluster: %s; see %s" % (text, log)), missing)

        self._tell = tell
        self._rendezvous = Rendezvous(
            loop, plan["nodes"], hosts, plan["rendezvous_timeout_s"],
            lambda text, missing: wait("Ray: " + text, missing),
            complete, never_complete,
        )  # fmt: skip

    def joined(self, node: int) -> None:
        if node == 0:
            self._tell(None, {"type": "cluster", "what": "join"})
        self._rendezvous.ready(node, {})

    def close(self) -> None:
        self._rendezvous.close()

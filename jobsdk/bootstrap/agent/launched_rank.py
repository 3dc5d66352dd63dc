"""One rank under a foreign launcher: joins the control port, runs the user's command, reports its end."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Optional

from .. import distributions, launchers
from ..control.channel import Message
from ..control.client import ControlClient
from ..control.loop import Loop
from ..control.server import HEARTBEAT_TIMEOUT_S
from ..distributions import contract
from ..failures.collect import Autopsy
from ..launchers import base
from ..spec import exit_codes, paths, plan_file, ranks
from ..spec import variables as variables_
from ..system import private, processes
from .facts import facts_of
from .log_clock import LogClock
from .progress import latest_step

if TYPE_CHECKING:
    from ..spec.messages import RankStarted
    from ..spec.plan import Plan
    from ..spec.report import RankEnd

_JOIN_TIMEOUT_S = 60.0  # seconds; the control port is up before the launcher starts


class LaunchedRank:
    """`run()` returns the exit code of the user's command, so that the launcher sees the truth too."""

    def __init__(self, plan: Plan, rank: int, size: int) -> None:
        self._plan = plan
        self._size = size
        self._loop = Loop()
        self._code = 1
        self._pid: Optional[int] = None
        self._stopped = False
        node = distributions.of(plan).node_of(rank)
        local = rank - distributions.of(plan).first_rank(node)
        self._process = ranks.Process(rank, local, node, distributions.of(plan).size_of(node), "worker", rank)
        run_dir = os.environ["JOBSDK_RUN_DIR"]
        self._run_dir = run_dir
        self._restart = 0
        self._autopsy: Optional[Autopsy] = None
        self._log = paths.rank_log(run_dir, node, rank)
        self._started = time.time()

    def run(self) -> int:
        loop = self._loop
        address, port = os.environ[variables_.CONTROL].split()
        token = bytes.fromhex(os.environ[variables_.TOKEN])
        loop.on_signal(signal.SIGTERM, self._told_to_end)
        loop.on_signal(signal.SIGINT, self._told_to_end)
        loop.on_signal(signal.SIGCHLD, self._child_ended)  # last: whoever ended us may have ended the child first
        self._client = ControlClient(
            loop, [address], [int(port)], token, "rank", self._process.rank, _JOIN_TIMEOUT_S,
            lambda: self._client.send({"type": "facts"}), self._message, self._lost,
            heartbeat=self._plan.get("heartbeat_s", HEARTBEAT_TIMEOUT_S),
        )  # fmt: skip
        loop.run()
        return self._code

    def _message(self, message: Message) -> None:
        if message["type"] == "start":
            self._start(message)
        elif message["type"] == "noted":
            self._loop.stop()

    def _start(self, message: Message) -> None:
        self._restart = message["restart"]
        self._log = paths.rank_log(self._run_dir, self._process.node_rank, self._process.rank, self._restart)
        expected = distributions.of(self._plan).world_size()
        if self._size != expected:
            text = "the launcher made a world of %d ranks, the job has %d" % (self._size, expected)
            self._report(1, None, {"error": text})
            return
        environ = os.environ
        inherited = {key: value for key, value in environ.items() if key not in variables_.PRIVATE}
        node = self._process.node_rank
        if environ.get(variables_.NODE, str(node)) != str(node):
            text = "the launcher put rank %d on node %s, its place is node %d"
            self._report(1, None, {"error": text % (self._process.rank, environ[variables_.NODE], node)})
            return
        facts = facts_of(message, inherited, environ["JOBSDK_RUN_DIR"], environ[variables_.IO_DIR])
        variables = dict(inherited, **contract.Contract(self._plan, facts).environment(self._process))
        argv = processes.shell_argv(paths.rendered(self._plan, facts.io_dir))
        os.makedirs(os.path.dirname(self._log), exist_ok=True)
        self._started = self._client.now()
        try:
            os.chdir(environ.get(variables_.WORKING_DIR, "."))
            self._autopsy = Autopsy(self._plan, facts)
            self._pid = processes.start(argv, variables, self._log)
            self._autopsy.began(self._pid)
        except OSError as error:
            self._report(exit_codes.NOT_STARTED, None, {"error": str(error)})
            return
        began: RankStarted = {
            "type": "rank_started", "restart": self._restart, "t": self._started, "node": node,
            "rank": self._process.rank, "pid": self._pid, "host": socket.gethostname(),
        }  # fmt: skip
        self._client.send(began)

        def tell(what: str, when: float) -> None:
            self._client.send({**began, "type": what, "t": when + self._client.offset})

        place = (self._run_dir, node, self._process.rank, self._restart)
        self._clock = LogClock(self._loop, self._log, paths.times(*place), paths.reports(*place), tell)
        if expected > 1:
            launchers.watch_launched(self._loop, self._pid, os.environ, self._failed)

    def _failed(self, kind: str, error: str) -> None:
        rank, node = self._process.rank, self._process.node_rank
        failure: RankEnd = {
            "type": "failed", "restart": self._restart, "t": self._client.now(), "node": node, "rank": rank,
            "pid": self._pid, "exit_code": 1, "signal": None, "class": kind, "error": error,
            "host": socket.gethostname(),
        }  # fmt: skip
        self._client.send(failure)

    def _child_ended(self) -> None:
        for pid, status in processes.reap().items():
            if pid == self._pid:
                self._clock.over()
                code, signum = processes.exit_code(status)
                failed = bool(code) and not self._stopped
                words: RankEnd = self._autopsy.of(pid, self._log, code, signum) if failed and self._autopsy else {}
                self._report(code, signum, words)

    def _report(self, code: int, signum: Optional[int], words: RankEnd) -> None:
        self._code = code
        end: RankEnd = {
            "type": "rank_ended", "restart": self._restart, "t": self._client.now(), "node": self._process.node_rank,
            "rank": self._process.rank, "pid": self._pid, "exit_code": code, "signal": signum, "stopped": self._stopped,
            "started": self._started, "host": socket.gethostname(),
        }  # fmt: skip
        end.update(words)
        step = latest_step(self._plan, self._run_dir, self._process, self._restart)
        if step is not None:
            end["step"] = step
        self._client.send(end)

    def _told_to_end(self) -> None:
        self._stopped = True
        if self._pid is None:
            self._loop.stop()
        else:
            processes.send([self._pid, *processes.descendants(self._pid)], signal.SIGTERM)

    def _lost(self, why: str) -> None:
        print("rank %d lost the control port: %s" % (self._process.rank, why), file=sys.stderr, flush=True)
        if self._pid is not None:
            processes.send([self._pid, *processes.descendants(self._pid)], signal.SIGKILL)
        self._loop.stop()


def run() -> int:
    private.follow(os.environ["JOBSDK_RUN_DIR"])
    plan = plan_file.read(os.environ["JOBSDK_RUN_DIR"])
    rank, size = base.rank_and_size(dict(os.environ))
    return LaunchedRank(plan, rank, size).run()

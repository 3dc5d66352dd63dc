"""Starting what the job runs on one node: its ranks, or the launcher that starts them elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional

from .. import distributions, launchers
from ..distributions import contract
from ..hangs import arming
from ..launchers import base
from ..spec import facts as facts_
from ..spec import paths, variables
from ..spec import ranks as ranks_
from ..spec.ranks import Rank
from ..system import processes

if TYPE_CHECKING:  # what few jobs need is imported where it is used
    from ..launchers.preload import Preload
    from .membership import Membership


#: Told of every process that has been started: its pid, which rank it is (None: not a rank), and its log.
Began = Callable[[int, Optional[ranks_.Process], str], None]


class RankStarter:
    """Starts one node's processes, for one attempt.

    `control` are the variables by which other processes find the control port. `rests(pid, True)` is called when a
    process that forked ranks and stays has nothing left to do in this attempt, and with False before it works again.
    """

    def __init__(
        self,
        launcher: launchers.Launcher,
        control: Mapping[str, str],
        began: Began,
        member: Membership,
        rests: Callable[[int, bool], None],
    ) -> None:
        self._launcher = launcher
        self._plan = launcher.plan
        self._node_rank = launcher.node_rank
        self._control = control
        self._began = began
        self._member = member
        self._rests = rests
        self._waiting: List[Rank] = []  # ranks that are to be forked
        self._command = ""
        self._preload_log = ""
        self._was_ordered = False  # the process that forks did so in an earlier attempt too
        self._refused = ""  # why none are forked

    def start(self, facts: facts_.Facts) -> None:
        """Raises OSError where something cannot be started."""
        os.makedirs(paths.node_logs(facts.run_dir, self._node_rank), exist_ok=True)
        arming.prepare(facts.run_dir)
        if distributions.of(self._plan).has_hostfile:
            base.write_hostfile(self._plan, facts)
        self._command = self._launcher.rank_command(paths.rendered(self._plan, facts.io_dir))
        if not self._launcher.is_direct:
            self._start_launcher(facts)
            return
        ranks = self._ranks(facts)
        may_fork = ranks and self._launcher.can_fork and self._plan.get("preload")
        if not (may_fork and self._start_preloaded(ranks, facts)):
            self._start_ranks(ranks)

    def _ranks(self, facts: facts_.Facts) -> List[Rank]:
        environment = contract.Contract(self._plan, facts)
        return [
            Rank(
                process,
                dict(facts.inherited, **environment.environment(process)),
                paths.rank_log(facts.run_dir, self._node_rank, process.rank, facts.restart_count),
            )
            for process in distributions.of(self._plan).node_processes(self._node_rank)
        ]

    def _start_ranks(self, ranks: List[Rank]) -> None:
        argv = processes.shell_argv(self._command)
        if self._plan.get("preflight"):
            argv = base.own_argv("preflight")
        for rank in ranks:
            self._began(processes.start(argv, rank.environment, rank.log), rank.process, rank.log)

    def _start_launcher(self, facts: facts_.Facts) -> None:
        started = self._launcher.command(facts)
        if started is None:
            return
        argv, extra = started
        environment = dict(self._of_launcher(facts), **extra)
        log = paths.launcher_log(facts.run_dir, self._node_rank, facts.restart_count)
        self._began(processes.start(argv, environment, log), None, log)

    def _of_launcher(self, facts: facts_.Facts) -> Dict[str, str]:
        """What a launcher finds on this node, and what it starts here from another one."""
        environment = base.chosen(self._plan, facts)
        environment.update(self._control, JOBSDK_RUN_DIR=facts.run_dir, JOBSDK_RUN_NAME=self._plan["run"])
        environment[variables.IO_DIR] = facts.io_dir
        if distributions.of(self._plan).has_shell:
            given = environment.get("PATH", os.defpath)
            environment["PATH"] = paths.shell_path(facts.run_dir, self._node_rank, given)
        return environment

    def prepare_shell(self, facts: facts_.Facts) -> Dict[str, str]:
        """Make the programs that lead to the other nodes; the environment of what those start here.

        Raises OSError where they cannot be written.
        """
        from ..remote_shell import shims

        (address, port), token = self._control[variables.CONTROL].split(), self._control[variables.TOKEN]
        shims.write(
            shims.ShimConfig(paths.shell(facts.run_dir, self._node_rank), self._node_rank, address, int(port), token)
        )
        of_daemon = self._launcher.daemon_variables(facts)
        if of_daemon is None:
            return dict(facts.inherited, **contract.Contract(self._plan, facts).of_node(self._node_rank))
        return dict(self._of_launcher(facts), **of_daemon)

    # -- ranks that are forked from one process ------------------------------------------------------------------

    def _start_preloaded(self, ranks: List[Rank], facts: facts_.Facts) -> bool:
        """Start the process that imports what the job says and forks the ranks; whether that could be done."""
        from ..launchers import preload

        if not preload.fits(self._command):
            return False  # as has been said before the run
        self._preload_log = paths.preload_log(facts.run_dir, self._node_rank, facts.restart_count)
        self._waiting = ranks
        if self._member.preload is not None and self._member.preload.order(self._command, ranks):
            self._was_ordered = True
            self._rests(self._member.preload.pid, False)
            self._watch(self._member.preload)
            return True
        return self._new_preload()

    def _new_preload(self) -> bool:
        from ..launchers import preload

        self._was_ordered = False
        if self._member.preload is not None:
            self._member.preload.close()
            self._member.preload = None
        stays = any(self._plan["restarts"][budget] for budget in ("max", "max_preemptions"))
        try:
            new = preload.Preload(self._plan["preload"], self._command, self._waiting, self._preload_log, stays=stays)
        except (preload.Unfit, OSError) as reason:
            self._started_as_usual(str(reason))
            return False
        self._member.preload = new
        self._watch(new)
        return True

    def _watch(self, preload: Preload) -> None:
        self._began(preload.pid, None, preload.log)
        self._member.loop.on_readable(preload.answer, self.adopt)

    def adopt(self) -> None:
        """Take over the ranks that were forked, before any of them is found to have ended. They run once we have."""
        message = self._member.preload.read() if self._member.preload is not None and self._waiting else None
        if self._member.preload is None or message is None:
            return
        self._member.loop.forget(self._member.preload.answer)
        if "refused" in message:  # it ends now
            self._refused = message["refused"]
            return
        for rank, pid in zip(self._waiting, message["pids"]):
            self._began(pid, rank.process, rank.log)
        self._waiting = []
        if self._member.preload.stays:
            self._rests(self._member.preload.pid, True)

    def ended(self, pid: int, code: int, signum: Optional[int], is_stopping: bool) -> bool:
        """Whether `pid` was the process that forks; if it forked none, the ranks are started otherwise."""
        if self._member.preload is None or pid != self._member.preload.pid:
            return False
        why = self._refused or self._member.preload.last_words(code, signum)
        self._member.loop.forget(self._member.preload.answer)
        self._member.preload.close()
        self._member.preload = None
        if not self._waiting or is_stopping:
            return True
        if self._was_ordered:
            if self._new_preload():
                return True
        else:
            self._started_as_usual(why)
        self._start_ranks(self._waiting)
        return True

    def _started_as_usual(self, why: str) -> None:
        self._member.warn("preload: %s; the ranks of node %d are started as usual" % (why, self._node_rank))

"""One start of the job on one node: starts what runs there, watches it, ends it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, List, Mapping, Optional, Set

from .. import distributions, launchers
from ..coordinator.blame import hold_s
from ..hangs.watch import HANG_WARNING_S, Whereabouts
from ..spec import exit_codes, mlflow_store, paths
from ..spec import ranks as ranks_
from ..system import processes
from .children import Child, Children
from .facts import facts_of
from .membership import INVENTORY_AFTER_S, Membership
from .starter import RankStarter
from .stopping import Stopping

if TYPE_CHECKING:  # what few jobs need is imported where it is used
    from ..remote_shell.sessions import Sessions
    from ..spec.messages import Shell, Start
    from ..spec.report import RankEnd


class NodeAttempt:
    """From the moment when a node is ready until nothing of it runs any more; then `quiet()` is called.

    A shell command of another node may make it busy again, and `quiet()` is then called once more.
    """

    def __init__(self, member: Membership, whereabouts: Whereabouts, quiet: Callable[[], None]) -> None:
        self._member = member
        self._plan = member.plan
        self._whereabouts = whereabouts
        self._quiet = quiet
        self._launcher = launchers.of(member.plan, member.node.rank)
        self._children = Children(member)
        self._stopping = Stopping(
            member.loop, member.plan["grace_s"], self._is_running, whereabouts.others, self._spared, self._is_quiet
        )
        self._starter: Optional[RankStarter] = None
        self._cluster: Optional[launchers.Cluster] = None
        self._shells: Optional[Sessions] = None
        self._shells_opened = 0
        self._begun = False
        self._ends_all = False  # ranks that end from now on were ended by us
        self._failed_at: Optional[float] = None  # when ranks were told to end because of a failure
        self._is_over = False

    @property
    def is_quiet(self) -> bool:
        """Whether nothing runs here any more."""
        return self._stopping.is_quiet

    def close(self) -> None:
        """All that was started has ended: remove its files."""
        self._is_over = True
        self._stopping.close()
        if self._cluster is not None:
            self._cluster.close()
        self._launcher.close()
        if self._shells is not None:
            from ..remote_shell import shims

            shims.forget(paths.shell(self._member.node.run_dir, self._member.node.rank))

    # -- starting ------------------------------------------------------------------------------------------------

    def start(self, message: Start) -> None:
        """Start what this node runs, with what node 0 says of all nodes."""
        if self._ends_all or self._begun:
            return
        self._begun = True
        member, node = self._member, self._member.node
        member.attempt = message["restart"]
        own = {"cores": member.cores(), "gpus": node.gpus}
        facts = facts_of(dict(message, **own), member.inherited, node.run_dir, node.io_dir)
        self._children.expect(facts)
        control = member.control_variables(message["addresses"][0])
        self._starter = RankStarter(self._launcher, control, self._began, member, self._rests)
        sharers = node.nodes_here if node.lifeline else 0
        try:
            if distributions.of(self._plan).has_shell:
                self._shells = self._new_shells(self._starter.prepare_shell(facts), facts.addresses[node.rank])
            self._cluster = launchers.cluster_of(self._plan, node.rank, facts, sharers, node.token)
            if self._cluster is None:
                self._starter.start(facts)
            else:
                self._cluster.prepare()
        except OSError as error:
            self._cannot_start(error)
            return
        if self._cluster is not None and node.rank == 0:  # its part of the cluster is the first to start
            self.hear_cluster("join")
        if self._plan["hang_timeout_s"]:
            self._whereabouts.watch(self._plan["hang_timeout_s"], self._logs)
        elif member.distribution.world_size() > 1:
            self._whereabouts.watch(self._plan.get("hang_warning_s", HANG_WARNING_S), self._logs)
        member.loop.later(INVENTORY_AFTER_S, member.tell_inventory)
        self._stopping.check()

    def hear_cluster(self, what: str) -> None:
        """The nodes are to join the job's cluster ("join"), or all have and node 0 is to start the command ("run")."""
        if self._cluster is None or self._starter is None or self._ends_all:
            return
        try:
            if what == "run":
                self._starter.start(self._cluster.facts)
            elif self._cluster.pid is None:
                pid = self._cluster.start(self._member.loop, lambda: self._member.send({"type": "clustered"}))
                self._began(pid, None, self._cluster.log)
        except OSError as error:
            self._cannot_start(error)

    def hear_shell(self, message: Shell) -> None:
        """Another process of the job has a command run here."""
        if message["what"] != "open":
            if self._shells is not None:
                self._shells.heard(message)
            return
        self._shells_opened += 1
        if self._ends_all or self._shells is None:
            self._stopping.is_quiet = False
            refusal = "the job is being stopped"
            session = message["session"]
            self._member.send({"type": "shell", "session": session, "what": "refused", "message": refusal})
        else:
            self._stopping.take_back()
            self._shells.heard(message)
        self._stopping.check()

    def _new_shells(self, environment: Mapping[str, str], address: str) -> Sessions:
        from ..remote_shell.sessions import Sessions

        return Sessions(self._member.loop, environment, address, self._plan["grace_s"], self._member.send)

    def _began(self, pid: int, process: Optional[ranks_.Process], log: str) -> None:
        self._children.began(pid, process, log)
        if process is not None:
            self._launcher.rank_began(self._member.loop, pid, process.rank, self._member.warn)

    def _rests(self, pid: int, rests: bool) -> None:
        """The process that forks ranks has nothing to do until the next attempt, or is at work again."""
        self._whereabouts.spare(pid, rests)
        if rests:
            self._children.take(pid)

    def _cannot_start(self, error: OSError) -> None:
        text = "node %d cannot start its processes: %s" % (self._member.node.rank, error)
        self.failed(exit_codes.NOT_STARTED, text, {"class": "bootstrap_error"})

    def _logs(self) -> List[str]:
        """The files that are written to by what runs here; a launcher may have started any of the ranks."""
        own = self._children.logs()
        if self._launcher.is_direct:
            return own
        folder, attempt = self._member.node.run_dir, self._member.attempt or 0
        ranks = distributions.of(self._plan).processes()
        return own + [paths.rank_log(folder, one.node_rank, one.rank, attempt) for one in ranks]

    # -- watching ------------------------------------------------------------------------------------------------

    def children_ended(self) -> None:
        """Take note of every child of this process that has ended."""
        ended = processes.reap()
        if self._starter is not None:
            self._starter.adopt()
        for pid, status in ended.items():
            child = self._children.take(pid)
            if child is not None:
                self._child_ended(pid, child, status)
            elif self._shells is not None and self._shells.ended(pid, status):
                self._daemon_ended()
            else:  # one that copies, looks at stacks, or rested
                self._whereabouts.taken(pid)
        if self._begun:
            self._stopping.check()

    def _child_ended(self, pid: int, child: Child, status: int) -> None:
        code, signum = processes.exit_code(status)
        if self._starter is not None and self._starter.ended(pid, code, signum, self._ends_all):
            return
        if child.process is None:
            if not self._ends_all:
                self._launcher_ended(pid, child, code, signum)
            return
        failure = self._children.rank_ended(pid, child, status, self._ends_all, self._failed_at)
        if failure is not None:
            self._stop_soon(failure)

    def _launcher_ended(self, pid: int, child: Child, code: int, signum: Optional[int]) -> None:
        if self._cluster is not None and self._cluster.pid == pid:
            failure = self._cluster.failure(code, signum)
            facts: RankEnd = {"pid": pid, "signal": signum, "class": failure.kind}
            self.failed(code or exit_codes.LOST, failure.message, facts)
            return
        if not code:
            return
        node = self._member.node
        what = "%s on node %d %s" % (self._launcher.name, node.rank, exit_codes.describe(code, signum))
        abort = self._launcher.aborted(node.run_dir, self._member.attempt or 0)
        if abort is not None:
            self._aborted(abort, code, "%s, and %s" % (abort.what, what))
        else:
            words = self._children.last_words(pid, child.log, code, signum)
            self.failed(code, what, {**words, "pid": pid, "signal": signum})

    def _daemon_ended(self) -> None:
        """What others have started here by the remote shell may have been a launcher's daemon, which never says why."""
        node = self._member.node
        abort = self._launcher.aborted(node.run_dir, self._member.attempt or 0, node.rank)
        if abort is not None and not self._ends_all:
            self._aborted(abort, abort.exit_code, abort.what)

    def _aborted(self, abort: launchers.Abort, code: int, what: str) -> None:
        node, rank = abort.process.node_rank, abort.process.rank
        log = paths.rank_log(self._member.node.run_dir, node, rank, self._member.attempt or 0)
        words = self._children.last_words(None, log, code, None)
        if words["error"] is None:  # else that is what it was; a library's own words after it speak of lost peers
            words["class"] = abort.kind
        self.failed(code, what, {**words, "node": node, "rank": rank})

    def failed(self, code: int, message: str, facts: RankEnd, *, of_any_attempt: bool = False) -> None:
        """Something other than a rank has failed here: tell node 0, and stop."""
        self._stop_soon(self._member.failed(code, message, facts, of_any_attempt=of_any_attempt))

    # -- stopping ------------------------------------------------------------------------------------------------

    def _stop_soon(self, failure: RankEnd) -> None:
        """After a failure here: what it causes in other ranks, or what caused it, is to show itself first."""
        hold = hold_s(failure)
        self._member.loop.later(hold, lambda: None if self._is_over else self.stop("failure"))

    def stop(self, reason: str) -> None:
        """End all that runs on this node."""
        if self._ends_all:
            return
        if reason == "failure":  # what has ended by now has failed too, and was not ended by us
            self.children_ended()
            self._failed_at = time.time()
        self._ends_all = True
        self._whereabouts.close()
        self._stopping.begin()

    def _is_running(self) -> bool:
        joins = self._cluster is not None and not self._ends_all  # it is to join, or to wait for the others
        return bool(self._children) or bool(self._shells is not None and self._shells.living()) or joins

    def _is_quiet(self) -> None:
        if self._launcher.is_direct:  # else ranks of this node may still be started from another one
            mlflow_store.tidy(self._member.node.run_dir, self._member.ranks())
        self._member.tell_inventory(is_last=True)
        self._member.send({"type": "quiet", "shells": self._shells_opened})
        self._quiet()

    def _spared(self, pids: List[int], asked: Set[int], seconds_left: float) -> Set[int]:
        """What ends by itself: the job's cluster while the command may still need it, for half of the grace time, and
        launchers and their daemons, as long as the distribution says so."""
        spared: Set[int] = set()
        cluster = self._cluster
        if cluster is not None and cluster.pid is not None and self._children.get(cluster.pid) is not None:
            is_needed = len(self._children) > 1 and seconds_left > self._plan["grace_s"] / 2
            spared = cluster.spared(asked, is_needed)
        if self._member.distribution.spares_launcher(seconds_left):
            daemons = self._shells.living() if self._shells is not None else []
            for pid in pids:
                child = self._children.get(pid)
                if pid in daemons if child is None else child.process is None:
                    spared.add(pid)
        return spared

"""The job as a whole, on node 0: what failed first, when all must stop or start again, how it ended."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence

from .. import distributions, launchers
from ..control.loop import Loop
from ..control.server import HEARTBEAT_TIMEOUT_S, ControlServer, Peer
from ..hangs.query import Answer, Inquiries
from ..spec import exit_codes
from . import blame
from .attempt import Attempt
from .clock import JobClock
from .gathering import Gathering, missing_failure
from .inbox import Inbox
from .journal import Journal
from .members import Members
from .shells import Shells
from .uploads import Uploads
from .verdict import Judge

if TYPE_CHECKING:  # what few jobs need is imported where it is used
    from ..spec.messages import Standing
    from ..spec.plan import Plan
    from ..spec.report import Cause, RankEnd
    from .ending import Ending
    from .restarts import Decision

GATHERING, RUNNING, PAUSING, OVER = "gathering", "running", "pausing", "over"


class Settings:
    """What the coordinator gets from the node that it lives on.

    `hosts` names the nodes, where they are known before they join. `replace` asks whoever starts bootstraps for another
    one for a node; None where nobody can be asked. `restart` is how often the job has been started before this process
    was, `used` (restarts.Used) what of the budgets was used before. `returns`: somebody starts the whole job again when
    this node is taken away; `judged`: somebody else then says how the job ended; `replaced`: every node that is lost
    gets another bootstrap, also this one, and the others then join that; `standing`: where the job stands, if none of
    them knows.
    """

    def __init__(
        self,
        run_dir: str,
        token: bytes,
        hosts: Optional[List[str]] = None,
        replace: Optional[Callable[[int], None]] = None,
        restart: int = 0,
        used: Optional[Sequence[int]] = None,
        returns: bool = False,
        judged: bool = False,
        replaced: bool = False,
        standing: Optional[Standing] = None,
    ) -> None:
        self.run_dir = run_dir
        self.token = token
        self.hosts = hosts
        self.replace = replace
        self.restart = restart
        self.used = used
        self.returns = returns
        self.judged = judged
        self.replaced = replaced
        self.standing = standing


class Coordinator:
    """Takes the nodes' messages over the control port and decides for all of them.

    `ended(exit_code)` is called once, when every node has gone or has nothing left running and nothing is started
    again.
    """

    def __init__(
        self, loop: Loop, plan: Plan, listener: socket.socket, settings: Settings, ended: Callable[[int], None]
    ) -> None:
        self._loop = loop
        self._plan = plan
        self._distribution = distributions.of(plan)
        self._settings = settings
        self._clock = JobClock(loop, plan, self._time_is_up)
        self.attempt = Attempt(settings.restart)
        self._phase = GATHERING
        self._judge = Judge(plan, settings.run_dir, settings.restart, settings.used)
        self.shells: Optional[Shells] = None
        self.assembly: Optional[launchers.Assembly] = None
        self._pause = loop.later(0.0, lambda: None)
        self._journal = Journal(settings.run_dir)
        inbox = Inbox(plan, self._journal, settings.judged, self)
        self._server = ControlServer(
            loop, listener, settings.token, inbox.heard, self._left,
            self._distribution.members(), plan.get("heartbeat_s", HEARTBEAT_TIMEOUT_S),
        )  # fmt: skip
        self.members = Members(plan, self._server, settings.hosts or (), settings.replace)
        self.uploads = Uploads(plan, self.members, self._journal, self._check_end)
        self._ended = ended
        self.inquiries = Inquiries(loop, self._server.broadcast)
        self._gather()

    is_gathering = property(lambda self: self._phase == GATHERING)
    is_running = property(lambda self: self._phase == RUNNING)

    # -- members that leave, or end their part -------------------------------------------------------------------

    def node_is_quiet(self, node: int) -> None:
        self.attempt.quiet.add(node)
        self.inquiries.gone(node)
        self._check_end()

    def _left(self, peer: Peer, why: str) -> None:
        if self._phase == OVER:
            return
        if peer.kind == "shell" and self.shells is not None:
            self.shells.left(peer)
        elif peer.kind == "rank":
            self._rank_left(peer.number, why)
        elif peer in self.members.spares:
            self.members.spares.remove(peer)
        elif self.members.leave(peer):
            self._node_left(peer.number, why)

    def _rank_left(self, rank: int, why: str) -> None:
        if self._phase == RUNNING and rank not in self.attempt.ends and self.attempt.reason is None:
            node = self._distribution.node_of(rank)
            text = "rank %d on node %d vanished: %s" % (rank, node, why)
            self.fail(blame.unreported("vanished", text, node, rank=rank, exit_code=1))

    def _node_left(self, node: int, why: str) -> None:
        now, host = self.attempt, self.members.hosts[node]
        if self.shells is not None:
            self.shells.lost(node, why)
        self.gathering.left(node)
        if self._phase == RUNNING and (node not in now.quiet or self._has_work(node)):
            self.fail(blame.unreported("node_lost", "node %d (%s) is lost: %s" % (node, host, why), node, host=host))
            self.node_is_quiet(node)
        elif now.reason is not None:
            self._check_end()

    # -- what the node that it lives on says ---------------------------------------------------------------------

    def cancel(self) -> None:
        self.stop("cancelled")
        self.uploads.give_up()

    def lost(self, node: int, message: str) -> None:
        """Whoever looks after the bootstraps has gone: stop everything, and say so in the report."""
        self.fail(blame.unreported("node_lost", message, node, final=True))
        if node not in self.members.present:
            self.attempt.quiet.add(node)

    def never_joined(self, node: int, code: Optional[int]) -> None:
        """The bootstrap of a node has ended (with that code) without joining."""
        self.fail(blame.never_joined(self._settings.run_dir, node, code))

    def take_stacks(self, done: Callable[[Answer], None]) -> None:
        """Have every node look where its ranks are; `done` gets the answer."""
        present = self.members.present if self._phase == RUNNING else ()
        nodes = [node for node in present if node not in self.attempt.quiet]
        self.inquiries.ask(nodes, self.attempt.living(), done)

    # -- starting ------------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        """Wait until every node is there and ready."""
        self._phase = GATHERING
        self.gathering = Gathering(
            self._loop, self._plan, self._settings.run_dir, self.members, self._journal, self._start, self.fail
        )

    def _start(self) -> None:
        if self.attempt.failures:
            return  # all are about to stop
        standing = None if self._clock.has_started else self.members.standing() or self._settings.standing
        if standing is not None and not self._take_over(standing):
            return
        self._phase = RUNNING
        members, journal, number = self.members, self._journal, self.attempt.number
        self.attempt.quiet.clear()  # a node that came while the others stopped has said that nothing runs there
        self._clock.start(self._settings.run_dir, self._settings.restart)
        start, warning = members.start_message(self.gathering.ports(), number)
        if warning and not number:
            journal.warning(warning)
        if self._settings.replaced:
            start["standing"] = self._judge.standing(number, False, self._clock.started)
        self.told = start
        self.shells = Shells(members, start["addresses"], self._no_shell, self.attempt.quiet.discard)
        journal.started(start)
        members.tell(None, start)
        self.assembly = launchers.assembly_of(
            self._plan, self._loop, members.hosts, members.tell, journal.waiting,
            lambda failure, missing: self.fail(missing_failure(members, failure.kind, failure.message, missing)),
        )  # fmt: skip

    def _take_over(self, standing: Standing) -> bool:
        """Go on where the job stood when its node 0 was lost; whether the next attempt is to start at once."""
        self._judge.take_over(standing)
        self.attempt = Attempt(standing["restart"])
        self._clock.start(self._settings.run_dir, 0, standing["started"])
        if not standing["is_due"]:
            text = "node 0 was lost, and another bootstrap has taken its place"
            self.fail(blame.unreported(standing["lost_as"], text, 0))
        return standing["is_due"]

    def _has_work(self, node: int) -> bool:
        """Whether ranks of a node have not ended; a launcher may have started them from another node."""
        return any(one.rank not in self.attempt.ends for one in self._distribution.node_processes(node))

    def _no_shell(self) -> Optional[str]:
        """Why no command is to be started on any node."""
        is_open = self._phase == RUNNING and self.attempt.goes_on and self._distribution.has_shell
        return None if is_open else "the job is being stopped"

    # -- stopping ------------------------------------------------------------------------------------------------

    def fail(self, failure: RankEnd) -> None:
        now = self.attempt
        if now.reason not in (None, "failure") or self._phase == OVER:
            return  # what goes wrong while the job is being stopped for another reason is no cause of anything
        now.failures.append(failure)
        now.matched.update(failure.get("matched") or ())
        self._journal.failure(failure, self._judge.words(failure))
        self._loop.later(blame.hold_s(failure), lambda: self.stop("failure") if now is self.attempt else None)

    def _time_is_up(self) -> None:
        def stop(answer: Answer) -> None:
            if self.attempt.reason is None:
                self.attempt.failures = [blame.timed_out(self._plan, answer)]
                self.stop("timeout")

        self.take_stacks(stop)

    def stop(self, reason: str) -> None:
        now = self.attempt
        if now.reason is not None or self._phase == OVER:
            return
        now.reason = reason
        now.stopped_at = time.time()
        self._pause.cancel()
        self.gathering.close()
        if self.assembly is not None:
            self.assembly.close()
        if reason != "complete":
            self._journal.stopping(reason, self._judge.likely(now))
        self.tell_to_stop()
        if self._phase == PAUSING:
            now.quiet.update(self.members.present)
        self._check_end()

    def tell_to_stop(self) -> None:
        """All nodes; but first node 0 where the command there may need the job's cluster until it ends."""
        now = self.attempt
        if self.assembly is None or self._phase != RUNNING or 0 not in now.living() or now.told_to_stop:
            self.members.tell(None, {"type": "stop", "reason": now.reason})
        else:
            now.told_to_stop = True
            self.members.tell(0, {"type": "stop", "reason": now.reason})
            again = lambda: self.tell_to_stop() if now is self.attempt else None  # noqa: E731
            self._loop.later(self._plan["grace_s"] / 2, again)

    # -- how it ended --------------------------------------------------------------------------------------------

    def _check_end(self) -> None:
        now = self.attempt
        if self._phase == OVER:
            return
        everybody = self.members.present if now.reason is not None else range(self._plan["nodes"])
        if not all(node in now.quiet for node in everybody) or not self.uploads.are_done(now):
            return
        can_go_on = 0 not in now.leaving or self._settings.returns or self._settings.replaced
        verdict = self._judge.of(now, can_go_on=can_go_on)
        if verdict.again is not None and verdict.outcome.cause is not None:
            self._start_again(verdict.outcome.cause, verdict.again)
            return
        library = now.lone_library()
        if library:
            self._journal.warning(self._distribution.world_of_one(library))
        ending, ended = self._end(), time.time()
        report = self._judge.report(verdict, now, self._clock.started, ended)
        if verdict.outcome.status == "Preempted" and 0 in now.leaving and self._settings.judged:
            self._journal.left(report)
            ending.give_up()
        else:
            ending.finish(verdict.outcome, report, ended)

    def _start_again(self, cause: Cause, decision: Decision) -> None:
        leaving, number = self.attempt.leaving, self.attempt.number + 1
        summary = self._judge.note_restart(cause, decision, self.attempt.number)
        self._journal.restart(number, cause, decision, summary, 0 in leaving)
        self.attempt = Attempt(number)
        if 0 in leaving:
            standing = self._judge.standing(number, True, self._clock.started) if self._settings.replaced else None
            self._end().hand_over(standing)
            return
        self._phase = PAUSING
        self._close_shells()
        for peer in [one for one in self._server.peers if one.kind == "rank"]:
            peer.channel.close("of a start that is over")
        self.members.release(leaving, exit_codes.PREEMPTED)
        self._pause = self._loop.later(decision.delay, self._gather_again)

    def _gather_again(self) -> None:
        self._gather()
        self.members.tell(None, {"type": "again", "restart": self.attempt.number})
        self.members.ask_for(range(self._plan["nodes"]))

    def _end(self) -> Ending:
        from .ending import Ending

        self._phase = OVER
        self._close_shells()
        return Ending(self._loop, self._settings.run_dir, self._server, self._journal, self._ended)

    def _close_shells(self) -> None:
        if self.shells is not None:
            self.shells.close()
            self.shells = None

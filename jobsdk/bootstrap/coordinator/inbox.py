"""What members of the job say to node 0: one method for each message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import distributions
from ..control.channel import Message
from ..control.server import Peer
from .journal import Journal
from .standstill import Standstill

if TYPE_CHECKING:
    from ..spec.messages import (
        Idle,
        Inventory,
        Join,
        Plain,
        Quiet,
        RankSaid,
        RankStarted,
        Ready,
        Shell,
        StacksTaken,
        Uploaded,
        Warned,
    )
    from ..spec.plan import Plan
    from ..spec.report import RankEnd
    from .job import Job


class Inbox:
    """Takes messages for the `job`. `is_judged`: an engine says how the job ended if it takes node 0 away."""

    def __init__(self, plan: Plan, journal: Journal, is_judged: bool, job: Job) -> None:
        self._plan = plan
        self._distribution = distributions.of(plan)
        self._journal = journal
        self._is_judged = is_judged
        self._job = job
        self._standstill = Standstill(plan, journal, job)

    def heard(self, peer: Peer, message: Message) -> None:
        if peer.refused:
            return
        handler = getattr(self, "_on_" + str(message.get("type")), None)
        if handler is not None and message.get("restart", self._job.attempt.number) == self._job.attempt.number:
            handler(peer, message)

    def _on_join(self, peer: Peer, message: Join) -> None:
        if not self._job.members.join(peer, message):
            return
        self._journal.node_joined(peer.number, message)
        if self._job.attempt.reason is not None:
            peer.send({"type": "stop", "reason": self._job.attempt.reason})
        elif self._job.is_gathering and not message.get("is_broken"):
            self._job.gathering.ready(peer.number, message)

    def _on_ready(self, peer: Peer, message: Ready) -> None:
        if self._job.is_gathering and self._job.attempt.reason is None and peer.number in self._job.members.present:
            self._job.gathering.ready(peer.number, message)

    def _on_spare(self, peer: Peer, message: Plain) -> None:
        members = self._job.members
        members.spares.append(peer)
        if self._job.is_gathering and self._job.attempt.number:  # at first, a node that is missing is on its way
            members.ask_for(range(self._plan["nodes"]))

    def _on_facts(self, peer: Peer, message: Plain) -> None:
        """A rank under a foreign launcher asks for the message that the nodes got at the start."""
        if self._job.is_running:
            node = self._job.members.present[distributions.of(self._plan).node_of(peer.number)]
            peer.send(dict(self._job.told, cores=node["cores"], gpus=node["gpus"]))

    def _on_inventory(self, peer: Peer, message: Inventory) -> None:
        self._journal.inventory(peer.number, message)

    def _on_rank_started(self, peer: Peer, message: RankStarted) -> None:
        # A pid says nothing on another node, which may be a container with pids of its own.
        where = peer.number if peer.kind == "node" else message.get("host")
        self._job.attempt.places[message["rank"]] = (message["pid"], where)
        self._journal.rank_started(message)

    def _on_first_output(self, peer: Peer, message: RankSaid) -> None:
        self._journal.first_output(message)

    def _on_metric(self, peer: Peer, message: RankSaid) -> None:
        self._journal.metric(message)

    def _on_warning(self, peer: Peer, message: Warned) -> None:
        self._journal.warning(message["message"], peer.number)

    def _on_rank_ended(self, peer: Peer, message: RankEnd) -> None:
        now = self._job.attempt
        end = now.note_end(message)
        self._journal.rank_ended(message)
        if end["exit_code"] and not end["stopped"]:
            self._job.fail(end)
        elif now.reason is None and self._distribution.is_done(now.ends):
            self._job.stop("complete")
        if now.told_to_stop:
            self._job.tell_to_stop()
        if peer.kind == "rank":
            peer.send({"type": "noted"})

    def _on_clustered(self, peer: Peer, message: Plain) -> None:
        """A node has joined the job's own cluster."""
        if self._job.is_running and self._job.attempt.reason is None and self._job.assembly is not None:
            self._job.assembly.joined(peer.number)

    def _on_failed(self, peer: Peer, message: RankEnd) -> None:
        """Something other than a rank failed: a launcher, a rank that could not be started, a signal to a node."""
        if message.get("class") == "preempted":
            # An engine that judges takes all nodes at once; node 0 may only hear of it a moment later.
            self._job.attempt.leaving.update(range(self._plan["nodes"]) if self._is_judged else [peer.number])
        self._job.fail(message)

    def _on_idle(self, peer: Peer, message: Idle) -> None:
        self._standstill.heard(peer.number, message)

    def _on_stacks(self, peer: Peer, message: StacksTaken) -> None:
        self._job.inquiries.heard(peer.number, message)

    def _on_cancel(self, peer: Peer, message: Plain) -> None:
        self._job.cancel()

    def _on_quiet(self, peer: Peer, message: Quiet) -> None:
        opened = self._job.shells.opened.get(peer.number, 0) if self._job.shells is not None else 0
        if message.get("shells", 0) == opened:  # else it is not up to date
            self._job.node_is_quiet(peer.number)

    def _on_uploaded(self, peer: Peer, message: Uploaded) -> None:
        self._job.uploads.heard(peer.number, message)

    def _on_shell(self, peer: Peer, message: Shell) -> None:
        if self._job.shells is not None:
            self._job.shells.heard(peer, message)

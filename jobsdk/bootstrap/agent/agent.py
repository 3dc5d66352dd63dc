"""The bootstrap's program on one node: joins the job, takes part in each attempt, returns the job's exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Callable, Optional, cast

from ..control.channel import Message
from ..control.loop import Loop
from ..coordinator.coordinator import Coordinator, Settings
from ..hangs.watch import Whereabouts
from ..spec import events, exit_codes, paths
from ..system import network, processes
from .attempt import NodeAttempt
from .membership import Membership
from .node import Node
from .requests import Requests
from .supervisor_link import Lifeline

if TYPE_CHECKING:  # what few jobs need is imported where it is used
    from ..spec.event import Facts
    from ..spec.messages import Shell, Start
    from ..spec.plan import Plan
    from .uploads import NodeUploads


class NodeAgent:
    """The life of one node, from joining to the job's end. `run()` returns the job's exit code."""

    def __init__(self, plan: Plan, node: Node) -> None:
        self._plan = plan
        self._node = node
        self._loop = Loop()
        self._member = Membership(plan, node, self._loop)
        self._whereabouts = Whereabouts(self._loop, node.run_dir, node.rank, self._member.send)
        self._attempt = self._new_attempt()
        self._uploads = self._new_uploads() if plan["outputs"] else None
        self._coordinator: Optional[Coordinator] = None
        self._is_lost = False  # node 0 has gone, and is looked for again once nothing runs here
        self._orphaned = False  # the local supervisor has gone
        self._code: Optional[int] = None

    def run(self) -> int:
        node, loop = self._node, self._loop
        processes.become_subreaper()
        loop.on_signal(signal.SIGCHLD, lambda: self._attempt.children_ended())
        loop.on_signal(signal.SIGTERM, self._preempted)
        loop.on_signal(signal.SIGINT, self._interrupted)
        lifeline = None
        if node.lifeline is not None:
            lifeline = Lifeline(loop, node.lifeline, self._plan, node.run_dir, self._abandoned, self._member.heartbeat)
        self._addresses, self._ports = node.control_addresses, node.control_ports
        if node.rank == 0:
            listener = node.listener or network.listener("", *self._ports)
            self._addresses, self._ports = (network.own_address(listener),), (listener.getsockname()[1],)
            settings = Settings(
                node.run_dir, node.token, node.hosts, self._replacing(lifeline), node.restart,
                node.used, node.returns or lifeline is not None, node.judged, node.replaced,
                node.standing,
            )  # fmt: skip
            self._coordinator = Coordinator(loop, self._plan, listener, settings, self._job_ended)
            if lifeline is not None:
                lifeline.coordinator = self._coordinator
            else:
                Requests(loop, node.run_dir, self._plan, self._coordinator)
        self._connect()
        try:
            loop.run()
        finally:
            processes.kill_descendants()
            self._attempt.close()
        if self._orphaned and self._coordinator is not None:  # nobody else can clean up after other bootstraps
            processes.kill_run(node.run_dir)
        return exit_codes.LOST if self._code is None else self._code

    def _replacing(self, lifeline: Optional[Lifeline]) -> Optional[Callable[[int], None]]:
        """Who starts another bootstrap for a node on request, if anybody does."""
        if lifeline is not None:
            return lifeline.ask_for_node
        if self._node.pod is None:
            return None
        from .lost_pods import LostPods, can_ask

        def pod_of(node: int) -> Optional[str]:
            return self._coordinator.members.pod_of(node) if self._coordinator is not None else None

        return LostPods(self._node.run_dir, pod_of).replace if can_ask() else None

    def _connect(self) -> None:
        self._member.connect(self._addresses, self._ports, self._joined, self._message, self._control_lost)

    def _new_attempt(self) -> NodeAttempt:
        return NodeAttempt(self._member, self._whereabouts, self._quiet)

    def _joined(self) -> None:
        if self._node.broken is not None:
            self._cannot_start(self._node.broken)
        else:
            self._member.prepare_metrics()
            if self._uploads is not None:
                self._uploads.begin()

    def _cannot_start(self, why: str) -> None:
        self._attempt.failed(exit_codes.NOT_STARTED, why, {"class": "bootstrap_error"})

    def _message(self, message: Message) -> None:
        kind = message["type"]
        if self._code is not None:
            return  # the job is over
        if kind == "start":
            self._member.standing = message.get("standing")
            self._attempt.start(cast("Start", message))
        elif kind == "stop":
            self._attempt.stop(message["reason"])
        elif kind == "upload" and self._uploads is not None:
            self._uploads.finish()
        elif kind == "again":
            self._again(message["restart"])
        elif kind == "stacks":
            self._whereabouts.take(message["number"], message["places"])
        elif kind == "shell":
            self._attempt.hear_shell(cast("Shell", message))
        elif kind == "cluster":
            self._attempt.hear_cluster(message["what"])
        elif kind == "handed_over" and self._coordinator is None:
            self._member.standing = message["standing"]
            self._member.leave()
            self._control_lost("node 0 was taken away")
        elif kind == "finish" and self._coordinator is None:
            self._job_ended(message["exit_code"])
        elif kind == "refused":
            self._member.say("node 0 refused this node: %s" % message["reason"])
            self._job_ended(exit_codes.LOST)

    def _new_uploads(self) -> NodeUploads:
        from .uploads import NodeUploads

        return NodeUploads(self._member, self._whereabouts)

    def _again(self, attempt: int) -> None:
        """The job is started once more."""
        self._renew_attempt(attempt)
        if self._node.broken is not None:
            self._cannot_start(self._node.broken)
        else:
            self._member.prepare_metrics()
            self._member.ready()

    def _renew_attempt(self, number: Optional[int]) -> None:
        self._attempt.close()
        self._member.attempt = number
        self._attempt = self._new_attempt()

    # -- the end -------------------------------------------------------------------------------------------------

    def _control_lost(self, why: str) -> None:
        if self._code is not None:
            return
        self._member.say("lost the control port: %s" % why)
        if self._node.replaced and self._member.joined and self._coordinator is None:
            self._is_lost, self._member.joined = True, False
            self._attempt.stop("lost")
            self._quiet()
        else:
            self._code = exit_codes.LOST
            self._quiet()
            self._attempt.stop("lost")

    def _quiet(self) -> None:
        """Nothing runs here any more: that is the end, if the job has one; without a node 0 it joins the next one."""
        if self._code is not None and self._attempt.is_quiet:
            self._loop.stop()
        elif self._is_lost and self._attempt.is_quiet:
            self._is_lost = False
            self._renew_attempt(None)
            self._connect()

    def _job_ended(self, code: int) -> None:
        self._code = code
        self._loop.stop()

    def _abandoned(self) -> None:
        """The supervisor has gone."""
        self._orphaned = True

    def _preempted(self) -> None:
        """SIGTERM: whoever started this bootstrap wants the node back, and will kill it before long."""
        node = self._node
        if os.path.exists(paths.cancel_mark(node.run_dir)):
            self._interrupted()
        elif not self._member.joined:
            self._member.say("got a SIGTERM while waiting for node 0")
            self._job_ended(exit_codes.PREEMPTED)
        else:
            text = "node %d (%s) got a SIGTERM" % (node.rank, self._member.host)
            self._attempt.failed(exit_codes.PREEMPTED, text, {"class": "preempted"}, of_any_attempt=True)

    def _interrupted(self) -> None:
        """SIGINT: somebody at a terminal ends the job."""
        if self._member.joined:
            self._member.send({"type": "cancel"}, of_any_attempt=True)
        else:
            self._job_ended(128 + signal.SIGINT)


def run(plan: Plan, node: Node) -> int:
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
        # `rank` is None: no rank failed, see `Facts`.
        facts = cast("Facts", {"node": node.rank, "rank": None, "exit_code": exit_codes.NOT_STARTED, "message": text})
        facts["alone"] = True
        events.append(node.run_dir, "failure", **facts)
        if node.rank == 0 and node.lifeline is None:  # nobody else will write a report
            from ..failures import fallback_report

            fallback_report.write_end(node.run_dir, plan, "Failed", exit_codes.NOT_STARTED, text, 0, time.time())
        return exit_codes.NOT_STARTED

"""The job as a whole, on node 0: who has joined, what failed first, when all must stop or start again, how it ended."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, cast

from .. import distributions
from ..control.channel import Message
from ..control.loop import Loop
from ..control.rendezvous import Rendezvous
from ..control.server import HEARTBEAT_TIMEOUT_S, ControlServer, Peer
from ..hangs.query import Answer, Inquiries
from ..spec import events, exit_codes, mlflow_store, paths, plan_file, ranks
from ..system import infiniband, network
from .attempt import Attempt
from .verdict import Judge, Verdict

if TYPE_CHECKING:  # what few jobs need is imported where it is used
    from ..launchers.ray_cluster import Assembly
    from ..remote_shell.relay import Relay
    from ..spec.report import Cause, RankEnd, RunReport
    from .restarts import Decision

#: Seconds between the first failure and the end of all: failures that caused it, or that it caused, show themselves.
BLAME_WINDOW_S = 0.2
#: The same where what has failed only tells of others, which may be slow to end; or where a launcher has killed ranks,
#: which says why when it ends itself.
LONG_BLAME_WINDOW_S = 1.5
_MOST_ASKED = 10  # bootstraps that are asked for in a row, without a start between
GATHERING, RUNNING, PAUSING, OVER = "gathering", "running", "pausing", "over"


class Settings(NamedTuple):
    """What the coordinator is told by the node that it lives on."""

    run_dir: str
    token: bytes
    hosts: Optional[List[str]] = None  # the nodes' names, where they are known before they join
    #: Asks whoever starts bootstraps for another one for a node; None where nobody can be asked.
    replace: Optional[Callable[[int], None]] = None
    restart: int = 0  # how often the job has been started before this process was
    used: Optional[Sequence[int]] = None  # restarts.Used: what of the budgets was used before
    returns: bool = False  # whether somebody starts the whole job again when this node is taken away
    judged: bool = False  # whether somebody else says how the job ended when this node is taken away


class Coordinator:
    """Takes the nodes' messages over the control port and decides for all of them.

    `ended(exit_code)` is called once, when every node has gone or has nothing left running and nothing is started
    again.
    """

    def __init__(
        self,
        loop: Loop,
        plan: Dict[str, Any],
        listener: socket.socket,
        settings: Settings,
        ended: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._plan = plan
        self._distribution = distributions.of(plan)
        self._settings = settings
        self._run_dir = settings.run_dir
        self._ended = ended
        self._begun = time.time()
        self._started_at: Optional[float] = None
        self._nodes: Dict[int, Message] = {}  # present: what each said of itself
        self._joined: Dict[int, int] = {}  # the process that joined last for each node
        self._peers: Dict[int, Peer] = {}  # and its connection
        self._asked = 0  # bootstraps that were asked for since all were last told to start
        self._hosts: Dict[int, str] = dict(enumerate(settings.hosts or ()))
        self._round = Attempt(settings.restart)
        self._phase = GATHERING
        self._judge = Judge(plan, settings.run_dir, settings.restart, settings.used)
        self._relay: Optional[Relay] = None
        self._assembly: Optional[Assembly] = None
        self._pause = loop.later(0.0, lambda: None)
        self._server = ControlServer(
            loop, listener, settings.token, self._message, self._left,
            self._distribution.members(), plan.get("heartbeat_s", HEARTBEAT_TIMEOUT_S),
        )  # fmt: skip
        self._inquiries = Inquiries(loop, self._server.broadcast)
        self._gather()

    # -- what is heard -------------------------------------------------------------------------------------------

    def _message(self, peer: Peer, message: Message) -> None:
        if peer.refused:
            return
        handler = getattr(self, "_on_" + str(message.get("type")), None)
        if handler is not None and message.get("restart", self._round.number) == self._round.number:
            handler(peer, message)

    def _on_join(self, peer: Peer, message: Message) -> None:
        node = peer.number
        if not 0 <= node < self._plan["nodes"] or node in self._nodes:
            reason = "node %d has joined already" % node if node in self._nodes else "there is no node %d" % node
            peer.refuse(reason)
            return
        message["address"] = peer.channel.remote_address
        message["reached"] = peer.channel.local_address
        self._nodes[node] = message
        self._peers[node] = peer
        self._hosts[node] = message["host"]
        self._joined[node] = message["pid"]
        self._event("node_joined", node=node, host=message["host"], pid=message["pid"])
        if self._round.reason is not None:
            peer.send({"type": "stop", "reason": self._round.reason})
        elif self._phase == GATHERING:
            self._rendezvous.ready(node, message)

    def _on_ready(self, peer: Peer, message: Message) -> None:
        if self._phase == GATHERING and self._round.reason is None and peer.number in self._nodes:
            self._rendezvous.ready(peer.number, message)

    def _on_facts(self, peer: Peer, message: Message) -> None:
        """A rank under a foreign launcher asks for what the nodes were told."""
        if self._phase == RUNNING:
            node = self._nodes[ranks.node_of(self._plan, peer.number)]
            peer.send(dict(self._told, cores=node["cores"], gpus=node["gpus"]))

    def _on_rank_started(self, peer: Peer, message: Message) -> None:
        # A pid says nothing on another node, which may be a container with pids of its own.
        where = peer.number if peer.kind == "node" else message.get("host")
        self._round.places[message["rank"]] = (message["pid"], where)
        self._event("rank_started", t=message["t"], node=message["node"], rank=message["rank"], pid=message["pid"])

    def _on_first_output(self, peer: Peer, message: Message) -> None:
        self._event("first_output", t=message["t"], node=message["node"], rank=message["rank"])

    def _on_metric(self, peer: Peer, message: Message) -> None:
        self._event("metric", t=message["t"], node=message["node"], rank=message["rank"])

    def _on_rank_ended(self, peer: Peer, message: Message) -> None:
        now = self._round
        end = now.ends[message["rank"]] = cast("RankEnd", message)
        if now.reason is not None and message["signal"] in (signal.SIGTERM, signal.SIGKILL):
            message["stopped"] = True  # by us, or by a launcher that we stopped
        facts = {key: message[key] for key in ("t", "node", "rank", "exit_code", "signal")}
        if message.get("stopped"):
            facts["stopped"] = True
        self._event("rank_ended", **facts)
        if "failed_before" in message:  # it had failed already when it was told to end
            late = {"t": message["failed_before"], "exit_code": 1, "signal": None, "stopped": False}
            end = now.ends[message["rank"]] = cast("RankEnd", dict(message, **late))
        if end["exit_code"] and not end["stopped"]:
            self._fail(end)
        elif now.reason is None and self._distribution.is_done(now.ends):
            self._stop("complete")
        if now.told_to_stop:
            self._tell_to_stop()
        if peer.kind == "rank":
            peer.send({"type": "noted"})

    def _on_clustered(self, peer: Peer, message: Message) -> None:
        """A node has joined the Ray cluster."""
        if self._phase == RUNNING and self._round.reason is None and self._assembly is not None:
            self._assembly.joined(peer.number)

    def _on_warning(self, peer: Peer, message: Message) -> None:
        self._event("warning", node=peer.number, message=message["message"])

    def _on_failed(self, peer: Peer, message: Message) -> None:
        """Something other than a rank failed: a launcher, a rank that could not be started, a signal to a node."""
        if message.get("class") == "preempted":
            # An engine that judges takes all nodes at once; node 0 may only hear of it a moment later.
            self._round.leaving.update(range(self._plan["nodes"]) if self._settings.judged else [peer.number])
        self._fail(cast("RankEnd", message))

    def _on_idle(self, peer: Peer, message: Message) -> None:
        """For how long a node's ranks have done nothing; nodes say it when it is long."""
        now = time.monotonic()
        self._round.idle[peer.number] = now + message["again"]
        unended = [node for node in self._nodes if node not in self._round.quiet]
        if self._phase == RUNNING and all(self._round.idle.get(node, 0.0) >= now for node in unended):
            self.take_stacks(self._hangs)

    def _on_stacks(self, peer: Peer, message: Message) -> None:
        self._inquiries.heard(peer.number, message)

    def _on_cancel(self, peer: Peer, message: Message) -> None:
        self.cancel()

    def _on_quiet(self, peer: Peer, message: Message) -> None:
        if message.get("shells", 0) == self._round.shells.get(peer.number, 0):  # else it is not up to date
            self._is_quiet(peer.number)

    def _on_shell(self, peer: Peer, message: Message) -> None:
        if self._relay is None:
            self._relay = self._new_relay()
        self._relay.heard(peer, message)

    def _is_quiet(self, node: int) -> None:
        self._round.quiet.add(node)
        self._inquiries.gone(node)
        self._check_end()

    def _left(self, peer: Peer, why: str) -> None:
        if self._phase == OVER:
            return
        number = peer.number
        if peer.kind == "shell":
            if self._relay is not None:
                self._relay.left(peer)
            return
        if peer.kind == "rank":
            if self._phase == RUNNING and number not in self._round.ends and self._round.reason is None:
                node = ranks.node_of(self._plan, number)
                text = "rank %d on node %d vanished: %s" % (number, node, why)
                self._blame("vanished", text, node, rank=number, exit_code=1)
            return
        if number not in self._nodes or self._peers.get(number) is not peer:
            return  # a forerunner of the one that has joined since
        host = self._nodes.pop(number)["host"]
        if self._relay is not None:
            self._relay.lost(number, why)
        self._rendezvous.gone(number)
        if self._round.reason is not None and self._phase != RUNNING:
            self._check_end()
        elif self._phase == GATHERING:
            self._left_while_gathering(number)
        elif self._phase == PAUSING:
            return  # another one is asked for when the nodes are gathered
        elif number not in self._round.quiet or self._has_work(number):
            text = "node %d (%s) is lost: %s" % (number, host, why)
            self._blame("node_lost", text, number, host=host)
            self._is_quiet(number)

    def _left_while_gathering(self, node: int) -> None:
        if events.said_by(self._run_dir, node) is not None or self._asked >= _MOST_ASKED:
            self.never_joined(node, None)
        else:
            # The others are still on their way: they need no other.
            self._loop.later(1.0, lambda: self._ask_for([node]))

    # -- what the node that it lives on says -----------------------------------------------------------------------

    def cancel(self) -> None:
        self._stop("cancelled")

    def lost(self, node: int, message: str) -> None:
        """Whoever looks after the bootstraps has gone: stop everything, and say so in the report."""
        self._blame("node_lost", message, node, final=True)
        if node not in self._nodes:
            self._round.quiet.add(node)

    def never_joined(self, node: int, code: Optional[int]) -> None:
        """The bootstrap of a node has ended (with that code) without joining."""
        said = events.said_by(self._run_dir, node)
        if code == exit_codes.PREEMPTED:
            text = "node %d was told to end by SIGTERM before it joined" % node
            self._blame("preempted", text, node, exit_code=code)
        elif said is not None:
            self._blame("bootstrap_error", said["message"], node, exit_code=said["exit_code"], final=True)
        else:
            self._blame("never_started", "the bootstrap of node %d ended before it joined" % node, node, final=True)

    def has_joined(self, node: int, pid: int) -> bool:
        """Whether that process once joined for the node."""
        return self._joined.get(node) == pid

    def take_stacks(self, done: Callable[[Answer], None]) -> None:
        """Have every node look where its ranks are; `done` gets the answer."""
        nodes = [node for node in self._nodes if node not in self._round.quiet] if self._phase == RUNNING else []
        self._inquiries.ask(nodes, self._round.living(), done)

    # -- starting ------------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        """Wait until every node is there and ready."""
        self._phase = GATHERING
        self._rendezvous = Rendezvous(
            self._loop, self._plan["nodes"], self._hosts, self._plan["rendezvous_timeout_s"],
            lambda text, missing: self._event("waiting", message=text, missing=missing[:50]),
            self._start, self._rendezvous_failed,
        )  # fmt: skip

    def _start(self) -> None:
        self._phase = RUNNING
        self._asked = 0
        self._round.quiet.clear()  # a node that came while the others stopped has said that nothing runs there
        if self._started_at is None:
            earlier = events.of(self._run_dir, "started") if self._settings.restart else []
            self._started_at = earlier[0]["t"] if earlier else time.time()
            if self._plan["timeout_s"]:
                left = self._plan["timeout_s"] - (time.time() - self._started_at)
                self._loop.later(max(0.0, left), self._time_is_up)
        self._told = message = self._start_message()
        self._event("started", master_addr=message["addresses"][0], master_port=message["ports"][0][0],
                    restart=self._round.number)  # fmt: skip
        self._server.broadcast(message)
        if ranks.has_cluster(self._plan):
            self._assemble()

    def _assemble(self) -> None:
        from ..launchers.ray_cluster import Assembly

        self._assembly = Assembly(
            self._loop, self._plan, self._hosts, self._tell_nodes,
            lambda text, missing: self._event("waiting", message=text, missing=missing[:50]), self._not_assembled,
        )  # fmt: skip

    def _not_assembled(self, text: str, missing: List[int]) -> None:
        self._blame("ray_missing", text, missing[0], host=self._hosts.get(missing[0]))

    def _tell_nodes(self, node: Optional[int], message: Message) -> None:
        """One node, or all of them."""
        if node is None:
            self._server.broadcast(message)
        else:
            self._tell_node(node, message)

    def _start_message(self) -> Message:
        """What all nodes are told, the same for each: a thousand of them are told in a moment."""
        nodes = [self._nodes[number] for number in range(self._plan["nodes"])]
        return {
            "type": "start", "addresses": network.addresses(nodes), "ports": self._rendezvous.each("ports"),
            "restart": self._round.number, "infiniband": self._infiniband(nodes),
        }  # fmt: skip

    def _infiniband(self, nodes: List[Message]) -> Optional[List[str]]:
        """What all nodes may use of it."""
        names = ["node %d (%s)" % (number, node["host"]) for number, node in enumerate(nodes)]
        offers = [node.get("infiniband") for node in nodes]
        agreement = infiniband.agree(self._plan.get("network") or {}, offers, names)
        if agreement.warning and not self._round.number:
            self._event("warning", message=agreement.warning)
        return agreement.devices

    def _rendezvous_failed(self, text: str, missing: List[int]) -> None:
        self._blame("never_started", text, missing[0], host=self._hosts.get(missing[0]), final=True)

    def _has_work(self, node: int) -> bool:
        """Whether ranks of a node have not ended; a launcher may have started them from another node."""
        return any(one.rank not in self._round.ends for one in ranks.node_processes(self._plan, node))

    # -- the remote shell ----------------------------------------------------------------------------------------

    def _new_relay(self) -> Relay:
        from ..remote_shell.relay import Relay

        addresses = self._told["addresses"] if self._phase == RUNNING else ()
        return Relay(addresses, self._hosts, self._tell_node, self._no_shell, self._shell_begins)

    def _close_relay(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None

    def _tell_node(self, node: int, message: Message) -> bool:
        """Whether the node is there to be told."""
        if node in self._nodes:
            self._peers[node].send(message)
        return node in self._nodes

    def _no_shell(self) -> Optional[str]:
        """Why no command is to be started on any node."""
        going_on = self._phase == RUNNING and self._round.reason is None and not self._round.failures
        if going_on and ranks.has_shell(self._plan):
            return None
        return "the job is being stopped"

    def _shell_begins(self, node: int) -> None:
        """The node is told to start a command, and so has something running."""
        self._round.quiet.discard(node)
        self._round.shells[node] = self._round.shells.get(node, 0) + 1

    # -- stopping ------------------------------------------------------------------------------------------------

    def _fail(self, cause: RankEnd) -> None:
        if self._round.reason not in (None, "failure") or self._phase == OVER:
            return  # what goes wrong while the job is being stopped for another reason is no cause of anything
        self._round.failures.append(cause)
        self._round.matched.update(cause.get("matched") or ())
        from ..failures import classify

        self._event("failure", t=cause["t"], node=cause.get("node"), rank=cause.get("rank"),
                    exit_code=cause["exit_code"], message=self._judge.words(cause))  # fmt: skip
        failed, hold = self._round, BLAME_WINDOW_S if classify.speaks_for_itself(cause) else LONG_BLAME_WINDOW_S
        self._loop.later(hold, lambda: self._stop("failure") if failed is self._round else None)

    def _blame(
        self, kind: str, message: str, node: Optional[int], exit_code: int = exit_codes.LOST, **more: Any
    ) -> None:
        """What no process said of itself has gone wrong; `kind` is its class."""
        cause = {"t": time.time(), "node": node, "rank": None, "exit_code": exit_code, "class": kind}
        self._fail(cast("RankEnd", dict(cause, message=message, **more)))

    def _hangs(self, answer: Answer) -> None:
        from ..hangs import query

        if self._phase != RUNNING or self._round.reason is not None or self._round.failures:
            return
        where = query.grouped(answer)
        text = "no rank wrote output or used the processor for %g s" % self._plan["hang_timeout_s"]
        if where:
            text += ": " + "; ".join(where[:3])
        self._blame("hang", text, None, exit_code=exit_codes.TIMED_OUT, stacks=where)

    def _time_is_up(self) -> None:
        from ..failures import report
        from ..hangs import query

        def stop(answer: Answer) -> None:
            if self._round.reason is None:
                late = report.timed_out(self._plan)
                self._round.failures = [{**late, "t": time.time(), "stacks": query.grouped(answer)}]
                self._stop("timeout")

        self.take_stacks(stop)

    def _stop(self, reason: str) -> None:
        if self._round.reason is not None or self._phase == OVER:
            return
        self._round.reason = reason
        self._round.stopped_at = time.time()
        self._pause.cancel()
        self._rendezvous.close()
        if self._assembly is not None:
            self._assembly.close()
        if reason != "complete":
            self._event("stopping", reason=reason, message=self._judge.likely(self._round))
        self._tell_to_stop()
        if self._phase == PAUSING:
            self._round.quiet.update(self._nodes)
        self._check_end()

    def _tell_to_stop(self) -> None:
        """All nodes; of a Ray cluster first node 0, as long as the command there may need the others for its end."""
        now = self._round
        if self._assembly is None or self._phase != RUNNING or 0 not in now.living() or now.told_to_stop:
            self._server.broadcast({"type": "stop", "reason": now.reason})
        else:
            now.told_to_stop = True
            self._tell_node(0, {"type": "stop", "reason": now.reason})
            again = lambda: self._tell_to_stop() if now is self._round else None  # noqa: E731
            self._loop.later(self._plan["grace_s"] / 2, again)

    def _check_end(self) -> None:
        if self._phase == OVER:
            return
        everybody = self._nodes if self._round.reason is not None else range(self._plan["nodes"])
        if all(node in self._round.quiet for node in everybody):
            self._round_ended()

    # -- how it ended --------------------------------------------------------------------------------------------

    def _round_ended(self) -> None:
        now = self._round
        verdict = self._judge.of(now, can_go_on=self._can_go_on())
        if verdict.again is not None and verdict.outcome.cause is not None:
            self._start_again(verdict.outcome.cause, verdict.again)
        elif verdict.outcome.status == "Preempted" and 0 in now.leaving and self._settings.judged:
            self._event("left", report=self._report(verdict, time.time()))
            self._leave_job()
        else:
            self._finish(verdict)

    def _can_go_on(self) -> bool:
        """Whether this very node stays, or somebody will start the job again."""
        return 0 not in self._round.leaving or self._settings.returns

    def _start_again(self, cause: Cause, decision: Decision) -> None:
        summary = self._judge.note_restart(cause, decision, self._round.number)
        number = self._round.number + 1
        self._event("restart", restart=number, decision=decision.why, message=cause["message"], used=decision.used,
                    delay=decision.delay, summary=summary, handed_over=0 in self._round.leaving)  # fmt: skip
        leaving, self._round = self._round.leaving, Attempt(number)
        self._close_relay()
        if 0 in leaving:
            self._hand_over()
            return
        self._phase = PAUSING
        for peer in list(self._server.peers):
            if peer.kind == "rank":
                peer.channel.close("of a start that is over")
            elif peer.kind == "node" and peer.number in leaving:
                self._nodes.pop(peer.number, None)
                peer.send({"type": "finish", "exit_code": exit_codes.PREEMPTED})
        self._pause = self._loop.later(decision.delay, self._gather_again)

    def _hand_over(self) -> None:
        """Node 0 must go: whoever starts bootstraps begins anew, knowing from the events where we are."""
        try:
            os.close(os.open(paths.handed_over_mark(self._run_dir), os.O_WRONLY | os.O_CREAT, 0o666))
        except OSError:
            pass  # a full disk; the event may have found room
        self._leave_job()

    def _leave_job(self) -> None:
        """End here and on all nodes, and leave the last word to somebody else."""
        self._phase = OVER
        self._server.broadcast({"type": "finish", "exit_code": exit_codes.PREEMPTED})
        self._leave(exit_codes.PREEMPTED)

    def _gather_again(self) -> None:
        self._gather()
        self._server.broadcast({"type": "again", "restart": self._round.number})
        self._ask_for(range(self._plan["nodes"]))

    def _ask_for(self, nodes: Iterable[int]) -> None:
        """Bootstraps for those of them that have none, unless the job is being stopped meanwhile."""
        for node in nodes:
            if node not in self._nodes and self._settings.replace is not None and self._round.reason is None:
                self._asked += 1
                self._settings.replace(node)

    def _finish(self, verdict: Verdict) -> None:
        self._phase = OVER
        outcome, ended = verdict.outcome, time.time()
        content = self._report(verdict, ended)
        mlflow_store.finish(content["run"], self._run_dir, outcome.status, ended)
        events.write_report(self._run_dir, content)
        plan_file.forget_secrets(self._run_dir)
        self._event("ended", status=outcome.status, exit_code=outcome.exit_code, message=outcome.message)
        self._server.broadcast({"type": "finish", "exit_code": outcome.exit_code})
        self._leave(outcome.exit_code)

    def _report(self, verdict: Verdict, ended: float) -> RunReport:
        return self._judge.report(verdict, self._round, self._started_at or self._begun, ended)

    def _leave(self, exit_code: int) -> None:
        """The others close once they have read the last word; node 0's own connection is ours to close."""
        self._server.close()
        self._close_relay()
        deadline = time.monotonic() + 2.0

        def leave() -> None:
            if all(peer.number == 0 for peer in self._server.peers) or time.monotonic() > deadline:
                self._ended(exit_code)
            else:
                self._loop.later(0.01, leave)

        leave()

    def _event(self, event: str, **facts: Any) -> None:
        events.note(self._run_dir, event, **facts)

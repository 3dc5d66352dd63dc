"""The job as a whole, on node 0: who has joined, what failed first, when all must stop, how it ended."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any, Callable, Dict, List, Optional

from . import advice, contract, events, failure, metrics
from .channel import Message
from .control import ControlServer, Peer, raise_open_files_limit
from .loop import Loop

CANCELED, TIMED_OUT, LOST = 130, 124, 125  # exit codes of a job that no rank ended
#: Seconds between the first failure and the end of all: failures that caused it, or that it caused, show themselves.
HOLD = 0.2
_TELL_EVERY = 10.0  # seconds between two words about nodes that are missing


class Coordinator:
    """Takes the nodes' messages over the control port and decides for all of them.

    `ended(exit_code)` is called once, when every node has gone or has nothing left running.
    """

    def __init__(
        self,
        loop: Loop,
        plan: Dict[str, Any],
        listener: socket.socket,
        token: bytes,
        run_dir: str,
        ended: Callable[[int], None],
        rendezvous_timeout: float,
    ) -> None:
        self._loop = loop
        self._plan = plan
        self._run_dir = run_dir
        self._ended = ended
        self._started_at: Optional[float] = None
        self._created_at = time.monotonic()
        self._begun = time.time()
        self._nodes: Dict[int, Message] = {}  # joined: what each said of itself
        self._quiet: Dict[int, bool] = {}  # nodes with nothing left running, and nodes that are gone
        self._ranks: Dict[int, Message] = {}  # the end of each rank
        self._failures: List[Message] = []
        self._reason: Optional[str] = None  # why all are being stopped
        self._over = False
        self._expected = contract.world_size(plan)
        if plan["nodes"] > 500:
            raise_open_files_limit()
        self._server = ControlServer(loop, listener, token, self._message, self._left)
        self._give_up = loop.later(rendezvous_timeout, self._rendezvous_failed)
        loop.later(_TELL_EVERY, self._tell_missing)

    # -- what is heard -------------------------------------------------------------------------------------------

    def _message(self, peer: Peer, message: Message) -> None:
        handler = getattr(self, "_on_" + str(message.get("type")), None)
        if handler is not None:
            handler(peer, message)

    def _on_join(self, peer: Peer, message: Message) -> None:
        node = peer.number
        if not 0 <= node < self._plan["nodes"] or node in self._nodes:
            reason = "node %d has joined already" % node if node in self._nodes else "there is no node %d" % node
            peer.send({"type": "refused", "reason": reason})
            return
        message["address"] = peer.channel.remote_address
        message["reached"] = peer.channel.local_address
        self._nodes[node] = message
        self._event("node_joined", node=node, host=message.get("host"), pid=message.get("pid"))
        if self._reason is not None:
            peer.send({"type": "stop", "reason": self._reason})
        elif len(self._nodes) == self._plan["nodes"]:
            self._start()

    def _on_facts(self, peer: Peer, message: Message) -> None:
        """A rank under a foreign launcher asks for what the nodes were told."""
        peer.send(self._start_message())

    def _on_rank_started(self, peer: Peer, message: Message) -> None:
        self._event("rank_started", t=message["t"], node=message["node"], rank=message["rank"], pid=message["pid"])

    def _on_rank_ended(self, peer: Peer, message: Message) -> None:
        self._ranks[message["rank"]] = message
        if self._reason is not None and message["signal"] in (signal.SIGTERM, signal.SIGKILL):
            message["stopped"] = True  # by us, or by a launcher that we stopped
        facts = {key: message[key] for key in ("t", "node", "rank", "exit_code", "signal")}
        self._event("rank_ended", **facts)
        if message["exit_code"] and not message["stopped"]:
            what = failure.describe(message["exit_code"], message["signal"])
            self._fail(dict(message, message="rank %d on node %d %s" % (message["rank"], message["node"], what)))
        elif self._reason is None and self._work_is_done():
            self._stop("complete")
        if peer.kind == "rank":
            peer.send({"type": "noted"})

    def _on_warning(self, peer: Peer, message: Message) -> None:
        self._event("warning", node=peer.number, message=message["message"])

    def _on_failed(self, peer: Peer, message: Message) -> None:
        """Something other than a rank failed: a launcher, a rank that could not be started, a signal to a node."""
        self._fail(message)

    def _on_quiet(self, peer: Peer, message: Message) -> None:
        self._quiet[peer.number] = True
        self._check_end()

    def _left(self, peer: Peer, why: str) -> None:
        if self._over:
            return
        if peer.kind == "rank":
            if peer.number not in self._ranks and self._reason is None:
                node = peer.number // max(1, self._plan["distribution"]["processes"])
                text = "rank %d vanished: %s" % (peer.number, why)
                self._fail({"t": time.time(), "node": node, "rank": peer.number, "exit_code": 1, "message": text})
            return
        if peer.number in self._nodes and not self._quiet.get(peer.number):
            text = "node %d is lost: %s" % (peer.number, why)
            host = self._nodes[peer.number].get("host")
            self._fail({"t": time.time(), "node": peer.number, "rank": None, "exit_code": LOST, "message": text,
                        "host": host, "lost": True})  # fmt: skip
            self._quiet[peer.number] = True
            self._check_end()

    # -- what is decided -----------------------------------------------------------------------------------------

    def cancel(self) -> None:
        self._stop("cancelled")

    def lost(self, node: int, message: str) -> None:
        """A node will not come (again), or the supervisor has gone: stop everything, and say so in the report."""
        self._fail({"t": time.time(), "node": node, "rank": None, "exit_code": LOST, "message": message, "lost": True})
        self._quiet[node] = self._quiet.get(node, False) or node not in self._nodes

    def has_joined(self, node: int) -> bool:
        return node in self._nodes

    def _start(self) -> None:
        self._give_up.cancel()
        self._started_at = time.time()
        if self._plan["timeout_s"]:
            self._loop.later(self._plan["timeout_s"], lambda: self._stop("timeout"))
        message = self._start_message()
        self._event("started", master_addr=message["addresses"][0], master_port=message["ports"][0][0])
        self._server.broadcast(message)

    def _start_message(self) -> Message:
        """Addresses and ports of all nodes. Node 0's own address is the one at which another node reached it."""
        nodes = [self._nodes[number] for number in range(self._plan["nodes"])]
        addresses = [node["address"] for node in nodes]
        if len(nodes) > 1:
            addresses[0] = nodes[1]["reached"]
        each = {key: [node[key] for node in nodes] for key in ("ports", "cores", "gpus")}
        return dict(each, type="start", addresses=addresses)

    def _work_is_done(self) -> bool:
        """Parameter servers, and workers that serve a chief, never end by themselves: others' ends count."""
        if self._plan["distribution"].get("parameter_servers", 0) == 0:
            return False
        chief = self._plan["distribution"]["chief"]
        essential = [p.rank for p in contract.processes(self._plan) if p.role == ("chief" if chief else "worker")]
        return all(rank in self._ranks and self._ranks[rank]["exit_code"] == 0 for rank in essential)

    def _fail(self, cause: Message) -> None:
        self._failures.append(cause)
        self._event("failure", t=cause["t"], node=cause.get("node"), rank=cause.get("rank"),
                    exit_code=cause["exit_code"], message=cause["message"])  # fmt: skip
        self._loop.later(HOLD, lambda: self._stop("failure"))

    def _stop(self, reason: str) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        self._give_up.cancel()
        if reason != "complete":
            self._event("stopping", reason=reason)
        self._server.broadcast({"type": "stop", "reason": reason})
        self._check_end()

    def _missing(self) -> List[int]:
        return [node for node in range(self._plan["nodes"]) if node not in self._nodes]

    def _tell_missing(self) -> None:
        missing = self._missing()
        if missing and self._reason is None:
            self._event("waiting", missing=missing[:50], joined=len(self._nodes))
            self._loop.later(_TELL_EVERY, self._tell_missing)

    def _rendezvous_failed(self) -> None:
        missing = self._missing()
        names = ", ".join("node %d" % node for node in missing[:20]) + (", ..." if len(missing) > 20 else "")
        text = "%d of %d nodes joined within %.0f s; missing: %s" % (
            len(self._nodes), self._plan["nodes"], time.monotonic() - self._created_at, names)  # fmt: skip
        self._fail({"t": time.time(), "node": missing[0], "rank": None, "exit_code": LOST, "message": text,
                    "lost": True})  # fmt: skip

    def _check_end(self) -> None:
        if self._over:
            return
        everybody = self._nodes if self._reason is not None else range(self._plan["nodes"])
        if all(self._quiet.get(node) for node in everybody):
            self._finish()

    # -- how it ended --------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._over = True
        report = self._report()
        metrics.finish(report["run"], self._run_dir, report["status"], report["ended"])
        events.write_json(self._run_dir + "/report.json", report)
        self._event("ended", status=report["status"], exit_code=report["exit_code"], message=report["message"])
        self._server.broadcast({"type": "finish", "exit_code": report["exit_code"]})
        self._server.close()
        deadline = time.monotonic() + 2.0

        def leave() -> None:
            # The others close once they have read it; node 0's own connection is ours to close.
            if all(peer.number == 0 for peer in self._server.peers) or time.monotonic() > deadline:
                self._ended(report["exit_code"])
            else:
                self._loop.later(0.01, leave)

        leave()

    def _report(self) -> Dict[str, Any]:
        cause: Optional[Message] = None
        if self._failures:
            cause = min(self._failures, key=failure.likelihood)
            status, code = ("Lost" if cause.get("lost") else "Failed"), cause["exit_code"]
            message = cause["message"] + (": " + cause["error"] if cause.get("error") else "")
        elif self._reason == "cancelled":
            status, code, message = "Canceled", CANCELED, "cancelled on request"
        elif self._reason == "timeout":
            status, code = "TimedOut", TIMED_OUT
            message = "stopped after limits.timeout = %d s" % self._plan["timeout_s"]
        else:
            silent = [rank for rank in range(self._expected) if not self._succeeded(rank)]
            if silent:
                status, code = "Failed", 1
                message = "no success was reported by rank(s) %s" % ", ".join(str(rank) for rank in silent[:20])
            else:
                status, code, message = "Completed", 0, "all %d ranks ended with code 0" % self._expected
        return {
            "run": self._plan["run"],
            "status": status,
            "exit_code": code,
            "message": message,
            "cause": None if cause is None else self._cause(cause),
            "ranks": [self._rank_record(process) for process in contract.processes(self._plan)],
            "started": self._started_at or self._begun,
            "ended": time.time(),
        }

    def _succeeded(self, rank: int) -> bool:
        end = self._ranks.get(rank)
        return end is not None and (end["exit_code"] == 0 or (self._reason == "complete" and end["stopped"]))

    def _cause(self, cause: Message) -> Dict[str, Any]:
        keys = ("node", "rank", "pid", "exit_code", "signal", "message", "traceback", "error", "last_lines")
        record = {key: cause.get(key) for key in keys}
        record["advice"] = advice.advice("\n".join([cause.get("traceback") or "", *(cause.get("last_lines") or [])]))
        record["host"] = cause.get("host") or self._nodes.get(cause.get("node", -1), {}).get("host")
        record["time"] = cause["t"]
        return record

    def _rank_record(self, process: contract.Process) -> Dict[str, Any]:
        end = self._ranks.get(process.rank, {})
        return {
            "rank": process.rank,
            "node": process.node_rank,
            "role": process.role,
            "exit_code": end.get("exit_code"),
            "signal": end.get("signal"),
            "stopped": bool(end.get("stopped")),
            "started": end.get("started"),
            "ended": end.get("t"),
        }

    def _event(self, event: str, **facts: Any) -> None:
        try:
            events.append(self._run_dir, event, **facts)
        except OSError as error:  # a full disk must not keep the job from being stopped in order
            os.write(2, ("event %s not written: %s\n" % (event, error)).encode())

"""The preflight: one process on each node, in place of the user's command, that looks at what a job over them needs.

The nodes find each other as a training script would, by the environment contract: node 0 listens on MASTER_PORT and
all others report to it. The plan's `preflight` has a `token` by which they know each other, made for this one run,
`gpus`, how many the job's processes take of a node (0: not said), and whether to measure the `bandwidth`. When all are
there, each connects to each; then TCP is measured in a ring, and torch's all-reduce where all have torch and not all
share one machine. Node 0 judges, prints, and leaves the result in the run's outputs.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, cast

from ..control.channel import Message
from ..control.client import ControlClient
from ..control.loop import Loop
from ..control.server import ControlServer, Peer
from ..launchers import base
from ..spec import events, paths
from ..system import infiniband, network
from . import diagnosis, machine
from .allreduce import Reduction
from .finding import OK, PROBLEM, WARNING, Finding
from .links import Links, Listener
from .measurement import Measurement
from .ring import Station

if TYPE_CHECKING:
    from ..spec import preflight_messages as messages

#: Seconds that node 0 waits until the others have found it: they were all started at once.
_JOIN_TIMEOUT_S = 5.0
#: And until those have told what they are like: Python may come from a slow file system.
_ANSWER_TIMEOUT_S = 15.0
#: Further ports that are tried where MASTER_PORT is taken, so that this can be said.
_SPARE_PORTS = 3
#: At least and at most so many looks at node 0's clock; the one with the shortest way there and back counts. More than
#: the least only while none took less than a millisecond: a busy machine answers late.
_CLOCK_ROUNDS, _MOST_CLOCK_ROUNDS = 8, 50
_NAMES_TIMEOUT_S = 2.0  # seconds for all look-ups of names
_MOST_NAMES = 64  # names that one node looks up: those of the nodes after it


class PreflightError(Exception):
    """The environment is not that of a node; the message says what is missing."""


def result_path(run_dir: str) -> str:
    """Where node 0 leaves the result."""
    return paths.output_folder("default", run_dir) + "/preflight.json"


class Contract:
    """What the environment says of this node and the others, as any script reads it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        try:
            self.rank = int(environment["NODE_RANK"])
            self.count = int(environment["NODE_COUNT"])
            self.master = environment["MASTER_ADDR"]
            self.port = int(environment["MASTER_PORT"])
            self.run_dir = environment["JOBSDK_RUN_DIR"]
            self.addresses = environment["AZ_BATCH_HOST_LIST"].split(",")
        except (KeyError, ValueError) as error:
            raise PreflightError("this is no node of a job: %s is missing or no number" % error) from None
        if len(self.addresses) != self.count:
            raise PreflightError("AZ_BATCH_HOST_LIST has %d addresses, NODE_COUNT says %d" % (
                len(self.addresses), self.count))  # fmt: skip

    def any_address(self) -> str:
        """Where to listen: only on loopback where all nodes are on this machine."""
        own = self.addresses[self.rank]
        return own if network.is_loopback(own) and len(set(self.addresses)) == 1 else ""

    def ports(self) -> List[int]:
        """Where node 0 may listen: MASTER_PORT, or where that is not to be had the next that is."""
        return list(range(self.port, self.port + 1 + _SPARE_PORTS))


class Member:
    """Every node: says what it is like, measures its clock, connects to the others when told, reports."""

    def __init__(self, loop: Loop, contract: Contract, token: bytes, master: Optional[str]) -> None:
        """`master`: node 0's address, where that is not for MASTER_ADDR to say."""
        self._loop = loop
        self._contract = contract
        self._joined = False
        self._over = False
        self._listener = Listener(loop, contract.any_address(), contract.rank)
        self._station = Station(loop, contract.any_address(), token)
        self._nodes: Dict[str, messages.ProbedNode] = {}  # all that reported: what node 0 has told of them
        self._python = base.find("python") or base.find("python3") or sys.executable
        self._clock: Optional[messages.Clock] = None
        self._rounds = 0
        self._reached: Optional[List[messages.Reached]] = None
        self._names: Optional[Dict[str, str]] = None
        self._client = ControlClient(
            loop, [master or contract.master], contract.ports(), token, "node", contract.rank, _JOIN_TIMEOUT_S - 1.0,
            self._join, self._message, self._lost,
        )  # fmt: skip

    # -- joining -------------------------------------------------------------------------------------------------

    def _lost(self, why: str) -> None:
        if self._over:
            return
        if self._joined:
            self._end(1, "lost node 0: %s" % why)
            return
        why = "it cannot reach node 0: %s" % why.rpartition(" s: ")[2]
        events.write_json(_note(self._contract.run_dir, self._contract.rank), {"why": why})
        self._end(0, why)  # the verdict is node 0's: a code of our own would end that one too

    def _end(self, code: int, text: str) -> None:
        print("preflight: node %d: %s" % (self._contract.rank, text), flush=True)
        self.code = code
        self._loop.stop()

    def _join(self) -> None:
        self._joined = True
        self._client.send({"type": "found"})
        self._client.send(self._described())

    def _described(self) -> messages.Here:
        """What this node is like."""
        contract = self._contract
        interface = network.interface_towards(contract.master)
        facts = machine.facts(self._python, [contract.run_dir, "/tmp", os.getcwd()])  # nosec B108 # only looked at
        return {
            "type": "here",
            "facts": facts,
            "address": contract.addresses[contract.rank],
            "port": self._listener.port,
            "station": self._station.port,
            "interface": interface,
            "mtu": next((one["mtu"] for one in facts["interfaces"] if one["name"] == interface), None),
            "own": [address for one in facts["interfaces"] for address in one["addresses"]],
        }

    # -- what node 0 asks ----------------------------------------------------------------------------------------

    def _message(self, message: Message) -> None:
        kind = message["type"]
        if kind == "time":
            self._told_time(cast("messages.Time", message))
        elif kind == "probe":
            self._probe(message["nodes"])
        elif kind == "stream":
            self._stream(message["order"], message["senders"])
        elif kind == "reduce":
            Reduction(self._loop, self._python, os.environ, message["backend"], message["port"], self._reduced)
        elif kind == "finish":
            self._over = True
            self.code = 0
            self._loop.stop()

    def _ask_time(self) -> None:
        self._rounds += 1
        question: messages.AskTime = {"type": "time", "sent": time.time()}
        self._client.send(question)

    def _told_time(self, message: messages.Time) -> None:
        """As NTP: node 0 looked at its clock half-way, give or take half of the way there and back."""
        now = time.time()
        rtt = now - message["sent"]
        if self._clock is None or rtt < self._clock["rtt"]:
            self._clock = {"offset": (message["sent"] + now) / 2 - message["at"], "rtt": rtt}
        if self._rounds < (_CLOCK_ROUNDS if self._clock["rtt"] < 0.001 else _MOST_CLOCK_ROUNDS):
            self._loop.later(0.002, self._ask_time)
        else:
            assert self._reached is not None
            assert self._names is not None
            found: messages.Result = {
                "type": "result", "reached": self._reached, "names": self._names, "clock": self._clock,
            }  # fmt: skip
            self._client.send(found)

    def _probe(self, nodes: Dict[str, messages.ProbedNode]) -> None:
        self._nodes = nodes
        others = {int(node): told for node, told in nodes.items() if int(node) != self._contract.rank}
        self._look_up(nodes)
        Links(self._loop, {node: (told["address"], told["port"]) for node, told in others.items()}, self._linked)

    def _linked(self, reached: List[messages.Reached]) -> None:
        self._reached = reached
        self._looked()

    def _looked(self) -> None:
        """Only now the clock: nodes that share a machine no longer compete for it."""
        if self._reached is not None and self._names is not None:
            self._ask_time()

    def _stream(self, order: List[int], senders: List[int]) -> None:
        """Send to the next node of the ring, or take what the one before sends, or both."""
        rank = self._contract.rank
        place = order.index(rank)
        before, after = order[place - 1], self._nodes[str(order[(place + 1) % len(order)])]
        takes = before in senders

        def done(rate: Optional[float], why: str) -> None:
            link: messages.RingLink = {"error": why or "nothing arrived"} if rate is None else {"gbps": rate}
            link.update({"from": before, "to": rank})
            streamed: messages.Streamed = {"type": "streamed", "link": link if takes else None}
            self._client.send(streamed)

        self._station.run((after["address"], after["station"]) if rank in senders else None, takes, done)

    def _reduced(self, said: messages.AllReduce) -> None:
        reduced: messages.Reduced = {"type": "reduced", "said": said}
        self._client.send(reduced)

    def _look_up(self, nodes: Dict[str, messages.ProbedNode]) -> None:
        """Names of the nodes after this one, in a thread: a name server that does not answer holds up nothing."""
        import threading

        rank, count = self._contract.rank, self._contract.count
        chosen = [str((rank + step) % count) for step in range(min(count, _MOST_NAMES + 1))]
        names = {nodes[node]["host"]: (node, nodes[node]) for node in reversed(chosen) if node in nodes}
        hosts = [told["host"] for told in nodes.values()]
        troubles: Dict[str, str] = {}
        left = set(names)
        read, write = os.pipe()

        def work() -> None:
            for name, (node, told) in list(names.items()):
                trouble = machine.name_trouble(name, told, hosts)
                if trouble is not None:
                    troubles[node] = trouble
                left.discard(name)
            os.write(write, b".")

        def finished() -> None:
            late.cancel()
            self._loop.forget(read)
            for name in list(left):
                slow = "was not found within %.0f s" % _NAMES_TIMEOUT_S
                troubles.setdefault(names[name][0], "(%s) %s" % (name, slow))
            self._names = dict(troubles)
            self._looked()

        late = self._loop.later(_NAMES_TIMEOUT_S, finished)
        self._loop.on_readable(read, finished)
        threading.Thread(target=work, daemon=True).start()

    #: The exit code, once `run` is through.
    code = 1


class PreflightReport:
    """Node 0's part: hears all, has them connect to each other, and says what is wrong. `ended(code)` at the end."""

    def __init__(self, loop: Loop, contract: Contract, token: bytes, wanted: Mapping[str, Any]) -> None:
        self._loop = loop
        self._contract = contract
        self._wanted = dict(wanted, nodes=contract.count)
        self._reports: Dict[int, messages.NodeReport] = {}
        self._results: Dict[int, messages.Result] = {}
        self._found: Set[int] = set()  # nodes that have found node 0
        self._late = False  # those that have not will not be waited for
        self._left: Dict[int, str] = {}
        self._asked = False
        self._measured: Optional[Measurement] = None
        self._began = time.monotonic()
        self._taken: Optional[messages.PortTaken] = None
        self.code: Optional[int] = None
        listener = self._listen()
        self.address = network.own_address(listener)
        self._server = ControlServer(loop, listener, token, self._message, self._gone, contract.count)
        loop.later(_JOIN_TIMEOUT_S, self._all_too_late)
        self._give_up = loop.later(_ANSWER_TIMEOUT_S, self._ask)

    def _listen(self) -> socket.socket:
        for port in self._contract.ports():
            try:
                return network.listener(self._contract.any_address(), port)
            except OSError as error:
                if self._taken is None:
                    self._taken = {"port": port, "why": machine.taken_by(port, error)}
        raise PreflightError("none of the ports %s can be bound" % ", ".join(map(str, self._contract.ports())))

    def _message(self, peer: Peer, message: Message) -> None:
        kind = message.get("type")
        if kind == "time":
            answer: messages.Time = {"type": "time", "sent": message["sent"], "at": time.time()}
            peer.send(answer)
        elif kind == "found" and 0 <= peer.number < self._contract.count:
            self._found.add(peer.number)
        elif kind == "here" and peer.number in self._found:
            self._reports[peer.number] = cast("messages.NodeReport", message)
            self._ask_if_all_are_here()
        elif kind == "result" and peer.number in self._reports:
            self._results[peer.number] = cast("messages.Result", message)
            self._check()
        elif kind == "streamed" and self._measured is not None:
            self._measured.streamed(peer.number, message["link"])
        elif kind == "reduced" and self._measured is not None:
            self._measured.reduced(peer.number, message["said"])

    def _gone(self, peer: Peer, why: str) -> None:
        if self.code is None and peer.number not in self._results:
            self._left[peer.number] = why
            self._check()
            if self._late:
                self._ask_if_all_are_here()

    def _all_too_late(self) -> None:
        self._late = True
        self._ask_if_all_are_here()

    def _ask_if_all_are_here(self) -> None:
        wanted = len(self._found - set(self._left)) if self._late else self._contract.count
        if len(set(self._reports) - set(self._left)) >= wanted:
            self._ask()

    def _ask(self) -> None:
        if self._asked:
            return
        self._asked = True
        self._give_up.cancel()
        told: Dict[str, messages.ProbedNode] = {
            str(node): {"address": said["address"], "port": said["port"], "own": said["own"],
                        "host": said["facts"]["host"], "station": said["station"]}
            for node, said in self._reports.items()
        }  # fmt: skip
        probe: messages.Probe = {"type": "probe", "nodes": told}
        self._server.broadcast(probe)
        # A pair that does not connect takes seconds, and so many are tried at once.
        self._too_long = self._loop.later(8.0 + len(told) / 16.0, self._finish)
        self._check()

    def _check(self) -> None:
        if self._asked and not set(self._reports) - set(self._results) - set(self._left):
            if self._measured is not None:
                self._measured.without(self._left)
            elif self._wanted.get("bandwidth") and self._all_reach_all():
                self._too_long.cancel()
                self._measured = Measurement(self._loop, self._server.broadcast, self._reports, self._finish)
            else:
                self._finish()

    def _all_reach_all(self) -> bool:
        links = [link for result in self._results.values() for link in result["reached"]]
        return len(self._results) == self._contract.count > 1 and all("ms" in link for link in links)

    def _finish(self) -> None:
        if self.code is not None:
            return
        for node, said in self._results.items():
            report = self._reports[node]
            report["reached"], report["names"], report["clock"] = said["reached"], said["names"], said["clock"]
        if self._taken is not None and 0 in self._reports:
            self._reports[0]["port_taken"] = self._taken
        measured = self._measured.result if self._measured is not None else None
        nodes = diagnosis.Nodes(self._reports, self._missing(), self._wanted, measured)
        findings = nodes.findings()
        self.code = 1 if any(finding.level == PROBLEM for finding in findings) else 0
        result = {
            "findings": [finding._asdict() for finding in findings],
            "summary": nodes.summary(),
            "seconds": round(time.monotonic() - self._began, 3),
            "bandwidth": measured,
            "nodes": {str(node): report for node, report in sorted(self._reports.items())},
        }
        events.write_json(result_path(self._contract.run_dir), result)
        for line in text_of(result):
            print(line, flush=True)
        self._server.broadcast({"type": "finish"})
        deadline = time.monotonic() + 1.0

        def leave() -> None:
            if all(peer.number == 0 for peer in self._server.peers) or time.monotonic() > deadline:
                self._loop.stop()
            else:
                self._loop.later(0.005, leave)

        leave()

    def _missing(self) -> Dict[int, str]:
        """Why each silent node is silent, as far as anybody knows: itself, where the run's folder is shared."""
        found = {}
        for node in range(self._contract.count):
            address = self._contract.addresses[node]
            if node in self._results:
                continue
            if node in self._left:
                found[node] = "(%s) it went before it had reported: %s" % (address, self._left[node])
            elif node in self._found:
                found[node] = "(%s) it found node 0, and did not report in time" % address
            else:
                try:
                    why = events.read_json(_note(self._contract.run_dir, node))["why"]
                    found[node] = "(%s) %s" % (address, why)
                except (OSError, ValueError, KeyError):
                    text = "its bootstrap joined from %s, but nothing came to MASTER_PORT %d"
                    found[node] = text % (address, self._contract.port)
        return found


def text_of(result: Mapping[str, Any]) -> List[str]:
    """The result as lines: the findings, the worst first, then the summary."""
    lines = []
    for finding in result["findings"]:
        fix = " Fix: %s" % finding["fix"] if finding["fix"] else ""
        lines.append("%-8s %s%s" % (finding["level"], finding["text"], "." + fix if fix else ""))
    return [*lines, result["summary"]]


def of_text(lines: Sequence[str]) -> Optional[Tuple[List[Finding], str]]:
    """Findings and summary from what `text_of` has made of them, in a log; None where it has no summary."""
    findings = []
    for line in lines:
        level, _, rest = line.partition(" ")
        if level in (PROBLEM, WARNING, OK):
            text, _, fix = rest.strip().partition(". Fix: ")
            findings.append(Finding(level, "", text, fix or None))
    if not lines or re.match(r"\d+ nodes?: ", lines[-1]) is None:
        return None
    return findings, lines[-1]


def _note(run_dir: str, node: int) -> str:
    """Where a node that cannot reach node 0 says so: read where the run's folder is shared."""
    return "%s/preflight-node-%d.json" % (paths.node_logs(run_dir, node), node)


def run() -> int:
    """This node's part; 0, or on node 0 1 where there is a problem, or 78 (sysexits: configuration) for no node."""
    try:
        contract = Contract(os.environ)
        plan = events.read_json(contract.run_dir + "/plan.json")
        mtu = (plan.get("network") or {}).get("mtu")
        wanted = dict(plan["preflight"], mtu=None if mtu in infiniband.PATH_MTUS else mtu)
        token = bytes.fromhex(wanted["token"])
        loop = Loop()
        judge = PreflightReport(loop, contract, token, wanted) if contract.rank == 0 else None
        member = Member(loop, contract, token, judge.address if judge is not None else None)
    except (PreflightError, KeyError, ValueError, TypeError, OSError) as error:
        print("preflight: %s" % error, file=sys.stderr, flush=True)
        return 78
    loop.run()
    if judge is not None:
        return 1 if judge.code is None else judge.code
    return member.code

"""A run on Spark from its start to its end: room for all nodes, their tasks, what these bring, and how it ended."""

from __future__ import annotations

import base64
import contextlib
import tempfile
import time
from collections.abc import Iterator
from typing import IO

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.control.channel import Message
from jobsdk.bootstrap.spec import plan_file
from jobsdk.compute.ends import EngineEnd, EngineEnded
from jobsdk.compute.engine import node
from jobsdk.compute.engine.hold import Hold, foreign
from jobsdk.compute.spark import errors as spark_errors
from jobsdk.compute.spark.port import Heard, Port
from jobsdk.compute.spark.stage import Needs, Running, Stage
from jobsdk.compute.spark.task import Errand

_LOOK_S = 0.5  # seconds between two looks at whether there is room
_TELL_S = 2.0  # seconds without a task before it is told that they wait
_LAST_WORDS_S = 30.0  # seconds, beside its grace time, that a cancelled job has before Spark ends its tasks
_DRAINING = 50  # looks of 0.1 s for what tasks have sent, once Spark has ended them; this process may stand still
#: What Spark sets for Python workers, and what is not a user's own word on it.
_OF_WORKERS = ("OMP_NUM_THREADS", "PYTHONUNBUFFERED")


class Drive:
    """`drive` it once."""

    def __init__(self, hold: Hold, stage: Stage, needs: Needs, host: str | None, port: int | None) -> None:
        self._hold = hold
        self._stage = stage
        self._needs = needs
        self._host = host
        self._wanted_port = port or 0
        self._nodes: int = hold.plan["nodes"]
        self._offers: dict[int, Message] = {}
        self._ended: dict[int, int] = {}  # rank -> its bootstrap's exit code
        self._left: dict[int, IO[bytes]] = {}
        self._gone: set[int] = set()
        self._is_going = False
        self._end: EngineEnd | None = None
        self._give_up: float | None = None

    def drive(self) -> None:
        """Raises EngineEnded where Spark has a word on how the job ended, ComputeError where it cannot be used."""
        if not self._waits_for_room():
            return
        files = self._hold.files()
        token = bytes.fromhex(files[plan_file.TOKEN].decode())
        self._port = Port("" if self._host else self._stage.bind_address(), self._wanted_port, token, self._nodes)
        names, beginnings = foreign()
        own = [name for name in _OF_WORKERS if name not in self._stage.executor_variables()]
        addresses = [self._host] if self._host else self._stage.addresses()
        errand = Errand(
            self._hold.run.name, files, (names + own, beginnings), addresses, self._port.port, token,
            self._needs.gpu_resource,
        )  # fmt: skip
        with contextlib.closing(self._port), contextlib.ExitStack() as stack:
            running = Running(self._stage, errand, self._nodes)
            with running.ended_at_last():
                self._attend(running, stack)
            for _, file in sorted(self._left.items()):
                self._hold.leave(_pieces(file))
        if self._end is not None:
            raise EngineEnded(self._end)
        if running.error is not None:
            raise EngineEnded(spark_errors.ended(running.error, self._silent(), self._hold.blamed()))

    # -- before ----------------------------------------------------------------------------------------------------

    def _waits_for_room(self) -> bool:
        """Whether the job is to be started once that is possible. Raises EngineEnded where there is no room for it."""
        patience = float(self._hold.plan["rendezvous_timeout_s"])
        deadline = time.monotonic() + patience
        while True:
            room = self._stage.room()
            if room is None or room >= self._nodes:
                return True
            tasks = f"{room} task{'s' * (room != 1)}"
            lacks = f"Spark can run {tasks} at once, and the job has {self._nodes} nodes, each a task"
            if not self._stage.may_grow or time.monotonic() > deadline:
                waited = f" (waited {patience:g} s for executors)" if self._stage.may_grow else ""
                fix = "more executors or cores, fewer nodes, or less cpus_per_node or gpus_per_node"
                raise EngineEnded(EngineEnd.failed(f"{lacks}{waited}. Fix: {fix}"))
            self._hold.tell("queued", message=f"waits for executors: {lacks}")
            if "cancel" in self._hold.asked():
                return False
            time.sleep(_LOOK_S)

    # -- during ----------------------------------------------------------------------------------------------------

    def _attend(self, running: Running, stack: contextlib.ExitStack) -> None:
        self._files = stack
        since, silent = time.monotonic(), 0
        while True:
            heard = self._port.next(0.1)
            if heard is not None:
                self._take(heard)
            elif running.is_over:
                silent += 1
                if self._offers.keys() <= self._gone or silent > _DRAINING:
                    return
            for request in self._hold.asked():
                self._ask(request)
            if self._give_up is not None and time.monotonic() > self._give_up:
                self._stage.cancel()
                self._give_up = None
            if not self._offers and time.monotonic() - since > _TELL_S:
                self._hold.tell("queued", message=f"waits until Spark starts the job's {self._nodes} tasks at once")

    def _ask(self, request: str) -> None:
        if request == "cancel":
            if not self._is_going:
                self._stage.cancel()
                return
            self._give_up = time.monotonic() + float(self._hold.plan["grace_s"]) + _LAST_WORDS_S
        self._port.send(0, {"type": "ask", "request": request})

    def _take(self, heard: Heard) -> None:
        rank, message = heard
        if message is None:
            self._gone.add(rank)  # Spark knows why, and tells
            return
        kind = message.get("type")
        if kind == "lines":
            self._hold.take(rank, (line.encode("utf-8", "surrogateescape") for line in message["lines"]))
        elif kind == "offer":
            self._offers[rank] = message
            if len(self._offers) == self._nodes:
                self._go()
        elif kind == "left":
            if rank not in self._left:
                self._left[rank] = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            self._left[rank].write(base64.b64decode(message["data"]))
        elif kind == "ended":
            self._ended[rank] = int(message["code"])
            self._port.send(rank, {"type": "bye"})
        elif kind == "failed" and self._end is None:
            self._end = EngineEnd.failed(f"node {rank}: {message.get('words')}", rank)
            self._stage.cancel()

    def _go(self) -> None:
        """All tasks are there: each starts its node, or, where one lacks what the job needs, none."""
        offers = [self._offers[rank] for rank in range(self._nodes)]
        own = self._stage.own_gpus()
        for rank, offer in enumerate(offers):
            if own is not None and offer["gpus"] is None and self._needs.gpus:
                first = rank * self._needs.gpus
                offer["gpus"] = own[first : first + self._needs.gpus]
            lacks = self._lacks(rank, offer)
            if lacks is not None:
                self._end = EngineEnd.failed(lacks, rank)
                for each in range(self._nodes):
                    self._port.send(each, {"type": "refused", "words": lacks})
                return
        self._is_going = True
        self._hold.tell("allocated", nodes=self._nodes, hosts=[str(offer["host"]) for offer in offers])
        first_offer = [offers[0][key] for key in node.Offer._fields]
        hosts = _told_apart([str(offer["host"]) for offer in offers])
        for rank, offer in enumerate(offers):
            word = {"type": "go", "first": first_offer, "hosts": hosts, "gpus": offer["gpus"]}
            self._port.send(rank, {**word, "variables": self._variables(rank, offer)})

    def _lacks(self, rank: int, offer: Message) -> str | None:
        needed, resource = self._needs.gpus, self._needs.gpu_resource
        there = offer["gpus"]
        if not needed or (there is not None and len(there) >= needed):
            return None
        has = "none" if there is None else str(len(there))
        of_tasks = f"spark.task.resource.{resource}.amount and spark.executor.resource.{resource}.amount to {needed}"
        of_driver = f"spark.driver.resource.{resource}.amount to {needed * self._nodes}"
        fix = f"set {of_tasks if self._stage.may_grow else of_driver}, with a discovery script, for the session"
        return f"node {rank} ({offer['host']}) takes {needed} GPUs, and Spark gives its task {has}. Fix: {fix}"

    def _variables(self, rank: int, offer: Message) -> dict[str, str]:
        """What a node's ranks get beside the bootstrap's own: threads for the cores that Spark counts for its task."""
        if "OMP_NUM_THREADS" in self._stage.executor_variables():
            return {}
        processes = len(distributions.of(self._hold.plan).node_processes(rank)) or 1
        return {"OMP_NUM_THREADS": str(max(1, int(offer["cpus"]) // processes))}

    # -- after -----------------------------------------------------------------------------------------------------

    def _silent(self) -> dict[int, str]:
        """The nodes that have begun and not come to their end, with their hosts."""
        return {rank: str(offer["host"]) for rank, offer in self._offers.items() if rank not in self._ended}


def _told_apart(hosts: list[str]) -> list[str]:
    """Names of nodes, which may share a machine."""
    return hosts if len(set(hosts)) == len(hosts) else [f"{host}-{rank}" for rank, host in enumerate(hosts)]


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while piece := file.read(1 << 20):
        yield piece

"""What a task of Spark does for a job: it holds one node, and is in touch with the run's driver all the time.

It travels by value to executors that have no jobsdk: standard library and pyspark only, Python 3.8 or later, besides
what travels with it of `engine.node` and `bootstrap.channel`.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import socket
import sys
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from jobsdk.bootstrap.control.channel import Handshake, Message, encoded, received
from jobsdk.compute.engine.node import HeldNode, Offer, gpu_mask

_CONNECT_S = 20.0  # seconds to reach the driver
_BATCH = 256 << 10  # bytes of lines in one message
_MOST = 16 << 20  # bytes of a message


class Errand(NamedTuple):
    """What all tasks of a run are given."""

    run: str
    files: Dict[str, bytes]  # the parcel
    foreign: Tuple[List[str], List[str]]  # what of a Python worker's environment is not for ranks
    addresses: List[str]  # of the driver
    port: int
    token: bytes
    gpu_resource: str


class Question(NamedTuple):
    """What `jobsdk compute check` asks a task."""

    addresses: List[str]
    port: int
    gpu_resource: str


class Line:
    """The connection to the driver: frames as `bootstrap.channel` has them, after its challenge."""

    def __init__(self, errand: Errand, rank: int) -> None:
        self._socket = _connected(errand.addresses, errand.port)
        self._sending = threading.Lock()
        shake = Handshake(errand.token, "node", rank)
        self._socket.settimeout(_CONNECT_S)
        self.send(shake.answer(self.receive()))
        if not shake.accepts(self.receive()):
            raise ConnectionError("who listens at port %d is not the driver of run %s" % (errand.port, errand.run))
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    @property
    def own_address(self) -> str:
        return str(self._socket.getsockname()[0])

    def send(self, message: Message) -> None:
        with self._sending:
            self._socket.sendall(encoded(message))

    def receive(self) -> Message:
        """The next message. Raises ConnectionError at the end."""
        return received(self._socket, _MOST)

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()


def _connected(addresses: Sequence[str], port: int) -> socket.socket:
    said = []
    for address in addresses:
        try:
            return socket.create_connection((address, port), _CONNECT_S)
        except OSError as error:
            said.append("%s port %d: %s" % (address, port, error))
    raise ConnectionError("jobsdk: the driver cannot be reached from %s: %s" % (socket.gethostname(), "; ".join(said)))


def hold(errand: Errand, context: Any) -> int:
    """Hold the node whose rank is the partition's number, to its end; its bootstrap's exit code."""
    rank = int(context.partitionId())
    line = Line(errand, rank)
    try:
        held = HeldNode(errand.run, errand.files, errand.foreign)
        try:
            return _lead(held, line, rank, errand, context)
        finally:
            held.close()
    except OSError as error:
        line.send({"type": "failed", "words": "%s: %s" % (socket.gethostname(), error)})
        raise
    finally:
        line.close()


def _lead(held: HeldNode, line: Line, rank: int, errand: Errand, context: Any) -> int:
    gpus = _gpus(context, errand.gpu_resource)
    offer = held.offer(*_addresses(context, rank, line))
    line.send({"type": "offer", "host": offer.host, "addresses": offer.addresses, "ports": offer.ports, "gpus": gpus,
               "cpus": int(context.cpus()), "python": platform.python_version()})  # fmt: skip
    word = line.receive()
    if word["type"] != "go":
        raise RuntimeError("jobsdk: %s" % word.get("words"))
    variables = dict(word["variables"], **gpu_mask(word["gpus"]))
    _keep_python_path(variables)
    plan = word.get("plan")
    held.start(
        rank, Offer(*word["first"]), word["hosts"], variables, None if plan is None else json.dumps(plan).encode()
    )
    over = threading.Event()
    threading.Thread(target=_listen, args=(held, line, over), name="jobsdk-line", daemon=True).start()
    while True:
        lines = held.lines(1.0)
        for batch in _batches(lines):
            line.send({"type": "lines", "lines": batch})
        if held.code is not None and not lines:
            break
    for chunk in held.leavings():
        line.send({"type": "left", "data": base64.b64encode(chunk).decode()})
    line.send({"type": "ended", "code": held.code})
    over.wait()
    return int(held.code)


def _listen(held: HeldNode, line: Line, over: threading.Event) -> None:
    """Pass on what the driver asks of the node. Without a driver there is no run."""
    try:
        while True:
            word = line.receive()
            if word["type"] == "ask":
                held.ask(word["request"])
            elif word["type"] == "bye":
                break
    except (OSError, ValueError):
        held.close()
    over.set()


def _batches(lines: Iterable[bytes]) -> Iterator[List[str]]:
    """Lines as JSON can hold them, some at a time."""
    batch: List[str] = []
    size = 0
    for one in lines:
        batch.append(one.decode("utf-8", "surrogateescape"))
        size += len(one)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _addresses(context: Any, rank: int, line: Line) -> List[str]:
    """By which the other nodes may reach this one: as Spark knows its executor, and as it speaks to the driver."""
    given = str(context.getTaskInfos()[rank].address)
    host = given.rpartition(":")[0] or given
    known = [host.strip("[]"), line.own_address]
    return list(dict.fromkeys(one for one in known if one))


def _gpus(context: Any, resource: str) -> Optional[List[str]]:
    found = context.resources().get(resource)
    return None if found is None else [str(one) for one in found.addresses]


def _keep_python_path(variables: Dict[str, str]) -> None:
    """What was added to the session by addPyFile is on the path of this process only; ranks are to find it, too."""
    from pyspark import SparkFiles

    root = SparkFiles.getRootDirectory()  # "." on an executor
    added = [os.path.abspath(entry) for entry in sys.path if entry == root or entry.startswith(root + os.sep)]
    given = os.environ.get("PYTHONPATH", "")
    if added:
        variables["PYTHONPATH"] = os.pathsep.join(added + ([given] if given else []))


def of_partition(errand: Errand) -> Callable[[Iterable[Any]], Iterator[int]]:
    """The function for `RDDBarrier.mapPartitions`."""

    def run(_: Iterable[Any]) -> Iterator[int]:
        from pyspark import BarrierTaskContext

        return iter([hold(errand, BarrierTaskContext.get())])

    return run


def of_batches(errand: Errand) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function for `DataFrame.mapInArrow`; it gives no rows."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        hold(errand, BarrierTaskContext.get())
        return iter(())

    return run


def of_question(question: Question) -> Callable[[Any], str]:
    """The function that answers it in any task, as JSON."""

    def run(_: Any) -> str:
        from pyspark import TaskContext

        trouble = ""
        try:
            _connected(question.addresses, question.port).close()
        except OSError as error:
            trouble = str(error)
        context = TaskContext.get()
        return json.dumps({
            "python": platform.python_version(), "executable": sys.executable, "host": socket.gethostname(),
            "gpus": _gpus(context, question.gpu_resource) if context is not None else None, "trouble": trouble,
        })  # fmt: skip

    return run


def of_question_batches(question: Question) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The same for `DataFrame.mapInArrow`, as one row."""
    answer = of_question(question)

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow

        for _ in batches:
            pass
        return iter([pyarrow.RecordBatch.from_pydict({"said": [answer(None)]})])

    return run

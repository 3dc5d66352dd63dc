"""One node of a job within a process that an engine has started: a task of Spark, an actor of Ray.

It travels by itself to where jobsdk is not installed: standard library only, Python 3.8 or later, no other module of
jobsdk. The bootstrap is a process of its own. It relays all that it writes (`bootstrap/transport/stdout_relay.py`), and
ends by itself when this process is killed.
"""

from __future__ import annotations

import collections
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from typing import Any, Deque, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

BOOTSTRAP, CODE, PARCEL = "bootstrap.pyz", "code.tar.gz", "parcel"
_PORTS = 4  # how many are offered: between the offer and the start another process may take one
_MOST = 32 << 20  # bytes of output that wait for their reader; the bootstrap's files wait for the rest
_CHUNK = 1 << 20
LEAVINGS = ("outputs", "mlruns", "mlruns-ranks")  # what the job leaves besides logs, in the run's folder
_ENDING_S = 5.0  # seconds that a bootstrap has for its last words, beside the job's grace time


class Offer(NamedTuple):
    """Where other nodes could reach this one, if it were node 0."""

    host: str
    addresses: List[str]
    ports: List[int]


class HeldNode:
    """`start` it, pass on its `lines` until `code` is known, then `close` it.

    `files` are the run's parcel by name (with `code.tar.gz` where the job has code), `foreign` what of this process's
    environment is not for the ranks: names, and beginnings of names. `before` is what the command of the bootstrap is
    given to, where something has to stand between it and this process.
    """

    def __init__(
        self,
        run: str,
        files: Mapping[str, bytes],
        foreign: Tuple[Sequence[str], Sequence[str]],
        before: Sequence[str] = (),
    ) -> None:
        self.folder = tempfile.mkdtemp(prefix="jobsdk-%s-" % run[:60])
        self.code: Optional[int] = None
        self._files = sorted(files)
        self._foreign = foreign
        self._before = before
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._lines: Deque[bytes] = collections.deque()
        self._size = 0
        self._changed = threading.Condition()
        self._grace = 0.0
        os.mkdir(os.path.join(self.folder, PARCEL))
        for name, content in files.items():
            self._write(name, content)

    def _write(self, name: str, content: bytes) -> None:
        path = os.path.join(self.folder, PARCEL, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)

    def offer(self, *addresses: str) -> Offer:
        """This node as node 0; `addresses` are those by which the engine knows this machine."""
        host = socket.gethostname()
        known = [one for one in addresses if one]
        if not known:
            try:
                known = [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
            except OSError:
                known = [host]
        sockets = [socket.socket() for _ in range(_PORTS)]
        try:
            for one in sockets:
                one.bind(("", 0))
            ports = [one.getsockname()[1] for one in sockets]
        finally:
            for one in sockets:
                one.close()
        return Offer(host, list(dict.fromkeys(known)), ports)

    def start(
        self,
        rank: int,
        first: Offer,
        hosts: Sequence[str],
        variables: Mapping[str, str],
        plan: Optional[bytes] = None,
    ) -> None:
        """Start the bootstrap as node `rank`. `first` is what node 0 offered, `hosts` are the nodes' names in order.

        `variables` come over the environment of this process; `plan`, JSON, takes the place of the parcel's.
        """
        if plan is not None:
            self._write("plan.json", plan)
        with open(os.path.join(self.folder, PARCEL, "plan.json"), "rb") as file:
            self._grace = float(json.loads(file.read())["grace_s"])
        names, beginnings = set(self._foreign[0]), tuple(self._foreign[1])
        environment = {
            name: value for name, value in os.environ.items() if name not in names and not name.startswith(beginnings)
        }
        environment.update(variables)
        path = environment.get("PATH", os.defpath)
        environment.update(
            PATH="%s:%s" % (os.path.dirname(sys.executable), path),
            JOBSDK_NODE_RANK=str(rank),
            JOBSDK_CONTROL="%s %s" % (",".join(first.addresses), ",".join(map(str, first.ports))),
            JOBSDK_HOSTS=",".join(hosts),
            JOBSDK_PARCEL=os.path.join(self.folder, PARCEL),
            JOBSDK_CODE=self._code(),
            JOBSDK_RELAY="1",
            JOBSDK_LED="1",
        )
        self._process = subprocess.Popen(
            [*self._before, *self._bootstrap("node", self.folder)], env=environment, cwd=self.folder,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, name="jobsdk-node", daemon=True).start()

    def _bootstrap(self, *verb: str) -> List[str]:
        return [sys.executable, "-S", "-E", os.path.join(self.folder, PARCEL, BOOTSTRAP), *verb]

    def _code(self) -> str:
        """What the working directory becomes: the job's code, or an empty folder."""
        if CODE in self._files:
            return os.path.join(self.folder, PARCEL, CODE)
        empty = os.path.join(self.folder, "no-code")
        os.makedirs(empty, exist_ok=True)
        return empty

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._changed.wait_for(lambda: self._size < _MOST)
                self._lines.append(line)
                self._size += len(line)
                self._changed.notify_all()
        code = self._process.wait()
        with self._changed:
            self.code = code if code >= 0 else 128 - code
            self._changed.notify_all()

    def lines(self, timeout: float) -> List[bytes]:
        """What it has written since the last time; waits at most `timeout` seconds for something, or for its end.

        All has been read when `code` is known and this is empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: bool(self._lines) or self.code is not None, timeout)
            found = list(self._lines)
            self._lines.clear()
            self._size = 0
            self._changed.notify_all()
            return found

    def ask(self, request: str) -> None:
        """Pass a request on, `cancel` or `stacks-ID`; only node 0 has an ear for them."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it has ended

    def leavings(self) -> Iterator[bytes]:
        """What the job has left besides its logs, as pieces of a tar file; nothing where it has left nothing."""
        there = [name for name in LEAVINGS if _has_files(os.path.join(self.folder, name))]
        if not there:
            return
        with tempfile.TemporaryFile() as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                for name in there:
                    archive.add(os.path.join(self.folder, name), name)
            file.seek(0)
            while True:
                chunk = file.read(_CHUNK)
                if not chunk:
                    return
                yield chunk

    def close(self) -> None:
        """End what still runs, and leave nothing behind."""
        process = self._process
        if process is not None and self.code is None:
            try:
                assert process.stdin is not None
                process.stdin.close()
            except BrokenPipeError:
                pass
            deadline = time.monotonic() + self._grace + _ENDING_S
            while self.code is None and time.monotonic() < deadline:
                self.lines(0.1)
            if self.code is None:
                os.killpg(process.pid, signal.SIGKILL)
            given = json.dumps({"run_dir": self.folder}).encode()
            subprocess.run(self._bootstrap("host", "sweep"), input=given, stdout=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def gpu_mask(gpus: Optional[Sequence[Any]]) -> Dict[str, str]:
    """The variable by which ranks see the GPUs that the engine has given, whatever their ids look like."""
    return {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}


def _has_files(folder: str) -> bool:
    return any(names for _, _, names in os.walk(folder))

"""A real cluster of Ray on loopback addresses: a head with its dashboard, and nodes with GPUs that there are not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from jobsdk.bootstrap.system import network
from tests.bootstrap.runs import wait_for

#: Ray keeps every loopback address but 127.0.0.1, in whose place it takes the machine's own.
HEAD, FIRST, SECOND, THIRD = "127.0.7.1", "127.0.7.2", "127.0.7.3", "127.0.7.4"
_NODES = {
    FIRST: ["--num-cpus=8", "--num-gpus=4", "--resources", json.dumps({"accelerator_type:A100": 1, "special": 2})],
    SECOND: ["--num-cpus=8", "--num-gpus=4"],
}


class RayCluster:
    """`address` is for ray.init(), `api` the job submission API; `environment` is what a client needs."""

    def __init__(self, folder: Path, nodes: tuple[str, ...] = (FIRST, SECOND)) -> None:
        self._tmp = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets are in it: short
        self.temporary = Path(self._tmp, "t")  # where the nodes keep temporary files
        self.temporary.mkdir()
        self.environment = {
            "RAY_TMPDIR": self._tmp,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # 15 without it, which makes ranks wait for all else on a busy machine
            "RAY_AUTH_MODE": "disabled",  # Ray reads it when it is imported, which another test may have done
        }
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "JOBSDK_"))}
        path = os.path.dirname(sys.executable) + os.pathsep + self._environ["PATH"]  # where a job finds `python`
        # A node whose process is gone is found in 2.5 s instead of 15; one that only stands still has as long as ever.
        self._environ.update(self.environment, PATH=path, TMPDIR=str(self.temporary), RAY_health_check_period_ms="500")
        self._folder = folder
        port, dashboard, client = network.free_ports(3, HEAD)
        self.address, self.api = f"{HEAD}:{port}", f"http://{HEAD}:{dashboard}"
        self.client = f"ray://{HEAD}:{client}"
        self.processes = {
            HEAD: self._start(
                HEAD, "--head", f"--port={port}", f"--dashboard-host={HEAD}", f"--dashboard-port={dashboard}",
                f"--ray-client-server-port={client}", "--num-cpus=2", "--num-gpus=0",
            )
        }  # fmt: skip
        try:
            wait_for(lambda: _is_open(HEAD, port) and _is_open(HEAD, dashboard))
            for node in nodes:
                self.add(node, *_NODES[node])
            for node in nodes:
                self.await_node(node)
        except BaseException:
            self.close()
            raise

    def add(self, node: str, *resources: str, **variables: str) -> None:
        """Start a node, with further variables in its environment."""
        self.processes[node] = self._start(node, f"--address={self.address}", *resources, variables=variables)

    def await_node(self, node: str) -> None:
        def is_up() -> bool:
            log = (self._folder / f"{node}.log").read_text()
            assert self.processes[node].poll() is None, log
            return "Ray runtime started" in log

        wait_for(is_up)

    def _start(self, node: str, *arguments: str, variables: Mapping[str, str] = {}) -> subprocess.Popen[bytes]:
        ray = os.path.join(os.path.dirname(sys.executable), "ray")
        argv = [ray, "start", "--block", f"--node-ip-address={node}", "--object-store-memory=100000000"]
        argv += ["--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"]
        argv += [f"--temp-dir={self._tmp}/{node.rpartition('.')[2]}", *arguments]
        with open(self._folder / f"{node}.log", "wb") as log:
            return subprocess.Popen(
                argv, env={**self._environ, **variables}, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, node: str) -> None:
        """End a node as a machine that fails does."""
        os.killpg(self.processes.pop(node).pid, signal.SIGKILL)

    def close(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        shutil.rmtree(self._tmp, ignore_errors=True)


def _is_open(host: str, port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex((host, port)) == 0

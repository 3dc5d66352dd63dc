"""One bootstrap on each of several hosts, each with a run folder of its own at a path of its own: as on a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from jobsdk.bootstrap.archive import build
from tests.bootstrap.namespaces import Hosts
from tests.bootstrap.runs import events_in, processes_of

PORT = 7000
TOKEN = "ab" * 32


class ClusterRun:
    """A job started on hosts 0, 1, ...; `folders` are the nodes' run folders."""

    def __init__(self, hosts: Hosts, folder: Path, the_plan: dict[str, Any], **env: str) -> None:
        self.folders = [folder / f"of-h{node}" / f"run-{node}" for node in range(the_plan["nodes"])]
        control = f"{hosts.address(0)} {PORT}"
        self.nodes = []
        for node, run_dir in enumerate(self.folders):
            (run_dir / "logs").mkdir(parents=True)
            (run_dir / "work").mkdir()
            (run_dir / "plan.json").write_text(json.dumps(the_plan))
            (run_dir / "bootstrap.pyz").write_bytes(build())
            own = {"JOBSDK_NODE_RANK": str(node), "JOBSDK_CONTROL": control, "JOBSDK_TOKEN": TOKEN}
            argv = hosts.argv(node, [sys.executable, f"{run_dir}/bootstrap.pyz", "node", str(run_dir)])
            environ = {**os.environ, **env, **own, "JOBSDK_RUN_DIR": str(run_dir)}
            self.nodes.append(
                subprocess.Popen(argv, env=environ, cwd=run_dir / "work", stderr=subprocess.PIPE, text=True)
            )

    def wait(self) -> list[int]:
        """Every node's exit code; nothing of the job may be left then."""
        codes = [node.wait(timeout=200) for node in self.nodes]
        left = [pid for folder in self.folders for pid in processes_of(folder)]
        assert left == []
        return codes

    def report(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folders[0] / "report.json").read_text())
        return content

    def log(self, node: int, rank: int) -> str:
        return (self.folders[node] / f"logs/node-{node}/rank-{rank}.log").read_text()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in events_in(self.folders[0]) if event["event"] == kind]

    def child_of(self, node: int) -> int:
        """The process that a node's bootstrap has started."""
        pid = self.nodes[node].pid
        (child,) = (int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return child

    def kill_host(self, node: int) -> None:
        """All that runs there, the bootstrap first, as when the machine loses its power."""
        self.nodes[node].kill()
        while left := processes_of(self.folders[node]):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        for node in self.nodes:
            if node.poll() is None:
                node.terminate()
                node.wait(timeout=120)

"""Azure ML's part played for a job with the launcher `bootstrap`, on this machine and without any service.

For each node a process that has the variables which Azure ML documents, a copy of the code folder of its own, and the
job's command with `${{...}}` replaced, run by a shell. Its output is the file that Azure ML keeps for it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobsdk.bootstrap.distributions.contract import IDENTITY
from jobsdk.compute.azureml import translation
from jobsdk.compute.shipping import parcel
from jobsdk.compute.shipping.relayed import Mirror
from jobsdk.job.command import CommandJob
from jobsdk.job.io import Input
from jobsdk.planning.plan import whole_plan
from jobsdk.planning.secrets import complete, seal
from jobsdk.runs.folder import RunFolder

TOKEN = "ab" * 32
_LEFTOVERS = (*IDENTITY, "MASTER_ADDR", "MASTER_PORT", "NODE_COUNT")


def variables(nodes: int, node: int, run: str, hosts: list[str] | None = None) -> dict[str, str]:
    """What Azure ML sets in the one process of a node of a job of its type pytorch."""
    hosts = hosts or ["127.0.0.1"] * nodes
    found = {
        "AZUREML_RUN_ID": run,
        "AZUREML_ROOT_RUN_ID": run,
        "AZUREML_EXPERIMENT_ID": "00000000-0000-0000-0000-000000000000",
        "AZUREML_NODE_COUNT": str(nodes),
        "AZUREML_CR_NODE_RANK": str(node),
        "AZUREML_PROCESS_NAME": f"rank_{node}" if nodes > 1 else "main",
        "AZ_BATCH_HOST_LIST": ",".join(hosts),
        "AZ_BATCH_NODE_LIST": ";".join(hosts),
        "AZ_BATCHAI_TASK_INDEX": str(node),
        "AZUREML_RUN_TOKEN": "eyJhbGciOiJSUzI1NiJ9.eyJyb2xlIjoiQ29udHJpYnV0b3IifQ.c2lnbmF0dXJl",
    }
    if nodes > 1:
        found.update(
            {
                "AZ_BATCH_MASTER_NODE": f"{hosts[0]}:6000",
                "AZ_BATCH_IS_CURRENT_NODE_MASTER": str(node == 0).lower(),
                "MASTER_ADDR": hosts[0],
                "MASTER_PORT": "6105",
                "WORLD_SIZE": str(nodes),
                "NODE_RANK": str(node),
                "RANK": str(node),
                "LOCAL_RANK": "0",
            }
        )
    return found


class Played:
    """A job that runs as Azure ML would run it. `inside` is put before a node's command: into a network of its own."""

    def __init__(
        self,
        job: CommandJob,
        folder: Path,
        settings: Mapping[str, Any] | None = None,
        hosts: list[str] | None = None,
        inside: Any = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        settings = settings or {"launcher": "bootstrap"}
        # The ports follow from the name: two of one name must not run on a machine at once.
        self.run = RunFolder.create(job.name or f"played-{os.getpid()}")
        plan, taken = seal(whole_plan(job, name=self.run.name), job)
        self.run.write_json("plan.json", plan)
        parts = complete(taken, plan["secrets"], environ or {})
        self.native = translation.native_job(job, plan, settings)
        whole = {**plan, **{key: {**plan[key], **part} if isinstance(part, dict) and key in plan else part
                            for key, part in parts.items()}}  # fmt: skip
        self.sent = translation.completed(self.native, whole, TOKEN)
        self.folder = folder
        nodes = plan["nodes"]
        self.nodes = []
        for node in range(nodes):
            code = self._code(job, node)
            known = {key: value for key, value in os.environ.items() if key not in _LEFTOVERS}
            environment = {**known, **self.sent.environment_variables, **variables(nodes, node, self.run.name, hosts)}
            argv = ["sh", "-c", self._command(node)]
            with open(self.log(node), "wb") as log:
                self.nodes.append(
                    subprocess.Popen(
                        inside(node, argv) if inside else argv,
                        env=environment, cwd=code, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    )
                )  # fmt: skip

    def log(self, node: int) -> Path:
        return self.folder / f"std_log_process_{node}.txt"

    def code(self, node: int) -> Path:
        return self.folder / f"node-{node}/code"

    def output(self, node: int, name: str) -> Path:
        return self.folder / f"node-{node}/outputs/{name}"

    def wait(self) -> list[int]:
        """The exit codes of the nodes' commands."""
        return [node.wait(timeout=300) for node in self.nodes]

    def mirror(self) -> Mirror:
        """What the nodes have written so far, brought into the run's folder."""
        mirror = Mirror(self.run)
        for node in range(len(self.nodes)):
            for line in self.log(node).read_bytes().splitlines(keepends=True):
                mirror.take(node, line)
        mirror.tell()
        return mirror

    def end(self) -> None:
        for node in self.nodes:
            if node.poll() is None:
                node.terminate()
                node.wait(timeout=60)

    def _code(self, job: CommandJob, node: int) -> Path:
        folder = self.code(node)
        if job.code is not None:
            shutil.copytree(job.resolve(job.code), folder)
        path = folder / translation.BOOTSTRAP_FILE
        path.parent.mkdir(parents=True)
        path.write_bytes(parcel.bootstrap())
        return folder

    def _command(self, node: int) -> str:
        """With the values and paths that Azure ML puts in; outputs are folders of the node's own."""

        def value(found: re.Match[str]) -> str:
            part, name = found.groups()
            if part == "outputs":
                path = self.output(node, name)
                path.mkdir(parents=True, exist_ok=True)
                return str(path)
            given = self.sent.inputs[name]
            return str(self.sent.resolve(given.path or "")) if isinstance(given, Input) else str(given)

        return re.sub(r"\$\{\{(inputs|outputs)\.(\w+)\}\}", value, self.sent.command or "")

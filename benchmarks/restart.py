"""From the death of a rank to the first optimizer step of the next attempt."""

from __future__ import annotations

import functools
from pathlib import Path

from benchmarks import harness, launchers
from benchmarks.harness import Figures, Table

SCRIPT = harness.PROGRAMS / "restart.py"
RANKS = 4
MODULES = "torch,torch._dynamo"
#: torchrun gives the ranks of all attempts one store, in which those of the second find addresses of the first: with
#: torch 2.13, gloo and --standalone no restart succeeds without this.
_OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def _restart(command: launchers.Command, ranks: int, env: dict[str, str]) -> Figures:
    with harness.scratch() as folder:
        with harness.Job(command, folder=folder, env={"BENCHMARK_FOLDER": str(folder), **env}) as job:
            usage = job.wait()
        clocks = [float(clock.read_text()) for clock in folder.glob("clock-*")]
        failed_at = float((folder / "failed").read_text())
    if len(clocks) != ranks:
        raise RuntimeError(f"{len(clocks)} of {ranks} ranks took their step: {command}")
    return {"next step of all ranks": max(clocks) - failed_at, "CPU of the whole job": usage.cpu}


def _ft_launcher(ranks: int, script: Path) -> launchers.Command:
    meeting = [f"--rdzv-endpoint=127.0.0.1:{launchers.free_port()}", "--rdzv-backend=c10d", "--nnodes=1"]
    return [str(launchers.find("ft_launcher")), *meeting, f"--nproc-per-node={ranks}", "--max-restarts=3", str(script)]


def measure(quick: bool) -> Table:
    ranks = 2 if quick else RANKS
    restarts = ["--max-restarts", "3"]
    commands = {
        f"jobsdk run --preload {MODULES}": launchers.jobsdk(ranks, SCRIPT, options=["--preload", MODULES, *restarts]),
        "jobsdk run": launchers.jobsdk(ranks, SCRIPT, options=restarts),
    }
    contenders = {name: functools.partial(_restart, command, ranks, {}) for name, command in commands.items()}
    if launchers.find("torchrun"):
        command = launchers.torchrun(ranks, SCRIPT, options=["--max-restarts=3"])
        contenders["torchrun"] = functools.partial(_restart, command, ranks, _OWN_STORE)
    if launchers.find("ft_launcher"):
        command = _ft_launcher(ranks, SCRIPT)
        contenders["ft_launcher"] = functools.partial(_restart, command, ranks, _OWN_STORE)
    medians = harness.rounds(contenders, 1 if quick else 5)
    return Table(
        f"From a rank's death to the next optimizer step, {ranks} ranks",
        "The last rank of a DistributedDataParallel training (gloo) kills itself with SIGKILL. The clock stops when "
        "all ranks of the next attempt have taken an optimizer step. `ft_launcher` is that of nvidia-resiliency-ext. "
        "torchrun and ft_launcher run with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: with torch 2.13 and gloo, "
        "torchrun's second attempt otherwise meets at addresses of the first, and fails.",
        "What a failure costs beside the work since the last checkpoint. With `--preload`, the process that imported "
        "the modules stays and forks the ranks of the next attempt. 0.2 s of it jobsdk waits for failures that caused "
        "the first one.",
        harness.by_figure(medians, {"next step of all ranks": "s", "CPU of the whole job": "s"}),
    )

"""What people who know torchrun, srun or az type by habit: other spellings, options without effect, and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from jobsdk.cli.output import warn

#: torchrun's names of the options of `jobsdk run`. It takes each with dashes and with underscores.
_TORCHRUN = {"nnodes": "nodes", "nproc-per-node": "processes", "module": "m"}

#: torchrun's options that need no counterpart, and why; "" where nothing differs.
_NEEDLESS = {
    "--standalone": "",
    "--rdzv-backend": "the nodes find each other by themselves",
    "--rdzv-endpoint": "the nodes find each other by themselves",
    "--rdzv-id": "every run has an id of its own",
    "--master-addr": "node 0 gives its own address",
    "--log-dir": "each rank has a log in the run's folder: jobsdk job show NAME",
    "--tee": "all ranks are logged and shown",
    "--redirects": "all ranks are logged and shown",
    "--monitor-interval": "the end of a rank is seen at once",
    "--start-method": "each rank is a process of its own",
}
_FLAGS = ("--standalone",)

#: Options that jobsdk does not have, and what to write instead.
ANSWERS: Mapping[str, str] = {
    "--gpus": "every process sees all GPUs of its node; write --processes N to start one process for each of N GPUs",
    "--gpus-per-node": "write --processes N to start one process for each of N GPUs",
    "--ntasks": "write --processes N for N processes on each node",
    "--ntasks-per-node": "write --processes N",
    "--num-processes": "write --processes N, the number on each node",
    "--num-machines": "write --nodes N",
    "--node-rank": "one command starts all nodes: write --nodes N once, without --node-rank",
    "--rdzv-conf": "write --set limits.rendezvous_timeout=900 for the timeout",
    "--local-ranks-filter": "write jobsdk job stream NAME --rank 0 to see one rank",
    "-g": "the workspace is in the compute's settings: write --compute NAME, see jobsdk compute list",
    "-w": "the workspace is in the compute's settings: write --compute NAME, see jobsdk compute list",
    "-v": "write --version to see the version; what a run does is shown without a switch",
    "--web": "jobsdk ui opens the page of all runs; job show NAME has the studio_url of a run on Azure ML",
}
#: Commands of other tools, and what to write instead.
COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("torchrun", "srun", "launch", "python"), "jobsdk run -n 2 train.py"),
    **dict.fromkeys(("mpirun", "mpiexec"), "jobsdk run --distribution mpi -n 2 -- python train.py"),
    "deepspeed": "jobsdk run --distribution deepspeed -n 2 train.py",
    **dict.fromkeys(("submit", "sbatch", "apply"), "jobsdk job create job.yml --compute NAME"),
    **dict.fromkeys(("squeue", "sacct", "ls", "ps", "queue"), "jobsdk job list"),
    **dict.fromkeys(("status", "get", "describe", "info"), "jobsdk job show NAME"),
    **dict.fromkeys(("scancel", "stop", "kill"), "jobsdk job cancel NAME"),
    **dict.fromkeys(("tail", "attach"), "jobsdk job stream NAME"),
    **dict.fromkeys(("remove", "rm"), "jobsdk job delete NAME"),
    "sinfo": "jobsdk compute check NAME",
    "ml": "jobsdk job",
    "version": "jobsdk --version",
}
#: What people call the distributions.
_DISTRIBUTIONS = {
    **dict.fromkeys(("torch", "ddp", "nccl", "gloo", "fsdp"), "pytorch"),
    **dict.fromkeys(("tf", "keras"), "tensorflow"),
    **dict.fromkeys(("horovod", "openmpi", "mpich", "intelmpi", "mpirun"), "mpi"),
    "zero": "deepspeed",
}
_SAME = {"--resource-group": "-g", "--workspace-name": "-w", "--subscription": "-g"}


def spelled(token: str) -> str:
    """The name that `jobsdk run` has for an option of torchrun's."""
    token = token.replace("_", "-")
    return _TORCHRUN.get(token, token)


def answer(option: str) -> str:
    """What to write instead of an option that jobsdk does not have; "" for an option of no other tool."""
    option = option.replace("_", "-")
    return ANSWERS.get(_SAME.get(option, option), "")


def needless_options(function: Any) -> Any:
    """Take torchrun's options that have nothing to do here; a warning says why."""
    for name in _NEEDLESS:
        function = click.option(
            name, hidden=True, is_flag=name in _FLAGS, expose_value=False, callback=_warn_of_needless
        )(function)
    return function


def _warn_of_needless(_: click.Context, option: click.Parameter, value: object) -> None:
    why = _NEEDLESS[option.opts[0]]
    if value and why:
        warn(f"{option.opts[0]} has no effect: {why}")


class Nodes(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of nodes; torchrun's range `2:2` if it leaves no choice."""

    name = "INTEGER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        least, _, most = str(value).partition(":")
        if not all(part.isdecimal() and int(part) for part in (least, most or least)):
            self.fail(f"{value!r} is not a number of nodes. Fix: --nodes 2", param, ctx)
        if most not in ("", least):
            self.fail(f"a run keeps its number of nodes, so {value} is not possible. Fix: --nodes {most}", param, ctx)
        return int(least)


class DistributionName(click.Choice):  # type: ignore[type-arg,unused-ignore]
    """A type of distribution."""

    def __init__(self) -> None:
        super().__init__(["pytorch", "tensorflow", "mpi", "deepspeed"], case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        meant = _DISTRIBUTIONS.get(str(value).lower())
        if meant is not None:
            self.fail(f"{value!r} is not a distribution. Fix: --distribution {meant}", param, ctx)
        return super().convert(value, param, ctx)


class Processes(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of processes on each node, or torchrun's `gpu`, `cpu` and `auto`."""

    name = "INTEGER"
    WORDS = ("gpu", "cpu", "auto")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        word = str(value).lower()
        if word not in self.WORDS and not (word.isdecimal() and int(word)):
            self.fail(f"{value!r} is not a number of processes. Fix: --processes 2, or gpu, cpu or auto", param, ctx)
        return word if word in self.WORDS else int(word)


def processes_here(word: str, environment: Mapping[str, str]) -> int:
    """How many processes `gpu`, `cpu` or `auto` are on this machine. Raises UsageError for GPUs that are not there."""
    from jobsdk.bootstrap.system import processes

    gpus = len(processes.visible_gpus(environment) or [])
    if word == "gpu" and not gpus:
        raise click.UsageError("--processes gpu: no GPU is visible on this machine. Fix: --processes 1")
    return gpus if gpus and word != "cpu" else processes.cores()

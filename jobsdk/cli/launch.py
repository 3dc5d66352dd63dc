"""`jobsdk run`: a command here, as the processes of one job."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

from jobsdk.cli import habits
from jobsdk.cli.options import compute_option, hang_timeout_option, set_option
from jobsdk.cli.output import warn

if TYPE_CHECKING:
    from jobsdk.client.run import Run

#: Processes for each core of this machine that are started without a question.
_MANY = 32


@click.command(context_settings={"allow_interspersed_args": False, "token_normalize_func": habits.spelled})
@click.option(
    "--nodes",
    type=habits.Nodes(),
    default=1,
    show_default=True,
    help="Number of nodes. On local, they are simulated on this machine.",
)
@click.option(
    "-n",
    "--processes",
    type=habits.Processes(),
    help="Processes on each node: a number, gpu, cpu or auto.  [default: 1]",
)
@click.option("-m", "is_module", is_flag=True, help="Run a Python module: -m package.module.")
@click.option(
    "--distribution",
    type=habits.DistributionName(),
    default="pytorch",
    show_default=True,
    help="How the processes find each other.",
)
@click.option(
    "--preload",
    metavar="MODULES",
    help="Comma-separated modules that each node imports once before it forks its processes.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Maximum number of restarts after a failure.",
)
@hang_timeout_option()
@compute_option()
@click.option("--name", help="Name of the run.  [default: generated]")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Environment variable of the processes. Without a value, yours is used.",
)
@set_option()
@click.option("--master-port", type=click.IntRange(1, 65535), hidden=True)
@click.option("--node-rank", hidden=True)
@click.option("--no-python", is_flag=True, hidden=True)
@habits.needless_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    nodes: int,
    processes: int | str | None,
    is_module: bool,
    distribution: str,
    preload: str | None,
    max_restarts: int,
    hang_timeout: float | None,
    compute: str | None,
    name: str | None,
    env: tuple[str, ...],
    settings: tuple[dict[str, Any], ...],
    master_port: int | None,
    node_rank: str | None,
    no_python: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND in this folder as a distributed job, show its output, and exit with its exit code.

    The code is used in place where the compute sees this folder (local, Slurm
    without a login node); elsewhere a copy of it is sent. Python runs a file
    named .py. Examples:

    \b
        jobsdk run --processes 4 train.py --epochs 3
        jobsdk run --nodes 2 -m package.module
        jobsdk run --distribution mpi --processes 4 -- ./solver --steps 100
    """
    from jobsdk.job.paths import working_directory

    if command[0].endswith((".yml", ".yaml")):
        context.fail(f"{command[0]} is not a command: did you mean 'jobsdk job create -f {command[0]}'?")
    if len(command) == 1 and " " in command[0] and not os.path.exists(command[0]) and not shutil.which(command[0]):
        context.fail(f"{command[0]!r} is one word. Fix: leave out the quotes, or write bash -c {command[0]!r}")
    is_bare = "/" not in command[0] and not command[0].endswith(".py")
    if is_bare and os.path.isfile(command[0]) and shutil.which(command[0]) is None:
        context.fail(f"{command[0]} is a file, but not on PATH. Fix: bash {command[0]}, or ./{command[0]}")
    if node_rank is not None and (nodes > 1 or node_rank != "0"):
        context.fail(f"--node-rank: {habits.answer('--node-rank')}.")
    if isinstance(processes, str):
        processes = _counted(context, processes, compute)
    _ask_if_many(nodes * (processes or 1), compute)
    variables = dict(_variable(context, one) for one in env)
    if master_port is not None:
        variables["MASTER_PORT"] = str(master_port)
    ahead = _start_ahead() if compute in (None, "local") and name is None else None
    fields: dict[str, Any] = {
        "command": shlex.join(command if no_python else _with_python(command, is_module)),
        "code": working_directory(),
        "distribution": {"type": distribution},
        "resources": {"instance_count": nodes},
    }
    if processes is not None:
        if distribution == "tensorflow":
            raise click.UsageError("TensorFlow runs one worker on each node: use --nodes.", context)
        fields["distribution"]["process_count_per_instance"] = processes
    if name is not None:
        fields["name"] = name
    if variables:
        fields["environment_variables"] = variables
    if max_restarts:
        fields["max_restarts"] = max_restarts
    if hang_timeout is not None:
        fields["limits"] = {"hang_timeout": hang_timeout}
    if preload is not None:
        fields["preload"] = [module.strip() for module in preload.split(",")]
    if settings:
        from jobsdk.job.yaml_file import load_job

        job = load_job(fields, settings)
    else:
        from jobsdk.job.command import CommandJob

        job = CommandJob(**fields)
    from jobsdk import compute as computes
    from jobsdk.cli.streaming import own
    from jobsdk.client.operations import JobOperations

    operations, name = JobOperations(), job.name or ahead

    def submit() -> Run:
        in_place = computes.resolve(compute or job.compute).can_run_in_place
        return operations.create_or_update(job, name=name, compute=compute, in_place=in_place, warn=_warn)

    context.exit(own(submit))


def _warn(text: str) -> None:
    """A warning in the words of the command line."""
    warn(re.sub(r"(?:write|add) distribution=\{'type': '(\w+)'\}", r"add --distribution \1", text))


def _with_python(command: tuple[str, ...], is_module: bool) -> tuple[str, ...]:
    """The command, after `python` where it is a module, or a .py file that is not a program by itself."""
    if is_module:
        return ("python", "-m", *command)
    if command[0].endswith(".py") and shutil.which(command[0]) is None:
        return ("python", *command)
    return command


def _variable(context: click.Context, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals and name not in os.environ:
        context.fail(f"--env {name}: it is not set here. Fix: --env {name}=VALUE")
    return name, value if equals else os.environ[name]


def _counted(context: click.Context, word: str, compute: str | None) -> int:
    """How many processes `gpu`, `cpu` or `auto` stands for; known where this machine runs them."""
    from jobsdk import compute as computes
    from jobsdk.compute.local import LocalCompute

    chosen = computes.resolve(compute)
    if not isinstance(chosen, LocalCompute):
        context.fail(f"--processes {word} counts this machine's, not those of {chosen.name}. Fix: --processes 8")
    return habits.processes_here(word, os.environ)


def _ask_if_many(processes: int, compute: str | None) -> None:
    """Far more processes than this machine can run at once are most often a slip of the hand: ask on a terminal."""
    from jobsdk.bootstrap.system.processes import cores

    if compute not in (None, "local") or processes <= _MANY * cores():
        return
    text = f"{processes} processes on {cores()} cores"
    if sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm(f"Start {text}?", abort=True, err=True)
    else:
        warn(text)


def _start_ahead() -> str:
    """Start what will supervise the run while its job is made and judged; the run's name."""
    from jobsdk.compute import supervisor
    from jobsdk.compute.environ import for_ranks
    from jobsdk.home import runs_folder
    from jobsdk.runs.names import generate_name

    name = generate_name()
    supervisor.start_ahead(str(runs_folder() / name), for_ranks(os.environ))
    return name


def takes(option: str) -> bool:
    """Whether `jobsdk run` takes or answers this option, in torchrun's spelling too."""
    name = option.replace("_", "-")
    known = {one for parameter in run.params for one in parameter.opts}
    return name in known or f"--{habits.spelled(name.lstrip('-'))}" in known

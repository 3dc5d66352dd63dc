"""`jobsdk run`: what a torchrun user types."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from jobsdk.cli.options import compute_option, hang_timeout_option, set_option
from jobsdk.cli.output import warn

if TYPE_CHECKING:
    from jobsdk.client.run import Run

#: What torchrun calls the same; not shown in the help.
_TORCHRUN = {
    "nnodes": "nodes", "nproc_per_node": "processes", "nproc-per-node": "processes", "max_restarts": "max-restarts",
}  # fmt: skip


@click.command(
    context_settings={
        "allow_interspersed_args": False,
        "token_normalize_func": lambda token: _TORCHRUN.get(token, token),
    }
)
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes; on local, of this machine.")
@click.option("--processes", type=click.IntRange(1), help="Processes on each node.  [default: 1]")
@click.option(
    "--distribution",
    type=click.Choice(["pytorch", "tensorflow", "mpi", "deepspeed"], case_sensitive=False),
    default="pytorch",
    show_default=True,
    help="How the processes find each other.",
)
@click.option(
    "--preload",
    metavar="MODULES",
    help="Modules, with commas between, that each node imports once; the processes are forked from there.",
)
@click.option(
    "--max-restarts", type=click.IntRange(0), default=0, show_default=True, help="Starts after a failure, at most."
)
@hang_timeout_option()
@compute_option()
@set_option()
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    nodes: int,
    processes: int | None,
    distribution: str,
    preload: str | None,
    max_restarts: int,
    hang_timeout: float | None,
    compute: str | None,
    settings: tuple[dict[str, Any], ...],
    command: tuple[str, ...],
) -> None:
    """Run COMMAND in this folder as the processes of one job, show what they write, and exit with the job's code.

    The code is used in place where the compute sees this folder (local, Slurm
    without a login node); elsewhere a copy of it is sent. An example:

        jobsdk run --nodes 2 --processes 4 -- python train.py --epochs 3
    """
    from jobsdk.job.paths import working_directory

    if command[0].endswith((".yml", ".yaml")):
        context.fail(f"{command[0]} is no command: did you mean 'jobsdk job create -f {command[0]}'?")
    name = _start_ahead() if compute in (None, "local") else None
    fields: dict[str, Any] = {
        "command": shlex.join(command),
        "code": working_directory(),
        "distribution": {"type": distribution},
        "resources": {"instance_count": nodes},
    }
    if processes is not None:
        if distribution == "tensorflow":
            raise click.UsageError("TensorFlow runs one worker on each node: use --nodes.", context)
        fields["distribution"]["process_count_per_instance"] = processes
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

    operations, name = JobOperations(), job.name or name

    def submit() -> Run:
        in_place = computes.resolve(compute or job.compute).can_run_in_place
        return operations.create_or_update(job, name=name, compute=compute, in_place=in_place, warn=warn)

    context.exit(own(submit))


def _start_ahead() -> str:
    """Start what will supervise the run while its job is made and judged; the run's name."""
    import os

    from jobsdk.compute import supervisor
    from jobsdk.compute.environ import for_ranks
    from jobsdk.home import runs_folder
    from jobsdk.runs.names import generate_name

    name = generate_name()
    supervisor.start_ahead(str(runs_folder() / name), for_ranks(os.environ))
    return name

"""`jobsdk job stacks`: where all ranks of a run are."""

from __future__ import annotations

from collections.abc import Iterator
from os.path import basename
from typing import Any

import click

from jobsdk.cli.options import run_name
from jobsdk.cli.output import output_option, show
from jobsdk.client.operations import JobOperations

_FRAMES = 8  # of a thread that are shown; JSON has more


@click.command()
@run_name
@output_option("table", "json")
def stacks(name: str, form: str) -> None:
    """Show the Python stacks of every rank of a run. The run continues undisturbed."""
    from jobsdk.runs.supervisor import NoStacks

    run = JobOperations().get(name)
    try:
        answer = run.stacks()
    except NoStacks:
        kept = run.report.get("stacks")  # from before a run that hung, or took too long, was stopped
        if not kept:
            raise
        answer = {"time": None, "groups": kept, "ranks": {}, "nodes_missing": []}
    if form != "table":
        show(answer, form)
        return
    if not answer["groups"]:
        click.echo(f"no rank of run {run.name} runs now")
    for line in answer["groups"]:
        click.echo(line)
    for rank, processes in sorted(answer["ranks"].items(), key=lambda item: int(item[0])):
        click.echo(f"\nrank {rank}")
        for process in processes:
            for line in _process(process):
                click.echo(f"  {line}")


def _process(process: dict[str, Any]) -> Iterator[str]:
    """The process, its main thread's innermost frames, and one line for each other thread."""
    yield f"{process['pid']} {process['command']}" + (f": {process['why']}" if process["why"] else "")
    for thread in process["threads"]:
        places = [f"{function} {basename(file)}:{line}" for function, file, line in thread["frames"]]
        if not thread["main"]:
            yield f"  {thread['name']}: {places[0] if places else 'no Python code'}"
            continue
        yield from (f"  {place}" for place in places[:_FRAMES])
        if len(places) > _FRAMES:
            yield f"  ... and {len(places) - _FRAMES} more"

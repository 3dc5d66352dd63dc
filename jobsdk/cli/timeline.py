"""`jobsdk job timeline`."""

from __future__ import annotations

import click

from jobsdk.cli.options import run_name
from jobsdk.cli.output import output_option, show
from jobsdk.client.operations import JobOperations


@click.command()
@run_name
@output_option("text", "json", "yaml")
def timeline(name: str, form: str) -> None:
    """Show where a run's time went: queue, start, code, inputs, rendezvous, first line, first step, stop.

    The phases add up to the whole. Each names the node or rank that came to its end last.
    """
    from jobsdk.runs import timeline as making

    run = JobOperations().get(name)
    run.state()  # brings the events here
    found = making.of_run(run.folder)
    if form == "text":
        click.echo(making.text(found))
    else:
        show(found.to_dict(), form)

"""`jobsdk job report`."""

from __future__ import annotations

from pathlib import Path

import click

from jobsdk.cli.options import run_name
from jobsdk.client import JobOperations
from jobsdk.errors import JobsdkError


@click.command()
@run_name
@click.option(
    "--html", "file", metavar="FILE", required=True, type=click.Path(path_type=Path), help="Where to write it."
)
def report(name: str, file: Path) -> None:
    """Write a run as one HTML file: how it went, why it failed, ranks, times, metrics, ends of logs, environment.

    The file needs nothing else, and holds no secret values; it can be attached to a ticket.
    """
    from jobsdk.views.report import document

    run = JobOperations().get(name)
    run.state()  # brings logs and events here
    try:
        file.write_text(document(run), "utf-8")
    except OSError as error:
        wrong = f"the report cannot be written to {file}: {error.strerror}"
        raise JobsdkError(f"{wrong}. Fix: --html with a file in a folder that there is") from None
    click.echo(file)

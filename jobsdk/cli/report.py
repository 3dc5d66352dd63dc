"""`jobsdk job report`."""

from __future__ import annotations

from pathlib import Path

import click

from jobsdk.cli.options import run_name
from jobsdk.client.operations import JobOperations
from jobsdk.errors import JobsdkError


@click.command()
@run_name
@click.option("--html", "file", metavar="FILE", required=True, type=click.Path(path_type=Path), help="File to write.")
def report(name: str, file: Path) -> None:
    """Write a run as one HTML file: how it went, why it failed, ranks, times, metrics, ends of logs, environment.

    The file needs nothing else, so that it can be attached to a ticket. *** stands for the values of the job's secrets
    and of secret variables of the shell that it was submitted from, also where programs have printed them, and for
    what looks like a secret by its form. Values shorter than 6 characters, parts of a value, values in other encodings
    such as base64, and secrets that a program got elsewhere are not recognized: look at the logs before you pass it on.
    """
    from jobsdk.views.report import document

    run = JobOperations().get(name)
    run.state()  # brings logs and events here
    try:
        file.write_text(document(run), "utf-8")
    except OSError as error:
        wrong = f"the report cannot be written to {file}: {error.strerror}"
        raise JobsdkError(f"{wrong}. Fix: choose a path in an existing, writable folder") from None
    click.echo(file)

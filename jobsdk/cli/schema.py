"""`jobsdk schema`."""

from __future__ import annotations

import json

import click


@click.command()
def schema() -> None:
    """Print the JSON Schema of job files, for editors: `# yaml-language-server: $schema=FILE`."""
    from jobsdk.job.schema import job_schema

    click.echo(json.dumps(job_schema(), indent=2))

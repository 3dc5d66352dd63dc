"""`jobsdk job cancel | download | archive | restore | update`: the verbs that change runs or copy from them."""

from __future__ import annotations

from typing import Any

import click

from jobsdk.cli.options import Setting, run_name
from jobsdk.cli.output import output_option, say, show_record, warn
from jobsdk.client.operations import JobOperations
from jobsdk.client.run import CHANGEABLE, Run


@click.command()
@run_name
@click.option("--wait", is_flag=True, help="Wait until the run has ended.")
def cancel(name: str, wait: bool) -> None:
    """End a run: SIGTERM to all its processes, a grace time, SIGKILL. A run that has ended stays as it is."""
    run = JobOperations().cancel(name)
    if wait:
        run.wait()
    say(f"{run.name}: {run.status}")


@click.command()
@run_name
@click.option("-p", "--download-path", default=".", metavar="FOLDER", help="Where to copy to.  [default: .]")
@click.option("--output-name", metavar="OUTPUT", help="Only this named output.")
@click.option("--all", "everything", is_flag=True, help="The logs, ./outputs and all named outputs.")
def download(name: str, download_path: str, output_name: str | None, everything: bool) -> None:
    """Copy the logs and ./outputs of an ended run to FOLDER/artifacts, named outputs to FOLDER/named-outputs."""
    path = JobOperations().download(
        name, download_path=download_path, output_name=output_name, all=everything, warn=warn
    )
    click.echo(path)


@click.command()
@run_name
def archive(name: str) -> None:
    """Leave a run out of lists."""
    JobOperations().archive(name)


@click.command()
@run_name
def restore(name: str) -> None:
    """Take an archived run into lists again."""
    JobOperations().restore(name)


@click.command()
@run_name
@click.option(
    "--set",
    "settings",
    type=Setting(lambda: CHANGEABLE),
    multiple=True,
    required=True,
    help="A change: tags.team=vision, description=..., display_name=..., properties.x=...",
)
@output_option()
@click.pass_context
def update(context: click.Context, name: str, settings: tuple[dict[str, Any], ...], form: str) -> None:
    """Change a run's tags, properties, description or display name."""
    from jobsdk.cli.records import run_record

    jobs = JobOperations()
    run = jobs.get(name)
    for setting in settings:
        for path, value in setting.items():
            _change(context, run, path, value)
    show_record(run_record(jobs.create_or_update(run)), form)


def _change(context: click.Context, run: Run, path: str, value: Any) -> None:
    field, dot, key = path.partition(".")
    if field not in CHANGEABLE:
        from jobsdk.findings import nearest

        near = nearest(field, CHANGEABLE)
        hint = f"did you mean {near!r}?" if near else f"what can be changed are {', '.join(CHANGEABLE)}"
        context.fail(f"{field!r} of a run cannot be changed: {hint}")
    if field in ("tags", "properties"):
        if not dot or not key:
            context.fail(f"name one of the {field}: --set {field}.NAME=VALUE")
        getattr(run, field)[key] = None if value is None else _text(value)
    elif dot:
        context.fail(f"{field} has no parts")
    else:
        setattr(run, field, None if value is None else _text(value))


def _text(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)

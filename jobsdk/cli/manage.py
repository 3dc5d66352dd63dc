"""`jobsdk job cancel | download | archive | restore | delete | update`, `jobsdk prune`: what changes or copies runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from jobsdk.bootstrap.spec.text import bytes_text
from jobsdk.cli.options import RUNS, Seconds, Setting, run_name
from jobsdk.cli.output import output_option, say, show, show_record, show_table, warn
from jobsdk.client.operations import JobOperations
from jobsdk.client.run import CHANGEABLE, Run


@click.command()
@run_name
@click.option("--wait", is_flag=True, help="Wait until the run has ended.")
def cancel(name: str, wait: bool) -> None:
    """Cancel a run. Its processes get SIGTERM, and SIGKILL after the grace period."""
    run = JobOperations().cancel(name)
    if wait:
        run.wait()
    say(f"{run.name}: {run.status}")


_DOWNLOADS = ("artifacts", "named-outputs")


@click.command()
@run_name
@click.option("-p", "--download-path", default=".", metavar="FOLDER", help="Target folder.  [default: .]")
@click.option("--output-name", metavar="OUTPUT", help="Only this named output.")
@click.option("--all", "everything", is_flag=True, help="Download logs, ./outputs and all named outputs.")
def download(name: str, download_path: str, output_name: str | None, everything: bool) -> None:
    """Download the logs and outputs of a run that has ended.

    Logs and ./outputs go to FOLDER/artifacts, named outputs to FOLDER/named-outputs.
    """
    before = [one for one in _DOWNLOADS if Path(download_path, one).exists()]
    path = JobOperations().download(
        name, download_path=download_path, output_name=output_name, all=everything, warn=warn
    )
    for one in _DOWNLOADS:
        count = sum(len(files) for _, _, files in os.walk(path / one))
        if count:
            merged = ", with what was there before" if one in before else ""
            say(f"{one}: {count} file{'s' * (count != 1)}{merged}")
    click.echo(path)


@click.command()
@run_name
def archive(name: str) -> None:
    """Hide a run from lists."""
    JobOperations().archive(name)


@click.command()
@run_name
def restore(name: str) -> None:
    """Unarchive a run."""
    JobOperations().restore(name)


@click.command()
@click.argument("names", nargs=-1, metavar="NAME...", shell_complete=RUNS)
@click.option("-n", "--name", "more", multiple=True, hidden=True, shell_complete=RUNS)
@click.option("--force", is_flag=True, help="Also delete runs that have not ended, or whose outputs other runs use.")
@click.pass_context
def delete(context: click.Context, names: tuple[str, ...], more: tuple[str, ...], force: bool) -> None:
    """Delete runs with their logs, outputs and copies of the code on this machine."""
    if not names + more:
        context.fail("Give the names of the runs to delete.")
    for one in JobOperations().delete(*names, *more, force=force):
        say(f"{one.name}: deleted, {bytes_text(one.size)}")


@click.command()
@click.option("--older-than", type=Seconds(), help="Only runs that ended longer ago than this: 30d, 12h.")
@click.option("--keep", type=click.IntRange(0), metavar="N", help="Keep the N newest runs.")
@click.option("--failed", is_flag=True, help="Only runs that did not complete.")
@click.option("--dry-run", is_flag=True, help="Show which runs would be deleted, and delete none.")
@output_option()
def prune(older_than: float | None, keep: int | None, failed: bool, dry_run: bool, form: str) -> None:
    """Delete ended runs that match all options. Without options, apply the retention in your computes.yml.

    A run that has not ended, or whose outputs another run uses as inputs, is kept.
    """
    gone = JobOperations().prune(older_than=older_than, keep=keep, failed=failed, dry_run=dry_run)
    if form == "table":
        if gone:
            show_table(("NAME", "STATUS", "SIZE"), [(one.name, one.status, bytes_text(one.size)) for one in gone])
        runs = f"{len(gone)} run{'' if len(gone) == 1 else 's'}"
        say(f"{'would delete' if dry_run else 'deleted'} {runs}, {bytes_text(sum(one.size for one in gone))}")
    else:
        show([one._asdict() for one in gone], form)


@click.command()
@run_name
@click.option(
    "--set",
    "settings",
    type=Setting(lambda _: CHANGEABLE),
    multiple=True,
    required=True,
    help="Change: tags.team=vision, description=..., display_name=... or properties.x=...",
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
        from jobsdk.findings import meant

        hint = meant(field, CHANGEABLE, f"what can be changed are {', '.join(CHANGEABLE)}")
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

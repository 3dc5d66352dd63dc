"""Printing results (stdout) and talk (stderr)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from jobsdk.findings import Finding


def output_option(*formats: str) -> Callable[[Any], Any]:
    """`-o`; the first of the formats is the default."""
    chosen = formats or ("table", "json", "yaml")
    return click.option(
        "-o", "--output", "form", type=click.Choice(chosen), default=chosen[0], show_default=True, help="How to print."
    )


def say(text: str) -> None:
    """Talk to the user, apart from results. Where nobody can listen, that changes nothing of what is done."""
    try:
        click.echo(text, err=True)
    except OSError:
        pass


def warn(text: str) -> None:
    say(f"warning: {text}")


def say_findings(findings: Iterable[Finding]) -> None:
    """Findings one a line: they begin with `error:` or `warning:`, after their place if it is known."""
    for finding in findings:
        say(str(finding))


def show(data: Any, form: str) -> None:
    """Print plain data as JSON or YAML."""
    if form == "json":
        click.echo(json.dumps(data, indent=2, default=str))
    else:
        import yaml

        class Dumper(yaml.SafeDumper):
            """A script is shown line by line."""

        def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
            return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

        Dumper.add_representer(str, text)
        plain = json.loads(json.dumps(data, default=str))
        click.echo(yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True), nl=False)


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], dispensable: Sequence[str] = ()) -> None:
    """Print rows under their heads: with rich on a terminal, else as aligned plain text.

    On a terminal that is too narrow the `dispensable` columns are left out, the first of them first; no cell is cut.
    """
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console, shown = Console(), dict(enumerate(widths))
        for name in dispensable:
            if _table_width(shown.values()) > console.width:
                del shown[columns.index(name)]
        console.width = max(console.width, _table_width(shown.values()))  # the terminal wraps, rich would cut
        table = Table(*(columns[at] for at in shown), box=box.SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(row[at], style=_STYLES.get(row[at], "")) for at in shown))
        console.print(table)
        return
    for row in (columns, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _table_width(widths: Iterable[int]) -> int:
    return sum(width + 3 for width in widths) - 1  # two of padding and one between; the box draws blank edges


_STYLES = {"Completed": "green", "Failed": "red", "Lost": "red", "TimedOut": "red", "Running": "cyan"}


def show_record(record: Mapping[str, Any], form: str) -> None:
    """Print one record: a line for each field, or as JSON or YAML."""
    if form != "table":
        show(record, form)
        return
    width = max(map(len, record))
    for key, value in record.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{name}={content}" for name, content in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        if value not in (None, ""):
            lines = ("\n" + " " * (width + 2)).join(str(value).strip("\n").split("\n"))
            click.echo(f"{key.ljust(width)}  {lines}")

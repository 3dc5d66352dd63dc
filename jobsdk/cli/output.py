"""Printing results (stdout) and talk (stderr)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from jobsdk.findings import Finding


_QUERY = "jobsdk.query"  # in the context: what of the data is shown
_GRID = "grid"  # the form of a table of what a query found


def output_option(*formats: str) -> Callable[[Any], Any]:
    """`-o`, whose default is the first of the formats, and `--query`."""
    chosen = (*(formats or ("table", "json", "yaml")), "tsv")
    form = click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(chosen),
        default=chosen[0],
        show_default=True,
        callback=_form,
        help="Output format.",
    )
    query = click.option(
        "--query",
        metavar="JMESPATH",
        is_eager=True,
        expose_value=False,
        callback=_keep_query,
        help="Show only this part of the JSON output, for example 'name' or '[].name' (JMESPath, as in az).",
    )
    return lambda function: form(query(function))


def _keep_query(context: click.Context, option: click.Parameter, text: str | None) -> None:
    if text is not None:
        import jmespath

        try:
            context.meta[_QUERY] = jmespath.compile(text)
        except jmespath.exceptions.JMESPathError as error:
            raise click.BadParameter(
                f"{text!r} is not JMESPath: {' '.join(str(error).split())}", context, option
            ) from None


def _form(context: click.Context, option: click.Parameter, form: str) -> str:
    """The form that data is shown in: with a query, data in any case."""
    if _QUERY not in context.meta or form in ("json", "yaml", "tsv"):
        return form
    if context.get_parameter_source("form") is click.core.ParameterSource.DEFAULT:
        return "json"
    if form != "table":
        raise click.BadParameter(f"--query does not go with {form}. Fix: -o json, yaml, tsv or table", context, option)
    return _GRID


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
    """Print plain data, or what the query of the command line finds in it, in a form that `output_option` gave."""
    context = click.get_current_context(silent=True)
    if context is not None and _QUERY in context.meta:
        import jmespath

        try:
            data = context.meta[_QUERY].search(json.loads(json.dumps(data, default=str)))
        except jmespath.exceptions.JMESPathError as error:
            raise click.UsageError(f"--query: {error}", context) from None
    if form == "json":
        click.echo(json.dumps(data, indent=2, default=str))
    elif form in ("tsv", _GRID):
        columns, rows = _grid(data)
        if form == _GRID:
            show_table(columns, rows)
            return
        for row in rows:
            click.echo("\t".join(row))
    else:
        import yaml

        from jobsdk.job.yaml_text import Dumper

        plain = json.loads(json.dumps(data, default=str))
        click.echo(yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True), nl=False)


def _grid(data: Any) -> tuple[list[str], list[list[str]]]:
    """The heads and cells of data as az lays them out: a row for each item, a column for each key."""
    items = data if isinstance(data, list) else [] if data is None else [data]
    if items and all(isinstance(item, Mapping) for item in items):
        keys = list(dict.fromkeys(key for item in items for key in item))
        return [str(key) for key in keys], [[_cell(item.get(key)) for key in keys] for item in items]
    lists = [item if isinstance(item, list) else [item] for item in items]
    width = max(map(len, lists), default=1)
    rows = [[*map(_cell, item), *[""] * (width - len(item))] for item in lists]
    return [f"COLUMN{number}" for number in range(1, width + 1)], rows


def _cell(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
    return text.replace("\t", " ").replace("\n", " ")


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

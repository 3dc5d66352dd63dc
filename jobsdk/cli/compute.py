"""`jobsdk compute list | show`."""

from __future__ import annotations

from typing import Any

import click

from jobsdk import compute as computes
from jobsdk.cli.output import output_option, show_record, show_table
from jobsdk.cli.output import show as show_data


@click.group()
def compute() -> None:
    """Where jobs can run: this machine, and what computes.yml names."""


@compute.command("list")
@output_option()
def list_computes(form: str) -> None:
    """List the computes there are."""
    found = computes.configuration()
    records = [_record(entry, found.default) for entry in found.computes.values()]
    if found.default not in found.computes:
        records.append(_record(computes.Entry(found.default, "not configured", {}, found.default_file), found.default))
    if form == "table":
        rows = [(one["name"], one["type"], "yes" if one["default"] else "", one["file"] or "") for one in records]
        show_table(("NAME", "TYPE", "DEFAULT", "FILE"), rows)
    else:
        show_data(records, form)


@compute.command()
@click.argument("name")
@output_option()
def show(name: str, form: str) -> None:
    """Show one compute. Says what is wrong with its settings, if anything is."""
    chosen = computes.resolve(name)
    found = computes.configuration()
    show_record(_record(found.computes[chosen.name], found.default), form)


def _record(entry: computes.Entry, default: str) -> dict[str, Any]:
    return {
        "name": entry.name,
        "type": entry.type,
        "default": entry.name == default,
        "settings": entry.settings,
        "file": str(entry.file) if entry.file else None,
    }

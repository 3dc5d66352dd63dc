"""`jobsdk compute list | show | check | add | machines`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from jobsdk import compute as computes
from jobsdk.cli.options import COMPUTES, Setting, among
from jobsdk.cli.output import output_option, say, show_record, show_table
from jobsdk.cli.output import show as show_data
from jobsdk.compute.base import without_secrets

_NOT_CONFIGURED = "not configured"


@click.group()
def compute() -> None:
    """Manage the places where jobs can run: this machine, and those in computes.yml."""


@compute.command("list")
@output_option()
def list_computes(form: str) -> None:
    """List all computes."""
    found = computes.configuration()
    records = [_record(entry, found.default) for entry in found.computes.values()]
    if found.default not in found.computes:
        records.append(_record(computes.Entry(found.default, _NOT_CONFIGURED, {}, found.default_file), found.default))
    if form == "table":
        rows = [
            (one["name"], _type(one["type"]), "yes" if one["default"] else "", one["file"] or "") for one in records
        ]
        show_table(("NAME", "TYPE", "DEFAULT", "FILE"), rows)
    else:
        show_data(records, form)


def _type(name: str) -> str:
    """The type of a compute, with a mark if there is none of that name."""
    is_known = name in (_NOT_CONFIGURED, computes.LOCAL) or name in computes.types()
    return name if is_known else f"{name} (no such type)"


@compute.command()
@click.argument("name", shell_complete=COMPUTES)
@output_option()
def show(name: str, form: str) -> None:
    """Show a compute, its settings, and all settings of its type. Reports mistakes in them."""
    chosen = computes.resolve(name)
    found = computes.configuration()
    record = _record(found.computes[chosen.name], found.default)
    if form != "table":
        show_data({**record, "settings_known": chosen.all_settings()}, form)
        return
    show_record({**record, "settings": None}, form)
    rows = [(key, _brief(record["settings"].get(key)), what) for key, what in chosen.all_settings().items()]
    click.echo()
    show_table(("SETTING", "VALUE", "MEANING"), rows)


@compute.command()
@click.argument("name", shell_complete=COMPUTES)
@output_option("table", "json")
@click.pass_context
def check(context: click.Context, name: str, form: str) -> None:
    """Check that a compute is reachable and can run jobs. The exit code is 1 if it cannot."""
    chosen = computes.resolve(name)
    checks = list(chosen.check())
    if form != "table":
        show_data({"name": chosen.name, "type": chosen.type, "checks": [one._asdict() for one in checks]}, form)
    for one in checks if form == "table" else ():
        level = click.style("ok   ", fg="green") if one.is_well else click.style("WRONG", fg="red")
        click.echo(f"{level}  {one.what}: {one.found}")
        if one.fix and not one.is_well:
            click.echo(f"       Fix: {one.fix}")
    if not checks and form == "table":
        click.echo(
            f"the type {chosen.type} has nothing to ask; jobsdk doctor --compute {chosen.name} runs something there"
        )
    context.exit(0 if all(one.is_well for one in checks) else 1)


def _settings_of_type(context: click.Context) -> Iterable[str]:
    """The settings of the type that stands on the command line already."""
    kind = context.params.get("kind")
    return computes.type_of(kind).all_settings() if kind else ()


@compute.command()
@click.argument("name")
@click.option(
    "--type",
    "kind",
    required=True,
    shell_complete=among(computes.types),
    help="Type: local, slurm, kubernetes, ssh, azureml, ray, spark, or one from an installed package.",
)
@click.option(
    "--set",
    "given",
    type=Setting(_settings_of_type),
    multiple=True,
    help="Setting, for example --set partition=gpu or --set network.gdr=true.",
)
@click.option("--user", is_flag=True, help="Add it to your own computes.yml instead of the project's.")
def add(name: str, kind: str, given: tuple[dict[str, Any], ...], user: bool) -> None:
    """Add a compute to the project's computes.yml, or to your own.

    The project's file is in this folder or above it; without one, it is created here.
    """
    from pathlib import Path

    from jobsdk.compute import editing

    own = computes.user_file()
    file = own if user else computes.project_file() or Path(computes.FILE).absolute()
    settings = _nested(given)
    others = computes.configuration().computes
    editing.add(file, name, kind, settings)
    click.echo(f"{file}: added {name}")
    other = others[name].file if name in others else None
    if other is not None and other != file:
        say(f"warning: {other} has a compute {name}, too: {'yours' if user else 'that one'} is used")


@compute.command()
@click.argument("name", required=False, shell_complete=among(lambda: [one.name for one in computes.catalogue()]))
@output_option()
def machines(name: str | None, form: str) -> None:
    """List machine types, or show one: Azure's, and those under `machines` in computes.yml."""
    from jobsdk.errors import ComputeError

    catalogue = computes.catalogue()
    if name is not None:
        found = catalogue.find(name)
        if found is None:
            near = catalogue.nearest(name)
            hint = f": did you mean {near!r}?" if near else "; jobsdk compute machines lists those that are"
            raise ComputeError(f"there is no machine {name!r} in the catalogue{hint}")
        sibling = None if found.has_infiniband else catalogue.sibling(found)
        record = {**found._asdict(), "with_infiniband": sibling.name if sibling else None}
        show_record(record, form)
    elif form == "table":
        rows = [(one.name, str(one.gpus or ""), one.gpu, _size(one.gpu_memory), str(one.cpus or ""), _size(one.memory),
                 _size(one.infiniband) + ("" if one.sriov or not one.infiniband else " (no SR-IOV)"))
                for one in catalogue]  # fmt: skip
        show_table(("NAME", "GPUS", "GPU", "GPU GIB", "CORES", "GIB", "INFINIBAND GBIT/S"), rows)
    else:
        show_data([one._asdict() for one in catalogue], form)


def _size(number: float) -> str:
    return f"{number:g}" if number else ""


def _brief(value: object) -> str:
    """A setting as a cell of a table has it."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    import json

    return json.dumps(value, default=str)


def _nested(given: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """`network.gdr=true` and others as one mapping."""
    settings: dict[str, Any] = {}
    for one in given:
        for path, value in one.items():
            *above, last = path.split(".")
            place = settings
            for key in above:
                place = place.setdefault(key, {})
                if not isinstance(place, dict):
                    raise click.UsageError(f"--set {path}: {key} has a value of its own.", click.get_current_context())
            place[last] = value
    return settings


def _record(entry: computes.Entry, default: str) -> dict[str, Any]:
    return {
        "name": entry.name,
        "type": entry.type,
        "default": entry.name == default,
        "settings": without_secrets(entry.settings),
        "file": str(entry.file) if entry.file else None,
    }

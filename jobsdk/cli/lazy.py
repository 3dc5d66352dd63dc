"""A group whose commands are imported when they are used; `--help` shows them without."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """`members`: name -> (`module:attribute`, one line of help)."""

    def __init__(self, *args: Any, members: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._members = members

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._members)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._members:
            return None
        module, _, attribute = self._members[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._members and not args[0].startswith("-"):
            from jobsdk.findings import nearest

            within = (name for name in self._members if args[0] in getattr(self.get_command(ctx, name), "_members", ()))
            near = next((f"{ctx.command_path} {name} {args[0]}" for name in within), nearest(args[0], self._members))
            if args[0] in getattr(ctx.find_root().command, "_members", ()):
                near = f"{ctx.find_root().command_path} {args[0]}"
            from jobsdk.cli import habits

            near = habits.COMMANDS.get(args[0], near)
            hint = f"Did you mean {near!r}?" if near else f"There are {', '.join(self._members)}."
            ctx.fail(f"No such command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._members.items()])

"""`jobsdk completion`."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL. To use it: eval "$(jobsdk completion bash)"."""
    from click.shell_completion import get_completion_class

    from jobsdk.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "jobsdk", "_JOBSDK_COMPLETE").source())

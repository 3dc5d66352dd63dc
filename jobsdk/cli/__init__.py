"""The command `jobsdk`: thin over `jobsdk.client.operations`. Each verb's module is imported when the verb is used."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

import click

from jobsdk.cli.lazy import LazyGroup

USAGE, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from jobsdk.installation import version_text

        click.echo(version_text())
        context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    members={
        "run": ("jobsdk.cli.launch:run", "Run a command here as a distributed job, as torchrun would."),
        "job": ("jobsdk.cli.job:job", "Submit, follow and manage jobs."),
        "prune": ("jobsdk.cli.manage:prune", "Delete old runs."),
        "compute": ("jobsdk.cli.compute:compute", "Manage the places where jobs can run."),
        "doctor": ("jobsdk.cli.doctor:doctor", "Check this machine, or the nodes of a job."),
        "azure-emulator": ("jobsdk.cli.emulator:emulator", "Run a local Azure ML for tests without the cloud."),
        "ui": ("jobsdk.cli.ui:ui", "Show all runs on a local web page."),
        "schema": ("jobsdk.cli.schema:schema", "Print the JSON Schema of job files."),
        "completion": ("jobsdk.cli.completion:completion", "Print the shell completion script."),
    },
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Show the version, its commit, and which extras are installed.",
)
def cli() -> None:
    """Describe a distributed job once, and run it on this machine or on a cluster."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Every error becomes one message on stderr, never a traceback."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    from jobsdk.terminal import guard_output

    with guard_output():
        try:
            return _exit_code(arguments)
        finally:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except OSError:  # nobody takes it; Python would try once more at its end, and exit with 120
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _exit_code(arguments: Sequence[str] | None) -> int:
    from jobsdk.errors import JobsdkError

    try:
        code = cli.main(arguments, prog_name="jobsdk", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.1 exits with 0 instead
            click.echo(error.format_message())
            return USAGE
        where = error.ctx.command_path if error.ctx is not None else "jobsdk"
        if isinstance(error, click.NoSuchOption):
            from jobsdk.cli import habits, launch

            if error.ctx is not None and error.ctx.parent is None and launch.takes(error.option_name):
                return _complain(f"{error.option_name} is an option of run. Fix: jobsdk run {error.option_name} ...")
            if instead := habits.answer(error.option_name):
                return _complain(f"there is no option {error.option_name} here: {instead}")
        return _complain(f"{error.format_message()} ('{where} --help' shows the usage)")
    except click.ClickException as error:
        return _complain(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except JobsdkError as error:
        return _complain_of(error)
    except SystemExit as error:  # click's way of passing over a broken pipe, and of ending a completion
        return error.code if isinstance(error.code, int) and error.code != 1 else BROKEN_PIPE
    except BrokenPipeError:
        return BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            from jobsdk.home import runs_folder

            where = where or f"{runs_folder()}: "
            return _complain(f"{where}{error.strerror}. Fix: delete runs (jobsdk prune), or set JOBSDK_HOME elsewhere")
        return _complain(f"{where}{error.strerror or error}")


def _complain_of(error: Exception) -> int:
    from jobsdk.errors import ValidationError

    if isinstance(error, ValidationError):
        from jobsdk.cli.output import say_findings

        say_findings(error.findings)
        return USAGE
    return _complain(str(error))


def _complain(message: str) -> int:
    from jobsdk.cli.output import say

    say(f"error: {message}")
    return USAGE

"""Showing a run's lines in the terminal, and what Ctrl-C means meanwhile."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

import click

from jobsdk.cli.output import say
from jobsdk.errors import JobFailed

if TYPE_CHECKING:
    from jobsdk.run import Run


def finish(run: Run) -> int:
    """The exit code for a run that has ended, after saying on stderr why it failed."""
    from jobsdk.run import failure_text

    state = run.state()
    if state.status != "Completed":
        report = run.report
        say(f"error: {failure_text(report, run.name)}")
        if (report.get("cause") or {}).get("rank") is not None:
            say(f"logs: {run.folder.logs}")
    return state.exit_code if state.exit_code is not None else 1


def attend(run: Run, ranks: str | None = None, tail: int | None = None) -> int:
    """Show a run that goes on by itself; the exit code. Ctrl-C detaches, or cancels if the user says so."""
    try:
        return _stream(run, ranks, tail)
    except KeyboardInterrupt:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            say(f"detached; the run goes on: jobsdk job stream {run.name}")
            return 130
    answer = click.prompt(
        "\n(d)etach and let the run go on, or (c)ancel it?", type=click.Choice(["d", "c"]), default="d", err=True
    )
    if answer == "d":
        say(f"the run goes on: jobsdk job stream {run.name}")
        return 130
    return _cancel(run, tail=0)


def own(run: Run) -> int:
    """Show a run that belongs to this terminal, as a command started here would; the exit code.

    Ctrl-C, SIGTERM and a closed terminal cancel it. A second Ctrl-C does not wait for its end.
    """

    def told(signum: int, _: FrameType | None) -> None:
        raise _Told(signum)

    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signum, told)
    try:
        return _stream(run, None, None)
    except KeyboardInterrupt:
        say(f"\ncancelling {run.name}; Ctrl-C again to leave before it has ended")
        _cancel(run, tail=0)
        return 130
    except _Told as error:
        run.cancel()
        return 128 + error.signum
    except BrokenPipeError:
        run.cancel()
        raise


class _Told(BaseException):
    def __init__(self, signum: int) -> None:
        self.signum = signum


def _stream(run: Run, ranks: str | None, tail: int | None) -> int:
    try:
        run.stream(ranks=ranks, tail=tail)
    except JobFailed:
        pass
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return finish(run)


def _cancel(run: Run, tail: int) -> int:
    try:
        run.cancel()
        return _stream(run, None, tail)
    except KeyboardInterrupt:
        return 130

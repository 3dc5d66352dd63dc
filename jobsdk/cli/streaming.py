"""Showing a run's lines in the terminal, and what Ctrl-C means meanwhile."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

import click

from jobsdk.bootstrap.spec.text import duration_text
from jobsdk.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobsdk.client.run import Run
    from jobsdk.runs.logs import Shown

#: The exit code of a command that left its run to itself; that of the run is not known yet.
DETACHED = 0


def finish(run: Run) -> int:
    """The exit code for a run that has ended, after saying on stderr why it failed."""
    state = run.state()
    if state.status != "Completed":
        from jobsdk.runs import card

        say(f"error: {card.of_run(run.folder, run.folder.logs if run.report.get('cause') else None)}")
    elif sys.stderr.isatty() and state.started is not None and state.ended is not None:
        say(f"run {run.name} completed in {duration_text(state.ended - state.started)}")
    return state.exit_code if state.exit_code is not None else 1


def attend(run: Run, ranks: str | None = None, tail: int | None = None) -> int:
    """Show a run that goes on by itself; the exit code. Ctrl-C detaches, or cancels if the user says so."""
    from jobsdk.runs.logs import Shown

    shown = Shown()
    try:
        return _stream(run, shown, ranks, tail)
    except KeyboardInterrupt:
        pass
    answer = "d"
    if sys.stdin.isatty() and sys.stderr.isatty():
        question = "\n(d)etach and let the run go on, or (c)ancel it?"
        try:
            answer = click.prompt(question, type=click.Choice(["d", "c"]), default="d", err=True)
        except click.Abort:  # Ctrl-C once more
            say("")
    if answer == "c":
        return _cancel(run, shown, ranks)
    say(f"detached; the run goes on: jobsdk job stream {run.name}, jobsdk job cancel {run.name}")
    return DETACHED


def own(start: Callable[[], Run]) -> int:
    """Start a run that belongs to this terminal, as a command started here would, and show it; the exit code.

    Ctrl-C, SIGTERM, a closed terminal and output that nobody takes cancel it. A second Ctrl-C does not wait.
    """
    # What comes while it is being started waits until there is something to cancel.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        run = start()
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise

    def told(signum: int, _: FrameType | None) -> None:
        raise _Told(signum)

    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signum, told)
    try:
        from jobsdk.runs.logs import Shown  # while the run starts

        shown = Shown()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if sys.stderr.isatty():
            say(f"run {run.name}: {run.folder.path}")
        return _stream(run, shown)
    except KeyboardInterrupt:
        say(f"\ncancelling {run.name}; Ctrl-C again to leave before it has ended")
        _cancel(run, shown)
        return 130
    except _Told as error:
        run.cancel()
        return 128 + error.signum
    except OSError:
        run.cancel()
        raise


class _Told(BaseException):
    def __init__(self, signum: int) -> None:
        self.signum = signum


def _stream(run: Run, shown: Shown, ranks: str | None = None, tail: int | None = None) -> int:
    try:
        run.logs(ranks=ranks, tail=tail, follow=True, shown=shown)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return finish(run.wait())


def _cancel(run: Run, shown: Shown, ranks: str | None = None) -> int:
    try:
        run.cancel()
        return _stream(run, shown, ranks)
    except KeyboardInterrupt:
        return 130

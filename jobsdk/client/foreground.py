"""A run that belongs to a call: shown while it goes on, and ended with the call."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jobsdk.errors import JobsdkError

if TYPE_CHECKING:
    from jobsdk.client.run import Run
    from jobsdk.runs.logs import Shown


def attend(start: Callable[[], Run]) -> Run:
    """Start a run, and show on stdout what the ranks write, until the run has ended, however it has.

    Ctrl-C, a notebook's interrupt and an output that takes nothing more end the run, and are raised when that has been
    done; a second Ctrl-C does not wait for it.
    """
    interrupts = _Interrupts()
    try:
        run = start()
    except BaseException:
        interrupts.release()
        raise
    shown: Shown | None = None
    try:
        from jobsdk.runs.logs import Shown  # while the run starts

        shown = Shown()
        interrupts.release()
        interrupts.repeat()
        run.logs(follow=True, shown=shown)
        run.target.wait(run.folder, None)
    except BaseException as error:
        with contextlib.suppress(JobsdkError):
            run.cancel()
        if isinstance(error, KeyboardInterrupt):
            run.logs(follow=True, shown=shown)  # what the ranks have to say to that
        run.target.wait(run.folder, None)
        if isinstance(error, KeyboardInterrupt):
            from jobsdk.notebook import show_briefly

            sys.stdout.flush()
            print(f"the run {run.name} was interrupted: {run.status}", file=sys.stderr)
            show_briefly(error)
        raise
    return run


class _Interrupts:
    """Keeps the first Ctrl-C, from now on, until there is something to cancel."""

    def __init__(self) -> None:
        self._kept = False
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():  # no other one hears of any
            self._before = signal.getsignal(signal.SIGINT)
        if self._before is not None:
            signal.signal(signal.SIGINT, self._keep)

    def _keep(self, *_: Any) -> None:
        if self._kept:
            raise KeyboardInterrupt
        self._kept = True

    def release(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def repeat(self) -> None:
        """Let the one that was kept be heard."""
        if self._kept:
            signal.raise_signal(signal.SIGINT)

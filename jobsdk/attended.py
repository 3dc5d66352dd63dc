"""A run that belongs to a call: shown while it goes on, and ended with the call."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from jobsdk.errors import JobsdkError

if TYPE_CHECKING:
    from jobsdk.run import Run


def attend(run: Run) -> Run:
    """Show on stdout what the ranks write, until the run has ended, however it has.

    Ctrl-C, a notebook's interrupt and an output that takes nothing more end the run, and are raised when that has been
    done; a second Ctrl-C does not wait for it.
    """
    from jobsdk.logs import Shown

    shown = Shown()
    try:
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

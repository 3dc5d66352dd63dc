"""Exit codes of a job, or of a bootstrap, that no rank ended; and exit codes in words."""

from __future__ import annotations

import signal
from typing import Optional

#: As shells and `timeout` have them: SIGINT, and time that is used up.
CANCELED, TIMED_OUT = 130, 124
#: A node or a supervisor that has gone; ours.
LOST = 125
#: As shells have it for SIGTERM: a bootstrap was told to end.
PREEMPTED = 143
#: As shells have it for what they cannot run: nothing could be started.
NOT_STARTED = 126
#: Restarts did not help; ours, above those of sysexits.
NO_PROGRESS = 80
#: A fault of the bootstrap itself (sysexits: software).
FAULT = 70


def describe(exit_code: int, signum: Optional[int]) -> str:
    """An exit in words: `exited with code 3`, `was killed by SIGKILL`."""
    if signum is None:
        return "exited with code %d" % exit_code
    return "was killed by %s" % signal_name(signum)


def signal_name(signum: int) -> str:
    """`SIGKILL`; `signal 72` for one without a name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return "signal %d" % signum

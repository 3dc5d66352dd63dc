"""Exit codes of a job, or of a bootstrap, that no rank ended."""

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

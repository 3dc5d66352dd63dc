"""The group `jobsdk job`."""

from __future__ import annotations

import click

from jobsdk.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    members={
        "create": ("jobsdk.cli.submit:create", "Submit a job."),
        "rerun": ("jobsdk.cli.submit:rerun", "Submit the job of a run again."),
        "validate": ("jobsdk.cli.submit:validate", "Check a job file and report every mistake."),
        "explain": ("jobsdk.cli.submit:explain", "Show the environment of every process before launch."),
        "compile": ("jobsdk.cli.submit:compile_job", "Show what would be submitted."),
        "show": ("jobsdk.cli.look:show", "Show a run."),
        "diff": ("jobsdk.cli.look:diff", "Show what differs between two runs."),
        "list": ("jobsdk.cli.look:list_runs", "List runs, the newest first."),
        "stream": ("jobsdk.cli.look:stream", "Show a run's output until it ends."),
        "logs": ("jobsdk.cli.look:logs", "Show a run's output so far."),
        "timeline": ("jobsdk.cli.timeline:timeline", "Show where a run's time went."),
        "metrics": ("jobsdk.cli.look:metrics", "Show a run's metrics."),
        "report": ("jobsdk.cli.report:report", "Write a run as one HTML file."),
        "stacks": ("jobsdk.cli.stacks:stacks", "Show the stack of every rank."),
        "wait": ("jobsdk.cli.look:wait", "Wait until a run ends."),
        "cancel": ("jobsdk.cli.manage:cancel", "Cancel a run."),
        "download": ("jobsdk.cli.manage:download", "Copy a run's logs and outputs."),
        "archive": ("jobsdk.cli.manage:archive", "Hide a run from lists."),
        "restore": ("jobsdk.cli.manage:restore", "Unarchive a run."),
        "delete": ("jobsdk.cli.manage:delete", "Delete runs and their files."),
        "update": ("jobsdk.cli.manage:update", "Change a run's tags, properties, description or display name."),
    },
)
def job() -> None:
    """Submit, follow and manage jobs."""

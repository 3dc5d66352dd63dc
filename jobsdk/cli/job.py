"""The group `jobsdk job`."""

from __future__ import annotations

import click

from jobsdk.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    members={
        "create": ("jobsdk.cli.submit:create", "Submit a job."),
        "rerun": ("jobsdk.cli.submit:rerun", "Submit the job of a run again."),
        "validate": ("jobsdk.cli.submit:validate", "Say everything that is wrong with a job file."),
        "explain": ("jobsdk.cli.submit:explain", "Show every process of a job before it runs."),
        "compile": ("jobsdk.cli.submit:compile_job", "Show what a compute would be given."),
        "show": ("jobsdk.cli.look:show", "Show a run."),
        "diff": ("jobsdk.cli.look:diff", "Show what differs between two runs."),
        "list": ("jobsdk.cli.look:list_runs", "List runs, the newest first."),
        "stream": ("jobsdk.cli.look:stream", "Show what a run's ranks write, until its end."),
        "logs": ("jobsdk.cli.look:logs", "Show what a run's ranks have written."),
        "timeline": ("jobsdk.cli.timeline:timeline", "Show where a run's time went."),
        "metrics": ("jobsdk.cli.look:metrics", "Show what a run's ranks have reported."),
        "report": ("jobsdk.cli.report:report", "Write a run as one HTML file."),
        "stacks": ("jobsdk.cli.stacks:stacks", "Show where a run's ranks are."),
        "wait": ("jobsdk.cli.look:wait", "Wait for a run's end."),
        "cancel": ("jobsdk.cli.manage:cancel", "End a run."),
        "download": ("jobsdk.cli.manage:download", "Copy a run's logs and outputs."),
        "archive": ("jobsdk.cli.manage:archive", "Leave a run out of lists."),
        "restore": ("jobsdk.cli.manage:restore", "Take an archived run into lists again."),
        "delete": ("jobsdk.cli.manage:delete", "Delete runs and all that they have here."),
        "update": ("jobsdk.cli.manage:update", "Change a run's tags, properties, description or display name."),
    },
)
def job() -> None:
    """Submit, follow and manage jobs."""

"""What several verbs take: a job file with changes, and the name of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from jobsdk.findings import Finding
    from jobsdk.job.command import CommandJob

Decorator = Callable[[Any], Any]


class Setting(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """`a.b=value`; see `parse_override`."""

    name = "PATH=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        from jobsdk.errors import ValidationError
        from jobsdk.job.yaml_file import parse_override

        try:
            return parse_override(str(value))
        except ValidationError as error:
            self.fail("; ".join(f"{finding.message} ({finding.fix})" for finding in error.findings[:3]), param, ctx)


def set_option() -> Decorator:
    return click.option(
        "--set",
        "settings",
        type=Setting(),
        multiple=True,
        help="Change a field of the job: --set resources.instance_count=2",
    )


def job_options(function: Any) -> Any:
    """`-f`, `--set` and `--strict`, as every verb has them that reads a job file."""
    for option in (
        click.option("--strict", is_flag=True, help="Take unknown keys that are otherwise tolerated as errors."),
        set_option(),
        click.option("-f", "--file", required=True, metavar="FILE", help="The job file; - reads stdin."),
    ):
        function = option(function)
    return function


class Seconds(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A length of time: seconds, or `5m`."""

    name = "TIME"

    def __init__(self, *, zero: bool = False) -> None:
        self.zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from jobsdk.job.durations import seconds

        found = seconds(value)
        if found is None or (found <= 0 and not self.zero):
            self.fail(f"{value!r} is no length of time: write seconds, or 90s, 5m, 1h30m", param, ctx)
        return found


def hang_timeout_option() -> Decorator:
    return click.option(
        "--hang-timeout",
        type=Seconds(),
        help="End the job, showing where all ranks are, once none has written output or used the processor for so "
        "long: seconds, or 5m.  [default: off]",
    )


def compute_option() -> Decorator:
    return click.option("--compute", metavar="NAME", help="Where to run instead of where the job says.")


def read(
    file: str, settings: tuple[dict[str, Any], ...], strict: bool, compute: str | None = None
) -> tuple[CommandJob | None, tuple[Finding, ...]]:
    """The job of a file (None if it cannot be one), for `compute` where that is given, and everything found in it."""
    from jobsdk.job.yaml_file import read_job

    if compute is not None:  # what is right may depend on where it runs
        settings = (*settings, {"compute": compute})
    return read_job(sys.stdin if file == "-" else file, settings, strict=strict)


def load(file: str, settings: tuple[dict[str, Any], ...], strict: bool, compute: str | None = None) -> CommandJob:
    """The job of a file. Raises ValidationError with everything that was found if it is not valid."""
    job, findings = read(file, settings, strict, compute)
    if job is None or any(finding.is_error for finding in findings):
        from jobsdk.errors import ValidationError

        raise ValidationError(findings)
    return job


def _run_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from jobsdk.runs.folder import RunFolder

    return sorted(run.name for run in RunFolder.all() if run.name.startswith(incomplete))


def run_name(function: Any) -> Any:
    """The run's name, as an argument or as Azure's `-n NAME`; the function takes it as `name`."""
    from functools import wraps

    @wraps(function)
    def with_name(*args: Any, name: str | None, name_option: str | None, **given: Any) -> Any:
        if (name is None) == (name_option is None):
            raise click.UsageError("Give the name of one run.", click.get_current_context())
        return function(*args, name=name_option if name is None else name, **given)

    with_name = click.option("-n", "--name", "name_option", metavar="NAME", hidden=True, shell_complete=_run_names)(
        with_name
    )
    return click.argument("name", required=False, metavar="NAME", shell_complete=_run_names)(with_name)

"""What several verbs take: a job file with changes, and the name of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from jobsdk.findings import Finding
    from jobsdk.job.command import CommandJob

Decorator = Callable[[Any], Any]
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


class Setting(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """`a.b=value`; see `parse_override`."""

    name = "PATH=VALUE"

    def __init__(self, keys: Callable[[click.Context], Iterable[str]]) -> None:
        self.keys = keys  # for completion

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return among(lambda: (f"{key}=" for key in self.keys(ctx)))(ctx, param, incomplete)

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
        type=Setting(_job_keys),
        multiple=True,
        help="Change a field of the job: --set resources.instance_count=2",
    )


def job_options(function: Any) -> Any:
    """A job file, as an argument or as `-f FILE`, and changes to it; the function takes `file`."""

    @wraps(function)
    def with_file(*args: Any, file: str | None, file_option: str | None, **given: Any) -> Any:
        if (file is None) == (file_option is None):
            raise click.UsageError("Give one job file: -f job.yml", click.get_current_context())
        return function(*args, file=file_option if file is None else file, **given)

    for option in (
        click.option("--strict", is_flag=True, help="Treat unknown keys as errors."),
        set_option(),
        click.option("-f", "--file", "file_option", metavar="FILE", help="Job file; - reads stdin."),
        click.argument("file", required=False, metavar="[FILE]", type=click.Path()),
    ):
        with_file = option(with_file)
    return with_file


class Seconds(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A length of time: seconds, or `5m`."""

    name = "TIME"

    def __init__(self, *, zero: bool = False) -> None:
        self.zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from jobsdk.job.durations import seconds

        found = seconds(value)
        if found is None or (found <= 0 and not self.zero):
            self.fail(f"{value!r} is not a length of time. Fix: write seconds, or 90s, 5m, 1h30m", param, ctx)
        return found


def hang_timeout_option() -> Decorator:
    return click.option(
        "--hang-timeout",
        type=Seconds(),
        help="Stop the job and show every rank's stack if no rank has printed or used CPU for this long: seconds, or "
        "5m.  [default: off; a warning after 5m]",
    )


def compute_option() -> Decorator:
    return click.option(
        "--compute", metavar="NAME", shell_complete=COMPUTES, help="Compute to run on, instead of the job's."
    )


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


def _run_names() -> list[str]:
    from jobsdk.runs.folder import RunFolder

    return sorted(run.name for run in RunFolder.all())


def _computes() -> Iterable[str]:
    from jobsdk import compute

    return compute.configuration().computes


def _job_keys(_: click.Context) -> Iterator[str]:
    from jobsdk.job.command import CommandJob

    for name, field in CommandJob._fields.items():
        yield name
        for model in getattr(field.kind, "models", None) or filter(None, [getattr(field.kind, "model", None)]):
            yield from (f"{name}.{inner}" for inner in model._fields)


def among(words: Callable[[], Iterable[str]]) -> Complete:
    """A completion among words, in any letter case; of none where they cannot be read."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from jobsdk.errors import JobsdkError

        try:
            found = [word for word in words() if word.lower().startswith(incomplete.lower())]
        except JobsdkError:
            return []
        return [CompletionItem(word) for word in dict.fromkeys(found)]

    return complete


COMPUTES, RUNS = among(_computes), among(_run_names)


def run_name(function: Any) -> Any:
    """The run's name, as an argument or as Azure's `-n NAME`; the function takes it as `name`."""

    @wraps(function)
    def with_name(*args: Any, name: str | None, name_option: str | None, **given: Any) -> Any:
        if (name is None) == (name_option is None):
            raise click.UsageError("Give the name of one run.", click.get_current_context())
        return function(*args, name=name_option if name is None else name, **given)

    with_name = click.option("-n", "--name", "name_option", metavar="NAME", hidden=True, shell_complete=RUNS)(with_name)
    return click.argument("name", required=False, metavar="NAME", shell_complete=RUNS)(with_name)

"""`jobsdk job create | rerun | validate | explain | compile`: the verbs that read a job file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobsdk.cli.options import compute_option, hang_timeout_option, job_options, load, read, run_name, set_option
from jobsdk.cli.output import output_option, say, say_findings, show, show_record, warn

if TYPE_CHECKING:
    from jobsdk.client.run import Run

Settings = tuple[dict[str, Any], ...]


@click.command()
@job_options
@click.option("--name", help="Name of the run, instead of the job's.")
@compute_option()
@hang_timeout_option()
@click.option("--build-env", is_flag=True, help="Build the job's environment from its conda file or requirements.")
@click.option(
    "--refuse-outside-links", is_flag=True, help="Refuse code with symbolic links that lead out of its folder."
)
@click.option("--stream", is_flag=True, help="Show the output, and exit with the job's exit code.")
@click.option("--wait", is_flag=True, help="Wait until the run ends, and exit with its exit code.")
@click.option("--save-as", metavar="FILE", help="Also write the submitted job to this file.")
@output_option()
@click.pass_context
def create(
    context: click.Context,
    file: str,
    settings: Settings,
    strict: bool,
    name: str | None,
    compute: str | None,
    hang_timeout: float | None,
    build_env: bool,
    refuse_outside_links: bool,
    stream: bool,
    wait: bool,
    save_as: str | None,
    form: str,
) -> None:
    """Submit the job in FILE and print the run's name. The run continues in the background."""
    from jobsdk.client.operations import JobOperations

    if hang_timeout is not None:
        settings = (*settings, {"limits.hang_timeout": hang_timeout})
    job = load(file, settings, strict, compute)
    jobs = JobOperations()
    compiled = jobs.compile(
        job, name=name, build_env=build_env, strict=strict, refuse_outside_links=refuse_outside_links
    )
    if save_as is not None:
        compiled.job.dump(save_as)
    _attend(context, jobs.submit(compiled, warn), stream, wait, form)


@click.command()
@run_name
@set_option()
@click.option("--stream", is_flag=True, help="As for create.")
@click.option("--wait", is_flag=True, help="As for create.")
@output_option()
@click.pass_context
def rerun(context: click.Context, name: str, settings: Settings, stream: bool, wait: bool, form: str) -> None:
    """Submit the job and code of a run again under a new name."""
    from jobsdk.client.operations import JobOperations

    _attend(context, JobOperations().rerun(name, settings, warn=warn), stream, wait, form)


def _attend(context: click.Context, run: Run, stream: bool, wait: bool, form: str) -> None:
    """Show a run that was submitted; the exit code is the job's where its end is waited for."""
    if stream:
        from jobsdk.cli.streaming import attend

        say(f"run {run.name}: {run.folder.path}")
        context.exit(attend(run))
    if wait:
        from jobsdk.cli.streaming import finish

        run.wait()
    if form == "table":
        click.echo(run.name)
    else:
        from jobsdk.cli.records import run_record

        show_record(run_record(run), form)
    if wait:
        context.exit(finish(run))


@click.command()
@job_options
@compute_option()
@output_option("table", "json", "yaml")
@click.pass_context
def validate(
    context: click.Context, file: str, settings: Settings, strict: bool, compute: str | None, form: str
) -> None:
    """Check FILE and report every mistake, without network. The exit code is 0 if it is valid, else 2."""
    job, found = read(file, settings, strict, compute)
    findings = list(found)
    if job is not None and not any(finding.is_error for finding in findings):
        from jobsdk.client.submission import Draft

        findings += Draft(job, name=job.name or "run").of_compute
    errors = sum(finding.is_error for finding in findings)
    if form == "table":
        say_findings(findings)
        if not errors:
            click.echo(f"{file}: valid" + (f", with {len(findings)} warning(s)" if findings else ""))
    else:
        show([finding.to_dict() for finding in findings], form)
    context.exit(2 if errors else 0)


@click.command()
@job_options
@compute_option()
@click.option("--rank", "ranks", metavar="RANKS", help="Only these processes: 0,3-5 or last.")
@output_option("text", "json", "yaml")
def explain(file: str, settings: Settings, strict: bool, compute: str | None, ranks: str | None, form: str) -> None:
    """Show the node, role, rank, environment and command of every process of the job."""
    from jobsdk.client.explain import RUN_NAME, of_draft
    from jobsdk.client.submission import Draft
    from jobsdk.runs.logs import parse_ranks

    job = load(file, settings, strict, compute)
    draft = Draft(job, name=job.name or RUN_NAME)
    explanation = of_draft(draft)
    say_findings(draft.of_compute)
    try:
        chosen = parse_ranks(ranks, len(explanation))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if form == "text":
        click.echo(explanation.to_text(chosen))
    else:
        show(explanation.to_dict(chosen), form)


@click.command("compile")
@job_options
@click.option("--name", help="Name of the run, instead of the job's.")
@compute_option()
@click.option("--build-env", is_flag=True, help="As for create.")
@output_option("yaml", "json", "native")
def compile_job(
    file: str,
    settings: Settings,
    strict: bool,
    name: str | None,
    compute: str | None,
    build_env: bool,
    form: str,
) -> None:
    """Show what would be submitted for the job. Nothing is submitted.

    `-o native` shows only what the engine itself reads: an sbatch script, Kubernetes manifests.
    """
    from jobsdk.client.operations import JobOperations

    job = load(file, settings, strict, compute)
    compiled = JobOperations().compile(job, name=name, build_env=build_env, strict=strict)
    say_findings(compiled.warnings)
    if form == "native":
        click.echo(compiled.compute.native(compiled.native), nl=False)
    else:
        show(compiled.native, form)

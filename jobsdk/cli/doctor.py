"""`jobsdk doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from jobsdk.cli.options import compute_option, load, set_option
from jobsdk.cli.output import output_option, say, show, warn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobsdk.bootstrap.preflight.finding import Finding


@click.command()
@click.option("-f", "--job", "--file", "file", metavar="FILE", help="Check the nodes where this job would run.")
@compute_option()
@click.option("--nodes", type=click.IntRange(1), help="Number of nodes to check.  [default: the job's, or 1]")
@click.option("--no-bandwidth", is_flag=True, help="Do not measure the bandwidth between the nodes.")
@set_option()
@output_option("table", "json")
@click.pass_context
def doctor(
    context: click.Context,
    file: str | None,
    compute: str | None,
    nodes: int | None,
    no_bandwidth: bool,
    settings: tuple[dict[str, Any], ...],
    form: str,
) -> None:
    """Check this machine, or the nodes of a job.

    Without options: this machine. With --job, --compute or --nodes: a preflight, that is a short run on the compute
    in which the nodes look at themselves and at the ways between them. Exit code 1 if there is a problem.
    """
    from jobsdk.doctor import has_problem

    if settings and file is None:
        raise click.UsageError("--set changes a job: give its file with --job.", context)
    if file is None and compute is None and nodes is None:
        from jobsdk.doctor import this_machine

        findings = this_machine()
        _show_all(findings) if form == "table" else show({"findings": [one._asdict() for one in findings]}, form)
    else:
        from jobsdk.doctor import job_of, plan_preflight, run_preflight

        job = job_of(nodes or 1) if file is None else load(file, settings, False)
        compiled = plan_preflight(job, compute=compute, nodes=nodes, bandwidth=not no_bandwidth)
        if sys.stderr.isatty():  # it may be long in a queue
            say(f"run {compiled.name}: waiting for the {compiled.plan['nodes']} node(s)")
        result = run_preflight(compiled, warn)
        findings = list(result.findings)
        if form == "table":
            _show(findings)
            click.echo(result.summary)
            if has_problem(findings):
                say(f"run {result.run}: `jobsdk job show {result.run}`")
        else:
            show({**result._asdict(), "findings": [one._asdict() for one in findings]}, form)
    context.exit(1 if has_problem(findings) else 0)


def _show_all(findings: list[Finding]) -> None:
    """Every finding under its subject, and how many are not right."""
    _show(findings, subjects=True)
    counts = [(level, sum(one.level == level for one in findings)) for level in ("problem", "warning")]
    said = [f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts if count]
    click.echo(", ".join(said) or "no problems")


def _show(findings: Iterable[Finding], subjects: bool = False) -> None:
    styles = {"ok": "green", "warning": "yellow", "problem": "red"}
    for finding in findings:
        level = click.style(finding.level.ljust(7), fg=styles[finding.level])  # colors only on a terminal
        subject = f"  {finding.subject:<10}" if subjects else ""
        click.echo(f"{level}{subject}  {finding.text}")
        if finding.fix:
            click.echo(f"{' ' * (7 + len(subject))}  to do: {finding.fix}")

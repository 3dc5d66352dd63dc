"""`jobsdk job show | diff | list | stream | logs | wait`: the verbs that look at runs."""

from __future__ import annotations

import time
from itertools import islice

import click

from jobsdk.cli.options import COMPUTES, RUNS, Seconds, among, run_name
from jobsdk.cli.output import output_option, say, show_record, show_table
from jobsdk.cli.output import show as show_data
from jobsdk.client.operations import JobOperations

_WATCH_S = 2.0  # seconds between two lists
_METRICS = 20  # that `job show` has room for


@click.command()
@run_name
@output_option()
def show(name: str, form: str) -> None:
    """Show a run: status, result, command, inputs, environment, machines, outputs and latest metrics."""
    from jobsdk.cli.records import metric_records, rank_records, run_record
    from jobsdk.runs import left_out, provenance, silence, tensorboard
    from jobsdk.runs.metrics import Table
    from jobsdk.snapshot.listing import summary

    run = JobOperations().get(name)
    record = run_record(run)
    events = tensorboard.folders(run.folder)
    lacks = left_out.of_run(run.folder)
    origin = provenance.of_run(run.folder)
    if form == "table":
        told = {"command": origin.command, **origin.summary(), "last_output": silence.of_run(run.folder, time.time())}
        told["inputs"] = "\n".join(f"{key} = {value}" for key, value in origin.inputs.items())
        at = list(record).index("command")
        record = {**dict(islice(record.items(), at)), **told, **dict(islice(record.items(), at + 1, None))}
        values = Table(run.metrics).last
        record["metrics"] = {key: f"{values[key]:.6g}" for key in list(values)[:_METRICS]}
        if len(values) > _METRICS:
            record["metrics"]["..."] = f"{len(values)} in all: jobsdk job metrics {run.name}"
        record["left_out"] = summary(lacks)
        record["tensorboard"] = tensorboard.command(events)
        if run.report.get("cause"):
            from jobsdk.runs import card

            record["message"] = ""
            record["failure"] = card.of_run(run.folder)
    else:
        record.update(origin.to_dict())
        record["ranks"] = rank_records(run)
        record["metrics"] = metric_records(run.metrics)
        record["left_out"] = [{"path": one.path, "reason": one.reason} for one in lacks]
        record["tensorboard"] = events
        record["report"] = run.report or None
    show_record(record, form)


@click.command()
@click.argument("first", metavar="A", shell_complete=RUNS)
@click.argument("second", metavar="B", shell_complete=RUNS)
@output_option()
def diff(first: str, second: str, form: str) -> None:
    """Show what differs between two runs: job, code files, git, Python, packages, machines."""
    from jobsdk.runs.comparison import compare

    runs = [JobOperations().get(name) for name in (first, second)]
    found = compare(*(run.folder for run in runs))
    if form != "table":
        show_data([one._asdict() for one in found], form)
    elif found:
        show_table(("PART", "WHAT", *(run.name for run in runs)), [[cell or "-" for cell in one] for one in found])
    else:
        say("nothing that jobsdk knows differs")


@click.command()
@run_name
@output_option("table", "json", "yaml", "csv")
def metrics(name: str, form: str) -> None:
    """Show the metrics of a run: one line each, or every point with json, yaml or csv."""
    from jobsdk.cli.records import metric_records
    from jobsdk.runs.metrics import COLUMNS, Row

    table = JobOperations().metrics(name)
    if form == "table":
        show_table(COLUMNS, table.summary(), ("AT", "RANKS", "POINTS"))
        if not len(table):
            say(f"nothing has been reported in run {name}: jobsdk.train.report() or MLflow would do it")
    elif form == "csv":
        import csv
        import sys

        csv.writer(sys.stdout, lineterminator="\n").writerows([Row._fields, *table])
    else:
        show_data(metric_records(JobOperations().get(name).metrics), form)


def _statuses() -> tuple[str, ...]:
    from jobsdk.runs.state import STATUSES

    return STATUSES


@click.command("list")
@click.option("--status", shell_complete=among(_statuses), help="Only runs with this status: failed, timed-out, ...")
@click.option("--tag", metavar="KEY[=VALUE]", help="Only runs with this tag.")
@click.option("--experiment", help="Only runs of this experiment.")
@click.option("--compute", shell_complete=COMPUTES, help="Only runs on this compute.")
@click.option(
    "-r", "--max-results", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of runs to show."
)
@click.option("--include-archived", is_flag=True, help="Include archived runs.")
@click.option("--archived-only", is_flag=True, help="Show only archived runs.")
@click.option("--watch", is_flag=True, help="Refresh the list every 2 seconds until Ctrl-C.")
@output_option()
def list_runs(
    status: str | None,
    tag: str | None,
    experiment: str | None,
    compute: str | None,
    max_results: int,
    include_archived: bool,
    archived_only: bool,
    watch: bool,
    form: str,
) -> None:
    """List the runs that match all options, newest first."""
    from jobsdk.cli.records import run_record, run_table

    while True:
        try:
            runs = JobOperations().list(
                status=status,
                tag=tag,
                experiment=experiment,
                compute=compute,
                max_results=max_results,
                list_view_type="ArchivedOnly" if archived_only else "All" if include_archived else "ActiveOnly",
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        if watch:
            click.clear()  # on a terminal only
        if form == "table":
            show_table(*run_table(runs))
        else:
            show_data([run_record(run) for run in runs], form)
        if not watch:
            return
        time.sleep(_WATCH_S)


@click.command()
@run_name
@click.option("--rank", "ranks", metavar="RANKS", help="Only these ranks: 0,3-5 or last.")
@click.option("--tail", type=click.IntRange(0), help="Start with this many last lines of each rank.")
@click.pass_context
def stream(context: click.Context, name: str, ranks: str | None, tail: int | None) -> None:
    """Show a run's output until it ends, and exit with its exit code."""
    from jobsdk.cli.streaming import attend

    context.exit(attend(JobOperations().get(name), ranks, tail))


@click.command()
@run_name
@click.option("--rank", "ranks", metavar="RANKS", help="Only these ranks: 0,3-5 or last.")
@click.option("-f", "--follow", is_flag=True, help="Continue until the run ends.")
@click.option("--tail", type=click.IntRange(0), help="Only this many last lines of each rank.")
def logs(name: str, ranks: str | None, follow: bool, tail: int | None) -> None:
    """Show the output of a run so far."""
    try:
        JobOperations().logs(name, ranks=ranks, tail=tail, follow=follow)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@click.command()
@run_name
@click.option(
    "--timeout",
    type=Seconds(zero=True),
    help="Longest time to wait: seconds, or 5m. After it, the exit code is 124.",
)
@click.pass_context
def wait(context: click.Context, name: str, timeout: float | None) -> None:
    """Wait until a run ends, and exit with its exit code."""
    from jobsdk.cli.streaming import finish

    try:
        run = JobOperations().wait(name, timeout)
    except TimeoutError as error:
        say(f"error: {error}")
        context.exit(124)
    context.exit(finish(run))

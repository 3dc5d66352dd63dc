"""A run as one HTML file that needs nothing else: to be attached to a ticket, or kept."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from jobsdk import __version__
from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.spec.text import duration_text
from jobsdk.client.explain import Explanation
from jobsdk.client.run import Run
from jobsdk.planning.recognition import Mask, mask_of
from jobsdk.runs import card, provenance, timeline
from jobsdk.runs.ranks import Ranks, RankState, counted, layout_text
from jobsdk.runs.state import State
from jobsdk.views import cards, charts
from jobsdk.views.grid import badge, grid
from jobsdk.views.markup import STYLE, Markup, facts, joined, masked, tag, text
from jobsdk.views.watched import last_line, last_lines

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.runs.provenance import Provenance

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LOGS = 40  # ranks whose logs are taken along
_LAST_LINES = 300
_LAST_BYTES = 64 << 10
_LEFT_OUT = (
    "The job has secrets that cannot be recognized here: it was submitted from another machine, or the file that "
    "tells of them is gone. So what its ranks have written is left out."
)


def document(run: Run) -> str:
    """The whole file, of a run that has ended or goes on.

    Secret values that can be recognized are masked; see `planning.recognition`. Where they cannot be, what the programs
    have written is left out.
    """
    mask = mask_of(run.folder)
    with masked(mask or Mask()):
        return _document(run, mask)


def _document(run: Run, mask: Mask | None) -> str:
    plan, events, origin = run.folder.plan(), run.folder.events(), provenance.of_run(run.folder)
    ranks = Ranks(plan)
    ranks.feed(events)
    states = ranks.states()
    restarts = run.folder.recorded_state().restarts

    def log(state: RankState) -> str:
        return paths.rank_log(str(run.folder.path), state.node, state.rank, restarts)

    metrics = run.metrics if mask else {}
    sections = [
        _head(run, origin, states),
        _cause(run),
        _section("Ranks", grid(states, lambda state: last_line(log(state), mask) if mask else "")),
        _section("Where the time went", charts.timeline(timeline.of_run(run.folder))),
        # A name is cut off where there is no more room for it.
        _section("Metrics", charts.curves({mask(name): metrics[name] for name in metrics}))
        if metrics and mask
        else None,
        _section("Warnings", _lines(event["message"] for event in events if event["event"] == "warning")),
        _section("Logs", *_logs(run, states, log, mask)) if mask else _section("Logs", tag("p", _LEFT_OUT)),
        _section("The job", *_job(run, plan), _packages(origin)),
    ]
    made = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    foot = tag("p", f"made by jobsdk {__version__} at {made} on {os.uname().nodename}", class_="dim")
    page = tag(
        "html",
        tag(
            "head",
            Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
            # Nothing in it is a script, and nothing is fetched, whatever the job has written.
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            tag("title", f"{run.name}: {run.status}"),
            tag("style", Markup(STYLE)),
        ),
        tag("body", *sections, foot),
        lang="en",
    )
    return f"<!doctype html>\n{page}\n"


def _section(title: str, *content: Markup | None) -> Markup | None:
    there = [one for one in content if one]
    return joined([tag("h2", title), *there]) if there else None


def _head(run: Run, origin: Provenance, states: Sequence[RankState]) -> Markup:
    state = run.state()
    values = {
        "message": state.message,
        "exit code": state.exit_code,
        "compute": run.compute,
        "layout": f"{layout_text(run.nodes, run.processes)}, {run.distribution or 'no distribution'}",
        "ranks": ", ".join(f"{count} {name}" for name, count in counted(states).items()),
        "took": _took(state),
        "created": run.creation_context.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z"),
        "restarts": state.restarts or None,
        "experiment": run.experiment_name,
        "command": origin.command,
        **cards.of_origin(run, origin),
    }
    name = tag("p", run.name, class_="dim") if run.name != run.display_name else None
    return joined([tag("h1", run.display_name, " ", badge(state.status)), name, facts(values)])


def _took(state: State) -> str | None:
    if state.started is None:
        return None
    passed = (state.ended or time.time()) - state.started
    return duration_text(passed) + ("" if state.is_terminal else " so far")


def _cause(run: Run) -> Markup | None:
    report = run.report
    if not report or report.get("status") == "Completed":
        return None
    return _section("What went wrong", tag("pre", card.of_run(run.folder), class_="card"))


def _lines(lines: Iterator[Any]) -> Markup | None:
    found = "\n".join(map(str, lines))
    return tag("pre", found) if found else None


def _logs(run: Run, states: Sequence[RankState], log: Callable[[RankState], str], mask: Mask) -> Iterator[Markup]:
    """The ends of the logs: first of those that failed, then in order; not of more ranks than anybody reads."""
    cause = run.report.get("cause") or {}
    order = sorted(states, key=lambda one: (one.rank != cause.get("rank"), one.state != "failed", one.rank))
    for state in order[:_LOGS]:
        lines = [*islice(last_lines(log(state), _LAST_BYTES, mask), _LAST_LINES)][::-1]
        title = tag("summary", f"rank {state.rank} on node {state.node}: {state.state}")
        body = tag("pre", "\n".join(lines)) if lines else tag("p", "it has written nothing", class_="dim")
        yield tag("details", title, body, open=state.rank == cause.get("rank"))
    if len(order) > _LOGS:
        yield tag("p", f"and {len(order) - _LOGS} more ranks, whose logs are in {run.folder.logs}", class_="dim")


def _packages(origin: Provenance) -> Markup | None:
    if origin.python is None:
        return None
    lines = "\n".join(f"{name}=={version}" for name, version in origin.python.packages.items())
    return tag("details", tag("summary", f"{len(origin.python.packages)} packages"), tag("pre", lines))


def _job(run: Run, plan: Plan) -> Iterator[Markup]:
    job = run.folder.path / "job.yml"
    if job.exists():
        yield tag("details", tag("summary", "job.yml"), tag("pre", job.read_text("utf-8", "replace")))
    if plan:
        explained = Explanation(plan, run.compute, "cores of the node", {})
        shown = explained.to_text(most=_LOGS)
        yield tag("details", tag("summary", "the environment of each rank"), tag("pre", shown))
    native = run.folder.read_json("native.json")
    if native:
        try:
            spec = run.target.native(native)
        except Exception:  # of a type that is not installed any more
            spec = str(native)
        yield tag("details", tag("summary", f"what the compute {run.compute} was given"), tag("pre", spec))
    yield tag("p", text(str(run.folder.path)), class_="dim")

"""Cards for notebooks: what a job would do, the environment of every process, and how a run goes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobsdk.bootstrap.spec.text import duration_text
from jobsdk.runs import provenance
from jobsdk.runs.ranks import RankState, layout_text
from jobsdk.views.grid import badge, grid
from jobsdk.views.markup import Markup, card, facts, joined, tag

if TYPE_CHECKING:
    from jobsdk.client.explain import Explanation
    from jobsdk.client.run import Run
    from jobsdk.job.command import CommandJob
    from jobsdk.runs.provenance import Provenance

_ROWS = 16  # processes that a table shows
_CELLS = 256  # ranks that a card draws: who has more looks at the page
_VALUE = 300  # characters of a value
_WIDTH = 1000  # characters of a line
_PERCENT = re.compile(r"(\d{1,3})%\|")  # as tqdm draws it


def of_job(job: CommandJob) -> Markup:
    """What would run where, and what is wrong with it."""
    from jobsdk.client.explain import RUN_NAME, of_draft
    from jobsdk.client.submission import Draft
    from jobsdk.errors import JobsdkError, ValidationError

    draft = None
    try:
        draft = Draft(job, name=job.name or RUN_NAME)
        found = (*draft.of_job, *draft.of_compute)
    except ValidationError as error:
        found = error.findings
    except JobsdkError as error:  # a computes.yml that cannot be read
        return card(tag("b", job.display_name or job.name or "job"), tag("div", str(error), class_="error"))
    wrong = [finding for finding in found if finding.is_error]
    drawn: object = None
    layout = ""
    if draft is not None and not wrong:
        explained = of_draft(draft)
        layout, drawn = _layout(explained), _places(explained)
    distribution = job.distribution.type if job.distribution is not None else "none: one process on each node"
    values = {
        "runs as": layout,
        "compute": job.compute or "the default",
        "distribution": distribution,
        "command": tag("code", _short(job.command)),
        "code": job.code,
        "inputs": _listed(job.inputs),
        "outputs": ", ".join(job.outputs),
        "environment": str(job.environment)[:_VALUE] if job.environment is not None else None,
    }
    head = tag("b", job.display_name or job.name or "job")
    ready = tag("span", "ready" if not wrong else "cannot run", class_=f"badge {'failed' if wrong else 'completed'}")
    notes = (tag("div", str(finding), class_="error" if finding.is_error else "warning") for finding in found)
    return card(tag("div", head, " ", ready), facts(values), drawn, *notes)


def _layout(explained: Explanation) -> str:
    return layout_text(explained.plan["nodes"], len(explained))


def _places(explained: Explanation) -> Markup:
    from jobsdk.runs.ranks import Ranks

    states = Ranks(explained.plan).states()
    return _bounded(states)


def _bounded(states: Sequence[RankState]) -> Markup:
    """The grid of the ranks; of very many those that are in a bad state, and the first ones."""
    if len(states) <= _CELLS:
        return grid(states)
    bad = [state for state in states if state.state in ("failed", "lost")][: _CELLS // 2]
    shown = sorted({*bad, *states[: _CELLS - len(bad)]})
    return joined([grid(shown), tag("div", f"and {len(states) - len(shown)} more ranks", class_="dim")])


def _listed(values: Any) -> Markup | None:
    lines = [f"{name} = {_short(getattr(value, 'path', None) or value)}" for name, value in values.items()]
    return joined(lines, "<br>") if lines else None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _VALUE else text[: _VALUE - 1] + "…"


def of_explanation(explained: Explanation) -> Markup:
    """A table with a row for each of the first processes, and what all of them share."""
    shown = [explained[rank] for rank in range(min(_ROWS, len(explained)))]
    rest = [*shown, explained[len(explained) - 1]]
    common = {
        name: value
        for name, value in shown[0].environment.items()
        if all(process.environment.get(name) == value for process in rest)
    } if len(explained) > 1 else {}  # fmt: skip
    names = [name for name in shown[0].environment if name not in common] if common else []
    heads = ["rank", "node", "local rank", *names]
    rows = [
        tag("tr", *(tag("td", _short(value), class_="mono") for value in (
            process.rank, process.node_rank, process.local_rank, *(process.environment.get(name, "") for name in names)
        )))
        for process in shown
    ]  # fmt: skip
    more = f"and {len(explained) - len(shown)} more likewise" if len(explained) > len(shown) else None
    shared = common or shown[0].environment
    return card(
        tag("div", tag("b", _layout(explained)), f", compute {explained.compute}"),
        tag("div", tag("code", _short(explained.command))),
        tag("div", tag("table", tag("tr", *(tag("th", head) for head in heads)), *rows), class_="wide"),
        tag("div", more, class_="dim") if more else None,
        tag(
            "details",
            tag("summary", "environment of every process" if common else "its environment"),
            facts({name: tag("span", _short(value), class_="mono") for name, value in shared.items()}),
        ),
    )


def of_run(run: Run, summary: dict[str, Any], states: Sequence[RankState], lines: Sequence[str], result: str) -> Markup:
    """How a run goes: `summary` and `states` are of `Watched`, `lines` the last ones, `result` what came of it."""
    begun, until, restarts = summary["started"], summary["ended"] or summary["now"], summary["restarts"]
    words = [
        f"{layout_text(run.nodes, run.processes)} on {run.compute}",
        duration_text(until - begun if summary["is_over"] else int(until - begun)) if begun else None,
        f"restarted {restarts} time{'s' * (restarts != 1)}" if restarts else None,
        f"last output {summary['silence']}" if summary["silence"] else None,
        summary["message"] if not summary["card"] else None,
    ]
    percent = None if summary["is_over"] else progress([*lines, *summary["bars"]])
    bar = tag("div", tag("div", style=f"width: {percent}%"), class_="bar") if percent is not None else None
    told = [line[:_WIDTH] for line in (*lines, *summary["bars"][-1:])]
    origin = provenance.of_run(run.folder)
    counts = ", ".join(f"{count} {name}" for name, count in summary["counts"].items())
    return card(
        tag("div", tag("b", run.display_name), " ", badge(summary["status"])),
        tag("div", " · ".join(filter(None, words)), class_="dim"),
        _bounded(states),
        tag("div", counts, class_="dim"),
        tag("div", summary["step"], class_="mono") if summary["step"] else None,
        bar,
        tag("div", summary["trouble"], class_="warning") if summary["trouble"] else None,
        *(tag("div", text, class_="warning") for text in summary["warnings"][-3:]),
        tag("pre", summary["card"], class_="card") if summary["card"] else None,
        tag("pre", "\n".join(told)) if told and not summary["card"] else None,
        tag("div", tag("b", "result: "), tag("code", result)) if result else None,
        tag("details", tag("summary", tag("code", _short(origin.command))), facts(of_origin(run, origin))),
    )


def of_origin(run: Run, origin: Provenance) -> dict[str, object]:
    """What ran, as facts."""
    told = origin.summary()
    return {
        **{name: told[name] for name in ("git", "submitted", "python", "machines")},
        "inputs": _listed(origin.inputs),
        "tags": ", ".join(f"{key}={value}" for key, value in run.tags.items()),
        "description": run.description,
    }


def progress(lines: Sequence[str]) -> int | None:
    """How far a progress bar of tqdm's kind has come, in percent, by the last lines; None without one."""
    for line in reversed(lines):
        found = _PERCENT.findall(line)
        if found:
            return min(100, int(found[-1]))
    return None

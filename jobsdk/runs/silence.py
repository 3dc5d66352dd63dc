"""How long the ranks of a run have been silent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.spec.text import duration_text
from jobsdk.runs.card import folded
from jobsdk.runs.folder import is_local
from jobsdk.runs.ranks import Ranks, RankState

if TYPE_CHECKING:
    from jobsdk.runs.folder import RunFolder

#: In a run's folder: the nodes whose logs are brought here at present, or null for all. Others are not silent.
SEEN = "seen.json"
_LINE = 64  # bytes: more than a line of `times-RANK.log` has
_WORTH_NAMING_S = 60.0  # a rank that was silent for so much longer than another


def last_outputs(run: RunFolder, states: Iterable[RankState], restart: int) -> dict[int, float]:
    """When each running rank wrote last, in seconds since 1970, by this start's logs; without those that have not."""
    is_here, folder = is_local(run), str(run.path)
    seen = run.read_json(SEEN).get("nodes")
    found: dict[int, float] = {}
    for state in states:
        if state.state != "running" or (seen is not None and state.node not in seen):
            continue
        place = folder, state.node, state.rank, restart
        when = _changed(paths.rank_log(*place)) if is_here else _noted(paths.times(*place))
        if when is not None:
            found[state.rank] = when
    return found


def of_run(run: RunFolder, now: float) -> str | None:
    """`12 s ago`; None for a run that has written nothing, or has ended."""
    state = run.recorded_state()
    if state.is_terminal:
        return None
    ranks = Ranks(run.plan())
    ranks.feed(run.events())
    return text(last_outputs(run, ranks.states(), state.restarts), now)


def text(outputs: Mapping[int, float], now: float) -> str | None:
    """`12 s ago; rank 3: 0:02:20 ago`, with the ranks that have been silent for much longer."""
    if not outputs:
        return None
    latest, oldest = max(outputs.values()), min(outputs.values())
    words = f"{age(now - latest)} ago"
    if latest - oldest > _WORTH_NAMING_S:
        silent = [rank for rank, when in outputs.items() if when - oldest < _WORTH_NAMING_S / 2]
        words += f"; {folded(silent)}: {age(now - oldest)} ago"
    return words


def age(seconds: float) -> str:
    """`12 s`, `0:02:20`."""
    whole = max(0, int(seconds))
    return f"{whole} s" if whole < 60 else duration_text(whole)


def _changed(path: str) -> float | None:
    """When a log of this machine was written to."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_mtime if facts.st_size else None


def _noted(path: str) -> float | None:
    """The last time in a `times-RANK.log`: a copy of a log from elsewhere is as old as its fetching."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LINE))
            return float(file.read().split(b"\n")[-2].split()[0])
    except (OSError, ValueError, IndexError):
        return None

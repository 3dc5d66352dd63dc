"""The ranks of a run as colored cells, and its status as a badge."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobsdk.runs.ranks import RankState
from jobsdk.views.markup import Markup, tag

_COLORS = {
    "Completed": "completed", "Failed": "failed", "TimedOut": "failed", "Lost": "lost", "Canceled": "stopped",
    "Preempted": "stopped", "Running": "running", "Starting": "running", "Preparing": "running",
}  # fmt: skip


def badge(status: str) -> Markup:
    """A status in its color."""
    return tag("span", status, class_=f"badge {_COLORS.get(status, '')}".rstrip())


def grid(states: Sequence[RankState], said: Callable[[RankState], str] = lambda state: "") -> Markup:
    """A cell for each rank, node by node; `said` gives what a rank wrote last."""
    nodes: dict[int, list[RankState]] = {}
    for state in states:
        nodes.setdefault(state.node, []).append(state)
    return tag(
        "div",
        *(
            tag(
                "div",
                tag("span", f"node {node}", title=members[0].host),
                *(
                    tag("div", state.rank, class_=f"cell {state.state}", title=_title(state, said(state)))
                    for state in members
                ),
                class_="node",
            )
            for node, members in nodes.items()
        ),
        class_="grid",
    )


def _title(state: RankState, last: str) -> str:
    words = [f"rank {state.rank}: {state.state}"]
    if state.host:
        words.append(f"host {state.host}")
    if state.pid:
        words.append(f"pid {state.pid}")
    if state.exit_code is not None:
        words.append(f"exit code {state.exit_code}")
    return ", ".join(words) + (f"\n{last}" if last else "")

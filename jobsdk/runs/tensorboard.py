"""Where a run's processes write for TensorBoard: found by the names of its files, without it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobsdk.runs.folder import RunFolder

_FILE = "events.out.tfevents."
_DEEPEST, _MOST = 8, 5000  # levels, and folders: a job may run in place in a home folder
_PASSED_OVER = {"node_modules", "site-packages", "__pycache__", "mlruns", "checkpoints"}


def folders(run: RunFolder) -> list[str]:
    """The folders with event files of a run that are on this machine: in its outputs, and in the folder in which its
    code ran. Of a folder that other runs use, too, those with files that are newer than the run."""
    spec = run.read_json("native.json")
    places = [str(run.path / "outputs"), str(run.path / "code")]
    if spec.get("in_place") and spec.get("working_dir"):
        places.append(str(spec["working_dir"]))
    since = float(run.facts().get("created") or 0.0)
    found: dict[str, str] = {}  # by what they really are: ./outputs is a link
    for place in places:
        for folder in _with_events(place, since):
            found.setdefault(os.path.realpath(folder), folder)
    return sorted(found.values())


def command(found: list[str]) -> str:
    """What shows those folders; empty where there are none."""
    if not found:
        return ""
    return f"tensorboard --logdir {shlex.quote(os.path.commonpath(found))}"


def _with_events(place: str, since: float) -> Iterator[str]:
    for seen, (folder, below, names) in enumerate(os.walk(place)):
        depth = folder[len(place) :].count(os.sep)
        if seen >= _MOST or depth >= _DEEPEST:
            below.clear()
        below[:] = [name for name in below if name not in _PASSED_OVER and not name.startswith(".")]
        if any(_FILE in name and _is_newer(os.path.join(folder, name), since) for name in names):
            yield folder


def _is_newer(path: str, since: float) -> bool:
    try:
        return os.stat(path).st_mtime >= since
    except OSError:
        return False

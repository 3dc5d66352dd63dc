"""How far a rank came: the latest step that it reported, to tell restarts that help from restarts that do not."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Iterator, List, Optional

from ..spec import mlflow_store, paths
from ..spec.ranks import Process

if TYPE_CHECKING:
    from ..spec.plan import Plan

_TAIL = 65536  # bytes at the end of a file that are read


def latest_step(plan: Plan, run_dir: str, process: Process, attempt: int) -> Optional[int]:
    """The latest step of a rank's `jobsdk.train.report` or MLflow metrics; -1 if it has reported none.

    None if the job has no use for it.
    """
    if not (plan["restarts"]["max"] and plan["restarts"].get("max_no_progress")):
        return None
    reported = _reported(paths.reports(run_dir, process.node_rank, process.rank, attempt))
    return max([-1, *reported, *_logged(plan["run"], paths.tracking_folder(run_dir, process.rank))])


def _reported(path: str) -> Iterator[int]:
    """The steps in a file of reports, a JSON object a line."""
    for line in _last_lines(path):
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            continue  # a part of a line, or a script's own
        if isinstance(step, int):
            yield step


def _logged(run: str, store: str) -> Iterator[int]:
    """The last step of each metric in a store of MLflow's file kind, whose lines are `time value step`."""
    for path in mlflow_store.files("%s/%s/%s/metrics" % (store, mlflow_store.EXPERIMENT_ID, run)):
        words = [b"", *_last_lines(path)][-1].split()
        if len(words) == 3 and words[2].isdigit():
            yield int(words[2])


def _last_lines(path: str) -> List[bytes]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read().splitlines()
    except OSError:
        return []

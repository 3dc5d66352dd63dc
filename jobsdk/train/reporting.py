"""What a process reports of its progress to the run."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from .context import Context, get_context
from .errors import TrainError

#: The file that takes the reports, a line of JSON each; jobsdk sets it for each rank.
FILE = "JOBSDK_REPORTS"
#: Where they go instead if Azure ML has started the rank, in the working directory: its service keeps what is there.
KEPT = "outputs/jobsdk/rank-%d.reports.log"
_LONGEST = 1000  # characters of a value that is no number


class _State:
    """What this process has reported so far."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.metrics: Dict[str, Any] = {}
        self.next_step: Optional[int] = None
        self.path: Optional[str] = None  # empty: nobody reads them
        self.has_warned = False


_state = _State()


def report(
    metrics: Mapping[str, Any],
    checkpoint: Any = None,
    *,
    step: Optional[int] = None,
    checkpoint_dir_name: Optional[str] = None,
) -> None:
    """Report metrics and a checkpoint of this process. Does not wait for other processes.

    `metrics` maps names to numbers, including those of numpy and torch with one element. Nested mappings become
    `outer/inner`, and other values are kept as text. `step` counts up from 0, after a restart from the last checkpoint.
    A `checkpoint` (a Checkpoint or a folder's path) is copied to `checkpoints/checkpoint_000000` and so on in the run's
    storage, or to `checkpoint_dir_name`: see `get_checkpoint`. The parts of several ranks, with different file names,
    form one checkpoint.

    Raises TrainError for wrong arguments, and OSError if the checkpoint cannot be stored. If the metrics cannot be
    written, a warning appears once, and the training continues.
    """
    here = get_context()
    values, step = begin(metrics, step, here)
    kept = None
    if checkpoint is not None:
        from . import checkpoints

        kept = checkpoints.keep(checkpoint, here, step, checkpoint_dir_name, values).path
    end(here, values, step, kept)


def begin(metrics: Mapping[str, Any], step: Optional[int], here: Context) -> Tuple[Dict[str, Any], int]:
    """The plain values of `metrics`, and the step that they are of. Raises TrainError."""
    global _state
    if _state.pid != os.getpid():  # a forked process reports for itself
        _state = _State()
    if not isinstance(metrics, Mapping):
        fix = "report({'loss': loss})"
        raise TrainError("report() takes a mapping of names to values, not %s. Fix: %s" % (type(metrics).__name__, fix))
    values = dict(_flat(metrics, ""))
    if step is None:
        step = _state.next_step if _state.next_step is not None else _first_step(here)
    elif isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TrainError("report(step=...) must be a whole number, not %r" % (step,))
    return values, int(step)


def end(here: Context, values: Mapping[str, Any], step: int, kept: Optional[str] = None) -> None:
    """Write a report; `kept` is where its checkpoint is."""
    _state.next_step = step + 1
    _state.metrics.update(values)
    if _state.path is None:
        _state.path = _place(here)
    _write(_state.path, {"t": time.time(), "rank": here.rank, "step": step, "metrics": values, "checkpoint": kept})


def note_checkpoint(here: Context, step: int, kept: str) -> None:
    """Write that the checkpoint of an earlier report is there, from another thread."""
    _write(_state.path or "", {"t": time.time(), "rank": here.rank, "step": step, "metrics": {}, "checkpoint": kept})


def get_metrics() -> Dict[str, Any]:
    """Return the last value of each metric that this process reported."""
    return dict(_state.metrics) if _state.pid == os.getpid() else {}


def _first_step(here: Context) -> int:
    if not here.restart_count:
        return 0
    from . import checkpoints

    found = checkpoints.newest(here)
    return found.step + 1 if found else 0


def _place(here: Context) -> str:
    """The file for the reports of this process."""
    given = os.environ.get(FILE, "")
    if given or here.run_dir is not None or "AZUREML_RUN_ID" not in os.environ:
        return given
    path = os.path.abspath(KEPT % here.rank)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except OSError:
        pass  # said when it is to be written
    return path


def _write(path: str, line: Dict[str, Any]) -> None:
    if not path:
        return
    line["metrics"] = {name: _for_json(value) for name, value in line["metrics"].items()}
    data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    try:
        rights = os.stat(os.path.dirname(path)).st_mode  # of the run's folder
        number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644 & rights)
        try:
            os.write(number, data)  # in one piece: others may append to it, too
        finally:
            os.close(number)
    except OSError as error:
        if not _state.has_warned:
            _state.has_warned = True
            sys.stderr.write("report(): %s cannot be written: %s. The training goes on\n" % (path, error.strerror))


def _flat(metrics: Mapping[str, Any], before: str) -> Iterator[Tuple[str, Any]]:
    for key, value in metrics.items():
        name = before + str(key)
        if isinstance(value, Mapping):
            yield from _flat(value, name + "/")
        else:
            yield name, _plain(value)


def _plain(value: Any) -> Any:
    """A number as Python's own, anything else as text."""
    if isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "item") and hasattr(value, "dtype"):
        try:
            value = value.item()
        except (ValueError, RuntimeError, TypeError):
            pass  # more than one element
        if isinstance(value, (bool, int, float)):
            return value
    try:
        return float(value) if hasattr(value, "__float__") and not isinstance(value, str) else str(value)[:_LONGEST]
    except (ValueError, TypeError, RuntimeError):
        return str(value)[:_LONGEST]


def _for_json(value: Any) -> Any:
    """JSON has no number for nan and the infinities."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)

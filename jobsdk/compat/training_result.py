"""The result of a training: its workers' metrics and checkpoints, and what its function returned."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.spec import paths
from jobsdk.errors import ComputeError

if TYPE_CHECKING:
    from jobsdk.client.run import Run
    from jobsdk.train import Checkpoint

Metrics = dict[str, Any]
#: How `jobsdk.train` writes the numbers that JSON has not.
_NO_JSON = {"nan", "inf", "-inf"}


class Result:
    """Names are those of Ray Train's Result.

    `metrics` are those that rank 0 reported last, None where it reported none; `checkpoint` is the last one that was
    reported, `best_checkpoints` all of them, each with rank 0's metrics of that report; `path` the folder that they are
    in, or the run's. `return_value` is what the function returned in rank 0. `error` is None, for what has failed is
    raised. `run` is the run.
    """

    error: None = None

    def __init__(
        self,
        run: Run,
        path: str,
        reports: list[Metrics],
        best_checkpoints: list[tuple[Checkpoint, Metrics]],
        return_value: Any,
    ) -> None:
        self.run = run
        self.path = path
        self.metrics = reports[-1] if reports else None
        self.checkpoint = best_checkpoints[-1][0] if best_checkpoints else None
        self.best_checkpoints = best_checkpoints
        self.return_value = return_value
        self._reports = reports

    def __repr__(self) -> str:
        return f"Result(metrics={self.metrics!r}, checkpoint={self.checkpoint!r}, path={self.path!r})"

    @property
    def metrics_dataframe(self) -> Any:
        """Return a pandas DataFrame with a row for each report of rank 0; None without reports. Needs pandas."""
        if not self._reports:
            return None
        import pandas  # type: ignore[import-untyped, unused-ignore]

        return pandas.DataFrame(self._reports)

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Return the checkpoint with the greatest (`mode` "max") or least ("min") value of a metric; None without any.

        Raises ValueError for another mode, and for a metric that no report with a checkpoint has.
        """
        if mode not in ("max", "min"):
            raise ValueError(f"mode must be max or min, not {mode!r}")
        if not self.best_checkpoints:
            return None
        found = [one for one in self.best_checkpoints if isinstance(one[1].get(metric), int | float)]
        if not found:
            known = sorted({name for _, metrics in self.best_checkpoints for name in metrics})
            raise ValueError(f"no checkpoint was reported with a number {metric!r}: there are {', '.join(known)[:200]}")
        choose = max if mode == "max" else min
        return choose(found, key=lambda one: one[1][metric])[0]


def of(run: Run) -> Result:
    """The result of a training that has completed."""
    lines = _lines(run)
    # A checkpoint that was written beside the training has a line of its own, without metrics.
    reports = [line["metrics"] for line in lines if line["rank"] == 0 and (line["metrics"] or not line["checkpoint"])]
    checkpoints: dict[str, Metrics] = {}
    steps: dict[tuple[int, int], Metrics] = {}
    for line in lines:
        metrics = steps.setdefault((line["rank"], line["step"]), {})
        metrics.update(line["metrics"])
        if line.get("checkpoint"):
            known = checkpoints.pop(line["checkpoint"], {})
            checkpoints[line["checkpoint"]] = metrics if line["rank"] == 0 or not known else known
    return Result(run, *_found(run, checkpoints, reports), run.result())


def _lines(run: Run) -> list[dict[str, Any]]:
    """The reports of all ranks, of all starts of the job, in the order in which they were made."""

    folder, plan = str(run.folder.path), run.folder.plan()
    found = []
    for restart in range(run.folder.recorded_state().restarts + 1):
        for rank in range(distributions.of(plan).world_size()):
            path = paths.reports(folder, distributions.of(plan).node_of(rank), rank, restart)
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    found += [json.loads(line) for line in file if line.endswith("\n")]
    for line in found:
        line["metrics"] = {name: float(one) if one in _NO_JSON else one for name, one in line["metrics"].items()}
    return sorted(found, key=lambda line: float(line["t"]))


def _found(
    run: Run, checkpoints: dict[str, Metrics], reports: list[Metrics]
) -> tuple[str, list[Metrics], list[tuple[Checkpoint, Metrics]]]:
    """Where the checkpoints are on this machine: at their own place, or among the outputs that came back."""
    from jobsdk.train import Checkpoint

    places: list[tuple[Checkpoint, Metrics]] = []
    outputs: str | None = None
    for path, metrics in checkpoints.items():
        if not os.path.isdir(path):
            outputs = outputs if outputs is not None else _fetched(run)
            path = os.path.join(outputs, "checkpoints", os.path.basename(path))
        if os.path.isdir(path):
            places.append((Checkpoint(path), metrics))
    folder = os.path.dirname(os.path.dirname(places[-1][0].path)) if places else str(run.folder.path)
    return folder, reports, places


def _fetched(run: Run) -> str:
    """The folder here with what the job wrote to ./outputs."""
    here = os.path.join(str(run.folder.path), "outputs", "default")
    if os.path.isdir(os.path.join(here, "checkpoints")):
        return here
    try:
        return run.target.fetch(run.folder, ["default"])["default"]
    except ComputeError as error:
        import logging

        logging.getLogger("jobsdk").warning("the checkpoints of run %s did not come back: %s", run.name, error)
        return here

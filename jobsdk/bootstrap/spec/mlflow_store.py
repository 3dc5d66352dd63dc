"""The run's own MLflow store: what the processes of a job log with MLflow lands in the run's folder.

It is a store of MLflow's file kind, which needs nothing but files, so that it is made here without MLflow and read
again without it. In it one MLflow run stands for the job, and every rank resumes that run, as on Azure ML. But
MLflow's file store loses or refuses what several processes log at the same moment. So rank 0 alone writes into it
while the job runs; each other rank has a store of its own beside it, which is put into the first at the job's end.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, Mapping

from ..system import private
from . import paths

if TYPE_CHECKING:
    from .plan import Plan

URI = "MLFLOW_TRACKING_URI"
NAMES = (URI, "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID", "MLFLOW_ALLOW_FILE_STORE")
#: The job's experiment is MLflow's first one, so that code that names none finds it, too.
EXPERIMENT_ID = "0"
_RUNNING, _FINISHED, _FAILED, _KILLED = 1, 3, 4, 5  # MLflow's RunStatus
_STATUS = {"Completed": _FINISHED, "Canceled": _KILLED, "TimedOut": _KILLED}


def has_store(plan: Plan, inherited: Mapping[str, str]) -> bool:
    """Whether the run has a store of its own: where the user names a tracking server, all is left to that."""
    return URI not in plan["environment"] and URI not in inherited


def variables(plan: Plan, run_dir: str, rank: int) -> Dict[str, str]:
    """What MLflow reads to log into the job's run. Pure."""
    # MLflow 3 refuses a store of files unless it is allowed.
    values = (paths.tracking_uri(run_dir, rank), _experiment(plan), EXPERIMENT_ID, plan["run"], "true")
    return dict(zip(NAMES, values))


def prepare(plan: Plan, run_dir: str, ranks: Iterable[int]) -> None:
    """Make the stores of some ranks, with the job's experiment and run in them, unless they are there."""
    run, now = plan["run"], int(time.time() * 1000)
    location = "%s/%s" % (paths.tracking_uri(run_dir, 0), EXPERIMENT_ID)  # all ranks' artifacts go to one place
    experiment = {
        "experiment_id": EXPERIMENT_ID, "name": _experiment(plan), "artifact_location": location,
        "lifecycle_stage": "active", "creation_time": now, "last_update_time": now,
    }  # fmt: skip
    facts = {
        "run_id": run, "run_uuid": run, "run_name": plan["display_name"], "experiment_id": EXPERIMENT_ID,
        "user_id": os.environ.get("USER", ""), "status": _RUNNING, "start_time": now, "end_time": None,
        "lifecycle_stage": "active", "artifact_uri": "%s/%s/artifacts" % (location, run), "tags": [],
        "source_type": 4, "source_name": "", "source_version": "", "entry_point_name": "",
    }  # fmt: skip
    for rank in ranks:
        experiment_folder = "%s/%s" % (paths.tracking_folder(run_dir, rank), EXPERIMENT_ID)
        run_folder = "%s/%s" % (experiment_folder, run)
        if not os.path.exists(run_folder + "/meta.yaml"):
            for name in ("metrics", "params", "artifacts"):
                os.makedirs("%s/%s" % (run_folder, name), exist_ok=True)
            _write_meta(experiment_folder, experiment)
            _write_meta(run_folder, facts)


def tidy(run_dir: str, ranks: Iterable[int]) -> None:
    """Take away those stores, but for the first one, in which nothing was logged; the ranks have ended."""
    try:
        for rank in ranks:
            if rank != 0:
                _remove_unused(paths.tracking_folder(run_dir, rank))
    except OSError:
        pass  # `finish` tries it again, and says what is wrong


def finish(run: str, run_dir: str, status: str, ended: float) -> None:
    """Put all ranks' stores into one, and write into it how the job ended: MLflow in a rank only knows of that rank.

    Where nothing was logged no store is left.
    """
    store = paths.tracking_folder(run_dir, 0)
    try:
        for other in list(others(run_dir)):
            if not _remove_unused(other):
                _merge(other, store, run)
        if os.path.isdir(paths.tracking_others(run_dir)) and not os.listdir(paths.tracking_others(run_dir)):
            os.rmdir(paths.tracking_others(run_dir))
        if not _remove_unused(store):
            _end_runs(store, run, _STATUS.get(status, _FAILED), int(ended * 1000))
    except OSError as error:  # the job's end is not to fail for it
        os.write(2, ("the MLflow store is not complete: %s\n" % error).encode())


def _merge(other: str, store: str, run: str) -> None:
    """Move one store into another. Points are added to the points there; anything else that is there stays."""
    metrics = "%s/%s/%s/metrics/" % (other, EXPERIMENT_ID, run)
    for path in list(files(other)):
        target = store + path[len(other) :]
        try:
            if not os.path.exists(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.replace(path, target)
                continue
            if path.startswith(metrics):
                with open(path, "rb") as source, open(target, "ab") as file:
                    file.write(source.read())
            os.unlink(path)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            pass  # a metric `loss` of one rank and `loss/x` of another: it stays where it is, and is read there
    if not any(files(other)):
        _remove_folders(other)


def _end_runs(store: str, run: str, status: int, ended: int) -> None:
    """End the job's run in the store, and those that a script started and could not end."""
    for experiment in os.listdir(store):
        for name in os.listdir("%s/%s" % (store, experiment)) if experiment.isdigit() else ():
            folder = "%s/%s/%s" % (store, experiment, name)
            if not os.path.exists(folder + "/meta.yaml"):
                continue
            with open(folder + "/meta.yaml", encoding="utf-8") as file:
                text = file.read()
            if name == run or re.search(r"^status: %d$" % _RUNNING, text, re.MULTILINE):
                for key, value in (("status", status), ("end_time", ended)):
                    text = re.sub(r"^%s:.*$" % key, "%s: %d" % (key, value), text, flags=re.MULTILINE)
                private.replace(folder + "/meta.yaml", text.encode())


def _experiment(plan: Plan) -> str:
    return plan["environment"].get("MLFLOW_EXPERIMENT_NAME") or plan["experiment"] or "Default"


def others(run_dir: str) -> Iterator[str]:
    """The stores of the ranks after the first, in the order of ranks."""
    folder = paths.tracking_others(run_dir)
    if os.path.isdir(folder):
        for rank in sorted(int(name) for name in os.listdir(folder) if name.isdigit()):
            yield "%s/%d" % (folder, rank)


def files(folder: str) -> Iterator[str]:
    for path, _, names in os.walk(folder):
        for name in names:
            yield "%s/%s" % (path, name)


def _remove_unused(store: str) -> bool:
    """Take away a store that has no file but the two that `prepare` writes; whether it is gone."""
    found = list(files(store))
    if len(found) > 2:
        return False
    for path in found:
        os.unlink(path)
    _remove_folders(store)
    return True


def _remove_folders(folder: str) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        os.rmdir(path)


def _write_meta(folder: str, content: Mapping[str, Any]) -> None:
    """One key a line, as MLflow writes it; a value in JSON is one in YAML, too."""
    with open(folder + "/meta.yaml", "w", encoding="utf-8") as file:
        file.write("".join("%s: %s\n" % (key, json.dumps(value)) for key, value in content.items()))

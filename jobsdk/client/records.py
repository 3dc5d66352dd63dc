"""What is kept of a submitted job beside its plan: facts for lists of runs, and the job file. Both hold no secret."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.system import private
from jobsdk.job.paths import working_directory
from jobsdk.runs.folder import RunFolder

if TYPE_CHECKING:
    from jobsdk.client.submission import Submission


def facts(compiled: Submission) -> dict[str, Any]:
    """run.json: what an index of runs shows, and who submitted it."""
    from jobsdk.bootstrap.system import processes
    from jobsdk.job.secret_rules import without

    job, plan = without(compiled.job), compiled.plan
    return {
        "name": compiled.name,
        "created": time.time(),
        "display_name": job.display_name or compiled.name,
        "experiment": job.experiment_name or os.path.basename(working_directory()) or "Default",
        "tags": dict(job.tags),
        "properties": dict(job.properties),
        "description": job.description,
        "compute": compiled.compute.name,
        "distribution": plan["distribution"]["type"],
        "nodes": plan["nodes"],
        "processes": distributions.of(plan).world_size(),
        "archived": False,
        "working_dir": compiled.spec.get("working_dir"),
        "command": job.command,
        "host": os.uname().nodename,
        "submitter_pid": os.getpid(),
        "submitter_start": processes.start_time(os.getpid()),
    }


def note(folder: RunFolder, compiled: Submission) -> None:
    """Keep what is not needed for the start: what the code is, the job file, which would run the same code again, and
    the history."""
    from jobsdk.job.secret_rules import without
    from jobsdk.runs.history import History

    if compiled.code is not None:
        folder.write_json("snapshot.json", compiled.code.to_dict() | folder.read_json("snapshot.json"))
    job = without(compiled.job)
    if job.code is not None and folder.code.exists():
        job.code = str(folder.code)
    text = job.to_yaml(lambda path: str(job.resolve(path)))
    with open(folder.path / "job.yml", "w", encoding="utf-8", opener=private.opener) as file:
        file.write(text)
    History().record(folder)

"""What is kept of a submitted job beside its plan: facts for lists of runs, and the job file. Both hold no secret."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobsdk import __version__
from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.system import private
from jobsdk.job.paths import working_directory
from jobsdk.runs.folder import RunFolder

if TYPE_CHECKING:
    from jobsdk.client.submission import Submission
    from jobsdk.snapshot.git import Commit


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
        "user": _user(),
        "cwd": working_directory(),
        "jobsdk": __version__,
        "submitter_pid": os.getpid(),
        "submitter_start": processes.start_time(os.getpid()),
    }


def note(folder: RunFolder, compiled: Submission) -> None:
    """Keep what is not needed for the start: what the code is, its commit, the job file, which would run the same code
    again, and the history."""
    from jobsdk.job.secret_rules import without
    from jobsdk.runs.history import History

    if compiled.code is not None:
        folder.write_json("snapshot.json", compiled.code.to_dict() | folder.read_json("snapshot.json"))
    commit = _commit(compiled)
    if commit is not None:
        folder.update_facts({"git": commit._asdict()})
    job = without(compiled.job)
    if job.code is not None and folder.code.exists():
        job.code = str(folder.code)
    text = job.to_yaml(lambda path: str(job.resolve(path)))
    with open(folder.path / "job.yml", "w", encoding="utf-8", opener=private.opener) as file:
        file.write(text)
    History().record(folder)


def _commit(compiled: Submission) -> Commit | None:
    """Of the code's folder, or of the working directory for code that is made for the run, such as a function's."""
    from jobsdk.job.paths import is_local
    from jobsdk.snapshot.git import commit_of

    job = compiled.job
    code = [job.resolve(job.code)] if job.code is not None and is_local(job.code) else []
    return next(filter(None, map(commit_of, [*code, Path(working_directory())])), None)


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's number without a name
        return str(os.getuid())

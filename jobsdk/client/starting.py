"""Starting a compiled job: its folder, then its engine."""

from __future__ import annotations

import os

from jobsdk import compute as computes
from jobsdk.bootstrap.spec import plan_file
from jobsdk.client import records
from jobsdk.client.run import Run
from jobsdk.client.submission import Submission
from jobsdk.compute.base import Warn
from jobsdk.errors import RunExists
from jobsdk.planning.recognition import keep_marks
from jobsdk.planning.secrets import complete
from jobsdk.runs.folder import RunFolder


def start(compiled: Submission, warn: Warn) -> Run:
    """Start what `compile` gave. Raises JobsdkError, also for a secret that is not set here."""
    hidden = complete(compiled.secrets, compiled.plan["secrets"], os.environ)
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        warn(text)

    for finding in compiled.warnings:
        tell(str(finding).replace("warning: ", "", 1))
    compiled.compute.prepare(compiled.spec, tell)
    try:
        folder = RunFolder.create(compiled.name, compiled.compute.folder_mode)
    except RunExists:
        known = RunFolder.find(compiled.name)
        if compiled.compute.is_same(compiled.spec, known):
            return Run(known)
        raise
    try:
        folder.write_json("plan.json", compiled.plan)
        if hidden:
            plan_file.write_secrets(str(folder.path), hidden)
        keep_marks(folder, hidden, os.environ)
        folder.write_json("native.json", compiled.native)
        folder.write_private("compute.json", compiled.compute.settings)
        folder.write_json("run.json", records.facts(compiled))
        folder.append_event("submitted", by=os.getpid())
        compiled.compute.submit(compiled.spec, folder, tell)
    except BaseException:
        import shutil

        from jobsdk.bootstrap.system import processes

        processes.kill_run(str(folder.path))  # an interrupt may come when it has been started already
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    for text in said:
        folder.append_event("warning", message=text, told=True)
    records.note(folder, compiled)  # while the job starts already
    if computes.user_file().is_file():  # there may be a retention in it
        from jobsdk.client.deletion import retain

        retain(warn)
    return Run(folder)

"""Computes whose engine starts processes within a session: Spark, Ray. Somebody has to hold that session.

A session that this process has open already holds its runs: they are driven by a thread, and this process does not end
before them. Otherwise each run has a driver process of its own, which goes on without the terminal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from abc import abstractmethod
from typing import TYPE_CHECKING

from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.system import private, processes
from jobsdk.compute.base import Compute, Spec, Warn
from jobsdk.compute.ends import EngineEnd, EngineEnded, finish
from jobsdk.home import locked
from jobsdk.runs.children import adopt, reap
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.refresh import Pace

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.compute.engine.hold import Hold
    from jobsdk.job.command import CommandJob
    from jobsdk.planning.placement import Placement

_DRIVER_LOG = "driver.log"


class EngineCompute(Compute):
    """What Spark and Ray have in common. `drive` is what each does its own way."""

    pace = Pace(0.2, 1.0)

    def plan(self, job: CommandJob, at: Placement, *, name: str) -> Plan:
        """As elsewhere, but that no node which is taken away is waited for: no other comes in its place."""
        plan = super().plan(job, at, name=name)
        return {**plan, "restarts": {**plan["restarts"], "max_preemptions": 0}}

    @abstractmethod
    def has_session(self) -> bool:
        """Whether this process has a session of the engine open in which a run of this compute belongs."""

    @abstractmethod
    def drive(self, hold: Hold) -> None:
        """Start the nodes of a run, bring in what they write, pass on requests, and return once all have ended.

        Raises EngineEnded where the engine has a word on how the job ended, ComputeError where it cannot be used.
        """

    def submit(self, spec: Spec, run: RunFolder, warn: Warn) -> None:
        if self.has_session():
            _own(run, os.getpid())
            threading.Thread(target=self.lead, args=(spec, run), name=f"jobsdk-{run.name}").start()
            return
        with open(run.logs / _DRIVER_LOG, "ab", opener=private.opener) as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", "jobsdk.compute.engine", str(run.path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "JOBSDK_HOME": str(run.path.parent.parent)},
            )  # fmt: skip
        adopt(driver.pid)
        driver.returncode = 0  # `reap` waits for it, not subprocess
        _own(run, driver.pid)

    def lead(self, spec: Spec, run: RunFolder) -> None:
        """Drive a run to its end, and write that down whatever happens."""
        from jobsdk.compute.engine.hold import Hold
        from jobsdk.errors import JobsdkError

        hold, end = Hold(run, spec), None
        try:
            self.drive(hold)
        except EngineEnded as ended:
            end = ended.end
        except JobsdkError as error:
            end = EngineEnd.failed(str(error))
        except BaseException as error:
            end = EngineEnd.fault(error)
            if not isinstance(error, Exception):
                raise
        finally:
            hold.finish(end)

    def cancel(self, run: RunFolder, by: str) -> None:
        if self.status(run).is_terminal:
            return
        run.append_event("cancel_requested", by=by)
        with open(paths.cancel_mark(str(run.path)), "w", opener=private.opener):
            pass

    def ask(self, run: RunFolder, request: str) -> None:
        private.make_within(str(run.path / "requests"))
        with open(run.path / "requests" / request, "w", opener=private.opener):
            pass

    def refresh(self, run: RunFolder) -> None:
        reap()
        if run.recorded_state().is_terminal or run.owner() is None or run.living_owner() is not None:
            return
        with locked(run.path / "refresh.lock"):
            if not run.recorded_state().is_terminal:  # its last words may have come between our two looks
                finish(run, EngineEnd.lost("the process that drove the run was killed; with it its nodes ended"))


def lead(path: str) -> None:
    """Drive the run in a folder: what the driver process does."""
    from pathlib import Path

    from jobsdk import compute as computes

    run = RunFolder(Path(path))
    target = computes.of_run(run)
    assert isinstance(target, EngineCompute)
    target.lead(run.read_json("native.json"), run)


def _own(run: RunFolder, pid: int) -> None:
    """Note which process drives the run: with its end the run's has come."""
    run.write_json("owner.json", {"pid": pid, "start": processes.start_time(pid)})

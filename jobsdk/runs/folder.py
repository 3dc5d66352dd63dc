"""Runs of this machine: a folder each under `$JOBSDK_HOME/runs`, and what its events say of the run.

The folder is the truth about a run. Everything here works from any process, whoever submitted the run.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jobsdk.bootstrap.spec import events as writing
from jobsdk.bootstrap.spec import exit_codes, mlflow_store, package_lists, plan_file
from jobsdk.bootstrap.spec import paths as layout
from jobsdk.bootstrap.system import private, processes
from jobsdk.errors import JobsdkError, RunExists, RunNotFound
from jobsdk.home import locked, make_folder, runs_folder
from jobsdk.runs.children import reap
from jobsdk.runs.refresh import Pace, Refresh
from jobsdk.runs.state import EventReader, State

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from jobsdk.bootstrap.spec.event import Event, Facts
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.bootstrap.spec.report import RunReport

_LEFT_OUT = "left-out.json"  # by output: what of it is not here
LOCAL = "local"  # the type of compute in native.json that is this machine
_SUBMITTER_GRACE_S = 10.0  # seconds between the submission and the supervisor's first word


class RunFolder:
    """One run's folder. Its methods read what is on disk now; the object keeps nothing but the path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    # -- finding and making ----------------------------------------------------------------------------------

    @classmethod
    def create(cls, name: str, mode: int = private.FOLDER_MODE) -> RunFolder:
        """Make the folder of a new run; its content gets the rights of `mode`. Raises RunExists for a taken name."""
        folder = cls(runs_folder() / name)
        for parent in (folder.path.parent.parent / package_lists.FOLDER, folder.path.parent):
            make_folder(parent, mode)
        try:
            folder.path.mkdir(mode & 0o700)
            folder.path.chmod(mode)
        except FileExistsError:
            raise RunExists(
                f"there is a run named {name!r} already. Fix: give the job another name, or none to have one made up"
            ) from None
        private.make_within(str(folder.logs))
        return folder

    @classmethod
    def find(cls, name: str) -> RunFolder:
        """The folder of a run, whose name may be cut where no other run's begins so.

        Raises RunNotFound, with the nearest names there are.
        """
        if not isinstance(name, str):
            raise JobsdkError(f"expected the name of a run, or a Run, got {name!r}. Fix: pass run or run.name")
        folder = cls(runs_folder() / name)
        if name and "/" not in name and name not in (".", "..") and folder.path.is_dir():
            return folder
        from jobsdk.findings import meant, show

        names = [run.name for run in cls.all()]
        begun = sorted(known for known in names if name and known.startswith(name))
        if len(begun) == 1:
            return cls(runs_folder() / begun[0])
        if begun:
            raise RunNotFound(f"{len(begun)} runs have names that begin with {show(name)}: {', '.join(begun[:5])}")
        hint = meant(name, names, "`jobsdk job list` shows the runs there are")
        raise RunNotFound(f"there is no run named {show(name)} in {runs_folder()}: {hint}")

    @classmethod
    def all(cls) -> Iterator[RunFolder]:
        """Every run of this machine, in no order."""
        try:
            with os.scandir(runs_folder()) as entries:
                names = [entry.name for entry in entries if entry.is_dir()]  # or a link to one, on a shared disk
        except FileNotFoundError:
            return iter(())
        return (cls(runs_folder() / name) for name in names)

    # -- what is in it ---------------------------------------------------------------------------------------

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def code(self) -> Path:
        """The private copy of the code; absent for a run in place."""
        return self.path / "code"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    def read_json(self, name: str) -> dict[str, Any]:
        """One of the folder's JSON files; empty if it is not there (yet)."""
        try:
            content = json.loads((self.path / name).read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace one of the folder's JSON files as a whole."""
        writing.write_json(str(self.path / name), content)

    def note_left_out(self, left: Mapping[str, Iterable[object]]) -> None:
        """Remember what of the outputs was not brought here, by the name of the output."""
        if any(left.values()):
            known = self.read_json(_LEFT_OUT)
            self.write_json(_LEFT_OUT, known | {name: [*known.get(name, ()), *map(str, left[name])] for name in left})

    def left_out(self, output: str) -> list[str]:
        """What of an output was not brought here, and why."""
        return [str(one) for one in self.read_json(_LEFT_OUT).get(output, ())]

    def write_private(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a new JSON file of the folder that only this user can read: it may hold passwords."""
        plan_file.write_private(str(self.path / name), json.dumps(content, indent=1) + "\n")

    def facts(self) -> dict[str, Any]:
        """run.json: what an index of runs shows."""
        return self.read_json("run.json")

    def update_facts(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change fields of run.json; returns it as it is now. Safe with others that change it at once."""
        with locked(self.path / "run.lock"):
            facts = {**self.facts(), **changes}
            self.write_json("run.json", facts)
        return facts

    def plan(self) -> Plan:
        return cast("Plan", self.read_json("plan.json"))

    def report(self) -> RunReport:
        """report.json; empty before the run's end."""
        return cast("RunReport", self.read_json("report.json"))

    def append_event(self, event: str, **facts: Unpack[Facts]) -> None:
        """Add an event: one append of a whole line, safe with any number of writers."""
        writing.append(str(self.path), event, **facts)

    def events(self) -> list[Event]:
        return EventReader(self.events_file).read()

    def output_paths(self, folder: str | None = None) -> dict[str, str]:
        """Where each named output of the run is, as an absolute path: of this machine, or of the one where the run's
        folder is `folder`."""
        plan, folder = self.plan(), folder or str(self.path)
        paths: dict[str, str] = {}
        for name, given in plan.get("outputs", {}).items():
            uri, own = given["uri"], layout.output_path(plan, name, folder)
            paths[name] = own if layout.stays_with_run(uri) else str(uri)
        return paths

    # -- its state -------------------------------------------------------------------------------------------

    def state(self) -> State:
        """What the events say, after finding out whether the run was lost."""
        state = self.recorded_state()
        if not state.is_terminal and self._is_abandoned(state):
            try:
                self._bury(state.status == "CancelRequested")
            except OSError as error:  # a full or read-only disk: told all the same
                message = f"the run's supervisor is dead; that could not be written down: {error.strerror}"
                end: Event = {"event": "ended", "status": "Lost", "exit_code": exit_codes.LOST, "message": message}
                state.feed([{"t": time.time(), **end}])
                return state
            state = self.recorded_state()
        return state

    def recorded_state(self) -> State:
        """What the events say, taken at their word."""
        state = State()
        state.feed(self.events())
        return state

    def owner(self) -> tuple[int, int | None] | None:
        """(pid, start time) of the supervisor; None before its first word."""
        found = self.read_json("owner.json")
        return (found["pid"], found["start"]) if found else None

    def living_owner(self) -> int | None:
        """The supervisor's pid if it lives. A later process with the same pid does not count."""
        owner = self.owner()
        if owner is None or owner[1] is None:  # it had ended before its start could be noted
            return None
        return owner[0] if processes.start_time(owner[0]) == owner[1] else None

    def _is_abandoned(self, state: State) -> bool:
        """Whether nobody is left who could bring the run to its end."""
        if not is_local(self):
            return False  # its engine is asked, by its compute
        facts = self.facts()
        if facts.get("host", os.uname().nodename) != os.uname().nodename:
            return False  # the home is shared: only the run's own machine knows its processes
        owner = self.owner()
        if owner is None and state.supervisor is not None:
            owner = state.supervisor["pid"], state.supervisor["start"]
        if owner is None:  # killed while submitting?
            since = state.submitted or facts.get("created") or self.path.stat().st_mtime
            if time.time() - since < _SUBMITTER_GRACE_S:
                return False
            owner = facts.get("submitter_pid") or 0, facts.get("submitter_start")
        reap()
        if owner[0] and processes.start_time(owner[0]) == owner[1]:
            return False
        # It may have written its last words between our look at the events and our look at it.
        return not self.recorded_state().is_terminal

    def _bury(self, cancelled: bool) -> None:
        """End what a dead supervisor left running, and write down how the run ended."""
        processes.kill_run(str(self.path))
        with locked(self.path / "run.lock"):  # of several that find it out, one writes
            if self.recorded_state().is_terminal:
                return
            report = self.report()
            if not report:
                status, code = "Lost", exit_codes.LOST
                message = "the run's supervisor was killed; what it had started was ended"
                if cancelled:
                    status, code, message = "Canceled", exit_codes.CANCELED, "cancelled on request"
                report = {
                    "run": self.name, "status": status, "exit_code": code, "message": message, "cause": None,
                    "ranks": [], "started": None, "ended": time.time(),
                }  # fmt: skip
                mlflow_store.finish(self.name, str(self.path), status, report["ended"])
                self.write_json("report.json", report)
            plan_file.forget_secrets(str(self.path))
            self.append_event(
                "ended", status=report["status"], exit_code=report["exit_code"], message=report["message"]
            )

    def wait(self, timeout: float | None = None, refresh: Refresh | None = None) -> State:
        """Wait for the run's end. Raises TimeoutError after `timeout` seconds.

        `refresh` brings the folder up to date (see `Compute.refresh`); without it the run must be of this machine.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause, state = 0.01, State()
        reader, checked = EventReader(self.events_file), time.monotonic()
        refresh = refresh or Refresh(self.state, Pace(0.5, 0.5))
        while True:
            refresh.when_due(time.monotonic())
            state.feed(reader.read())
            if state.is_terminal:
                reap()
                return state
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise TimeoutError(f"run {self.name} is still {state.status} after {timeout:g} s")
            if now - checked > 0.5 and not self.events_file.exists():
                return self.state()  # somebody has taken the events away
            time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - now)))
            pause = min(pause * 1.5, 0.2)

    def request_cancel(self, by: str) -> None:
        """Ask the supervisor to end the run; a run that has ended stays as it is."""
        if self.state().is_terminal:
            return
        self.append_event("cancel_requested", by=by)
        deadline = time.monotonic() + _SUBMITTER_GRACE_S
        while self.owner() is None and not self.state().is_terminal and time.monotonic() < deadline:
            time.sleep(0.01)  # it is just starting
        pid = self.living_owner()
        if pid is not None:
            processes.send([pid], signal.SIGTERM)


def is_local(run: RunFolder) -> bool:
    """Whether a supervisor of this machine starts the nodes, and no engine."""
    return bool(run.read_json("native.json").get("type", LOCAL) == LOCAL)

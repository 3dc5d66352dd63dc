"""Runs of this machine: a folder each under `$JOBSDK_HOME/runs`, and what its events say of the run.

The folder is the truth about a run. Everything here works from any process, whoever submitted the run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jobsdk.bootstrap.spec import events as writing
from jobsdk.bootstrap.spec import exit_codes, mlflow_store, plan_file
from jobsdk.bootstrap.spec import paths as layout
from jobsdk.bootstrap.system import private, processes
from jobsdk.errors import ComputeError, JobsdkError, RunExists, RunNotFound

#: The states in which a run can end.
TERMINAL = ("Completed", "Failed", "Canceled", "TimedOut", "Preempted", "Lost")
#: The states before, each with the event that brings it, in the order in which a run goes through them.
_STEPS = (
    ("submitted", "Queued"),
    ("preparing", "Preparing"),
    ("bootstrap_up", "Starting"),
    ("started", "Running"),
    ("cancel_requested", "CancelRequested"),
)
_STEP = {event: index for index, (event, _) in enumerate(_STEPS)}
STATUSES = (*(status for _, status in _STEPS), *TERMINAL)

_LEFT_OUT = "left-out.json"  # by output: what of it is not here
_SUBMITTER_GRACE = 10.0  # seconds between the submission and the supervisor's first word


def home() -> Path:
    """Where runs, caches and the history are: `$JOBSDK_HOME`, else `jobsdk` in the XDG data home."""
    chosen = os.environ.get("JOBSDK_HOME")
    if chosen:
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification: a relative path there is to be ignored.
    return (Path(data) if os.path.isabs(data) else Path.home() / ".local/share") / "jobsdk"


def make_folder(folder: Path, mode: int = private.FOLDER_MODE) -> Path:
    """Make a folder in `home()` that others cannot read, and return it. Raises JobsdkError if it cannot be made."""
    try:
        private.make_folder(str(folder), mode)
    except OSError as error:
        fix = f"set JOBSDK_HOME (now {os.environ.get('JOBSDK_HOME') or 'not set'}) to a folder that can be written"
        raise JobsdkError(f"{folder} cannot be made: {error.strerror}. Fix: {fix}") from None
    return folder


def generate_name() -> str:
    """A name that no other run has, in the manner of Azure ML's: `adjective_noun_10chars`."""
    adjectives, nouns = _ADJECTIVES.split(), _NOUNS.split()
    number = int.from_bytes(os.urandom(4), "big")
    tail = "".join(_ALPHABET[byte % 32] for byte in os.urandom(10))
    return f"{adjectives[number % len(adjectives)]}_{nouns[number // len(adjectives) % len(nouns)]}_{tail}"


class EventReader:
    """Reads a run's events as they are written: each `read()` gives those that are new since the last."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """The new events. A line that is not whole yet is left for the next time."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        return [event for event in map(_event, data.splitlines()) if event is not None]


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        # Only a full disk can cut an event short; the next one then stands on the same line.
        start = line.rfind(b'{"t":')
        return _event(line[start:]) if start > 0 else None
    return event if isinstance(event, dict) and "event" in event else None


class State:
    """What the events say so far: feed it events in their order."""

    def __init__(self) -> None:
        self.status = STATUSES[0]
        self.exit_code: int | None = None
        self.message: str | None = None
        self.submitted: float | None = None
        self.started: float | None = None
        self.ended: float | None = None
        self.restarts = 0  # how often the job has been started again
        self.ended_ranks: set[int] = set()  # since the last start
        self.supervisor: dict[str, Any] | None = None
        self._step = 0
        self._moved = 0.0  # when it came to that step

    @property
    def is_terminal(self) -> bool:
        return self.ended is not None

    def feed(self, events: list[dict[str, Any]]) -> None:
        """Take in more events. The first `ended` is the last word; before it a run only goes forward."""
        for event in events:
            kind = event["event"]
            if kind == "rank_ended":
                self.ended_ranks.add(event["rank"])
            elif self.is_terminal:
                continue
            elif kind == "ended":
                self.status, self.exit_code = event["status"], event["exit_code"]
                self.message, self.ended = event.get("message"), event["t"]
            elif kind == "supervisor_started":
                self.supervisor = event
            elif kind == "queued":
                # Also once its nodes were taken away; but not where it has got nodes since the engine was asked.
                if event["t"] >= self._moved and self.status != "CancelRequested":
                    self._step, self.status, self.message = 0, STATUSES[0], event.get("message")
            elif kind == "restart":
                self._moved, self.message = event["t"], None
                self.restarts = event["restart"]
                self.ended_ranks = set()
                if self.status != "CancelRequested":
                    self._step = _STEP["bootstrap_up"]
                    self.status = _STEPS[self._step][1]
            elif kind in _STEP:
                # Not every writer waits for the others: the last bootstrap_up may follow started.
                self._moved, self.message = event["t"], None
                self._step = max(self._step, _STEP[kind])
                self.status = _STEPS[self._step][1]
                if kind == "submitted":
                    self.submitted = event["t"]
                elif kind == "started" and self.started is None:
                    self.started = event["t"]


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
        """Make the folder of a new run; all that is written in it gets the rights of `mode`.

        Raises RunExists if there is one of that name.
        """
        folder = cls(runs_folder() / name)
        make_folder(folder.path.parent, mode)
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
        folder = cls(runs_folder() / name)
        if name and "/" not in name and name not in (".", "..") and folder.path.is_dir():
            return folder
        from jobsdk.job.findings import nearest, show

        names = [run.name for run in cls.all()]
        begun = sorted(known for known in names if name and known.startswith(name))
        if len(begun) == 1:
            return cls(runs_folder() / begun[0])
        if begun:
            raise RunNotFound(f"{len(begun)} runs have names that begin with {show(name)}: {', '.join(begun[:5])}")
        near = nearest(name, names)
        hint = f"did you mean {near!r}?" if near else "`jobsdk job list` shows the runs there are"
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

    def write_json(self, name: str, content: dict[str, Any]) -> None:
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
        from jobsdk.bootstrap.spec import plan_file

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

    def plan(self) -> dict[str, Any]:
        return self.read_json("plan.json")

    def report(self) -> dict[str, Any]:
        """report.json; empty before the run's end."""
        return self.read_json("report.json")

    def append_event(self, event: str, **facts: Any) -> None:
        """Add an event: one append of a whole line, safe with any number of writers."""
        writing.append(str(self.path), event, **facts)

    def events(self) -> list[dict[str, Any]]:
        return EventReader(self.events_file).read()

    def output_paths(self, folder: str | None = None) -> dict[str, str]:
        """Where each named output of the run is, as an absolute path: of this machine, or of the one where the run's
        folder is `folder`."""
        plan, folder = self.plan(), folder or str(self.path)
        paths: dict[str, str] = {}
        for name, given in plan.get("outputs", {}).items():
            uri = given["uri"]
            here = uri is not None and not layout.is_remote(uri)
            paths[name] = uri if here else layout.output_path(plan, name, folder)
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
                state.feed(
                    [
                        {
                            "t": time.time(),
                            "event": "ended",
                            "status": "Lost",
                            "exit_code": exit_codes.LOST,
                            "message": message,
                        }
                    ]
                )
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
        if not found:
            return None
        return found["pid"], found["start"]

    def living_owner(self) -> int | None:
        """The supervisor's pid if it lives. A later process with the same pid does not count."""
        owner = self.owner()
        if owner is None or owner[1] is None:  # it had ended before its start could be noted
            return None
        return owner[0] if processes.start_time(owner[0]) == owner[1] else None

    def _is_abandoned(self, state: State) -> bool:
        """Whether nobody is left who could bring the run to its end."""
        if self.read_json("native.json").get("type", "local") != "local":
            return False  # its engine is asked, by its compute
        facts = self.facts()
        if facts.get("host", os.uname().nodename) != os.uname().nodename:
            return False  # the home is shared: only the run's own machine knows its processes
        owner = self.owner()
        if owner is None and state.supervisor is not None:
            owner = state.supervisor["pid"], state.supervisor["start"]
        if owner is None:  # killed while submitting?
            since = state.submitted or facts.get("created") or self.path.stat().st_mtime
            if time.time() - since < _SUBMITTER_GRACE:
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
        refresh = refresh or Refresh(self._look, Pace(0.5, 0.5))
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

    def _look(self) -> None:
        self.state()

    def request_cancel(self, by: str) -> None:
        """Ask the supervisor to end the run; a run that has ended stays as it is."""
        if self.state().is_terminal:
            return
        self.append_event("cancel_requested", by=by)
        deadline = time.monotonic() + _SUBMITTER_GRACE
        while self.owner() is None and not self.state().is_terminal and time.monotonic() < deadline:
            time.sleep(0.01)  # it is just starting
        pid = self.living_owner()
        if pid is not None:
            import signal

            processes.send([pid], signal.SIGTERM)


class Pace(NamedTuple):
    """Seconds between two looks at where a run really is: while something goes on, and at most."""

    shortest: float
    longest: float


class Refresh:
    """Calls `refresh` at a pace that its engine can bear. `failed` hears, once in a row, why it could not be done."""

    def __init__(
        self, refresh: Callable[[], None], pace: Pace, failed: Callable[[str], None] = lambda why: None
    ) -> None:
        self._refresh = refresh
        self._shortest, self._longest = pace
        self._failed = failed
        self._pause = self._shortest
        self._due = time.monotonic() + self._shortest
        self._is_failing = False

    def when_due(self, now: float, *, is_busy: bool = False) -> None:
        """To be called often; `now` is the monotonic clock."""
        if is_busy:
            self._pause = self._shortest
            self._due = min(self._due, now + self._shortest)
        if now < self._due:
            return
        try:
            self._refresh()
            self._is_failing = False
        except ComputeError as error:
            if not self._is_failing:
                self._failed(str(error))
            self._is_failing = True
        self._pause = min(self._longest, self._pause * 1.2)
        self._due = time.monotonic() + self._pause


def runs_folder() -> Path:
    return home() / "runs"


class locked:
    """`with locked(path):` one process or thread at a time. The kernel frees the lock of one that dies."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        import fcntl

        self._file = private.open_file(str(self._path), os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


_children: set[int] = set()


def adopt(pid: int) -> None:
    """Note a supervisor that this process has started, so that it is reaped once it has ended."""
    _children.add(pid)


def reap() -> None:
    """Let go of supervisors started here that have ended: a long notebook would gather zombies."""
    for pid in list(_children):
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        except ChildProcessError:
            pass
        _children.discard(pid)


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # 32 characters; none is taken for another
_ADJECTIVES = (
    "able amber bold brave brisk calm clever coral crisp dapper eager fair fond frank gentle glad golden "
    "grand happy hardy honest icy jolly keen kind lively loyal lucid mellow merry mild modest neat nimble "
    "noble patient plucky polite proud quick quiet ready rosy sharp silent silver smart solid steady "
    "sunny swift tidy tough upbeat vivid warm wise witty zesty"
)
_NOUNS = (
    "acorn anchor apple arrow aspen badger basil beacon bear birch bridge brook canyon cedar cloud comet "
    "crane creek drum eagle falcon fern field finch fjord forest fox garden glacier grove harbor hawk "
    "heron hill island ivy jade kite lagoon lake lantern lark leaf lemon lily lynx maple marble meadow "
    "mint moon oak ocean olive orchid otter owl panda pear pebble pine plum pond puffin quartz quill rain "
    "raven reef river robin rocket sail salmon seal sky sparrow spruce star stone swan thistle tiger "
    "tulip valley violet walnut wave willow wolf wren yarrow"
)

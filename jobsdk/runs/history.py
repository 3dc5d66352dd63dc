"""An index of this machine's runs in SQLite, for listing and filtering.

The run folders are the truth: whatever is missing, stale or broken here is read from them again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from jobsdk import home as home_
from jobsdk.bootstrap.system import private
from jobsdk.findings import nearest
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.state import STATUSES, TERMINAL

_BUSY_S = 30.0  # seconds that a writer waits for the others
_VERSION = 1  # of the table; an index of another version is made anew
_COLUMNS = "name, created, status, exit_code, ended, experiment, compute, archived, facts, stamp"
_SCHEMA = f"CREATE TABLE runs ({_COLUMNS}, PRIMARY KEY (name)) WITHOUT ROWID"

Row = tuple[Any, ...]
Result = TypeVar("Result")


class History:
    """The runs under one home folder. Safe with any number of processes; holds nothing open between calls."""

    def __init__(self, home: Path | None = None) -> None:
        self._path = (home or home_.home()) / "history.db"

    def record(self, run: RunFolder) -> None:
        """Bring the index up to date about one run. Never fails: what it misses, the next `list` reads."""
        with contextlib.suppress(sqlite3.Error, OSError):
            self._do(lambda database: _write(database, [_row(run)], []))

    def list(
        self,
        *,
        status: str | None = None,
        tag: str | None = None,
        experiment: str | None = None,
        compute: str | None = None,
        archived: bool | None = False,
        max_results: int | None = None,
    ) -> list[dict[str, Any]]:
        """The runs that fit all that is given, the newest first: run.json with status, exit_code and ended.

        `status` in any spelling: `timed-out`, `cancelled`; `tag` is `key` or `key=value`; `archived`: False for active
        runs, True for archived ones, None for both. Raises ValueError for an unknown status.
        """
        wanted: dict[str, Any] = {"experiment": experiment, "compute": compute, "archived": archived}
        if status is not None:
            wanted["status"] = _spelled(status)
        wanted = {column: value for column, value in wanted.items() if value is not None}

        def query(database: sqlite3.Connection) -> list[dict[str, Any]]:
            _sync(database)
            found: list[dict[str, Any]] = []
            for name, exact, code, ended, text in _select(database, wanted):
                if max_results is not None and len(found) >= max_results:
                    break
                facts = json.loads(text)
                if tag is None or _has_tag(facts.get("tags") or {}, tag):
                    found.append({**facts, "name": name, "status": exact, "exit_code": code, "ended": ended})
            return found

        try:
            return self._do(query)
        except (sqlite3.OperationalError, OSError):  # a home that cannot be written to has no index
            with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
                database.execute(_SCHEMA)
                return query(database)

    # -- the database ----------------------------------------------------------------------------------------

    def _do(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Do something with the index; once more with a new one if this turns out to be broken."""
        try:
            with self._open() as database:
                return work(database)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
                raise  # locked for too long, a full disk: a new index would not help
        with self._alone():
            if not self._is_sound():  # else another process has made it anew meanwhile
                self._remove()
        with self._open() as database:
            return work(database)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        private.make_folder(str(self._path.parent))
        if not self._path.exists():  # SQLite would make it, and then the files beside it, with the rights of the umask
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        with contextlib.closing(connection) as database:
            if _version(database) != _VERSION:
                # The switch to WAL does not wait for others as statements do: one at a time.
                with self._alone():
                    if _version(database) != _VERSION:
                        database.execute("PRAGMA journal_mode = WAL")
                        database.execute("BEGIN IMMEDIATE")
                        database.execute("DROP TABLE IF EXISTS runs")
                        database.execute(_SCHEMA)
                        database.execute(f"PRAGMA user_version = {_VERSION}")
                        database.execute("COMMIT")
            database.execute("PRAGMA synchronous = NORMAL")  # a lost last write is read again
            yield database

    def _alone(self) -> home_.locked:
        return home_.locked(self._path.with_suffix(".lock"))

    def _is_sound(self) -> bool:
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as database:
                database.execute(f"SELECT {_COLUMNS} FROM runs LIMIT 1")  # nosec B608 # a constant
                return bool(database.execute("PRAGMA quick_check").fetchone()[0] == "ok")
        except sqlite3.DatabaseError:
            return False

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _row(run: RunFolder) -> Row:
    # The stamp is taken first: a change that comes between is then seen the next time.
    stamp, facts, state = _stamp(run), run.facts(), run.state()
    archived = bool(facts.get("archived"))
    created = facts.get("created") or state.submitted or 0.0
    where = facts.get("experiment"), facts.get("compute")
    text = json.dumps(facts)
    return run.name, created, state.status, state.exit_code, state.ended, *where, archived, text, stamp


def _stamp(run: RunFolder) -> int:
    try:
        return os.stat(run.path / "run.json").st_mtime_ns
    except OSError:
        return 0


def _sync(database: sqlite3.Connection) -> None:
    """Take in the runs that are new, changed or not at their end, and drop those whose folder is gone."""
    known = {name: (status, stamp) for name, status, stamp in database.execute("SELECT name, status, stamp FROM runs")}
    rows = []
    for run in RunFolder.all():
        status, stamp = known.pop(run.name, (None, None))
        if status not in TERMINAL or stamp != _stamp(run):
            rows.append(_row(run))
    if rows or known:
        _write(database, rows, known)


def _write(database: sqlite3.Connection, rows: Iterable[Row], gone: Iterable[str]) -> None:
    places = ", ".join("?" * len(_COLUMNS.split()))
    database.execute("BEGIN IMMEDIATE")
    database.executemany(f"INSERT OR REPLACE INTO runs VALUES ({places})", rows)
    database.executemany("DELETE FROM runs WHERE name = ?", ((name,) for name in gone))
    database.execute("COMMIT")


def _select(database: sqlite3.Connection, wanted: dict[str, Any]) -> sqlite3.Cursor:
    where = " AND ".join(f"{column} = :{column}" for column in wanted) or "1"
    columns = "name, status, exit_code, ended, facts"
    text = f"SELECT {columns} FROM runs WHERE {where} ORDER BY created DESC, name"  # nosec B608 # names of columns
    return database.execute(text, wanted)


def _spelled(status: str) -> str:
    """A status as it is stored, whatever its case, dashes and l's."""
    known = {name.lower(): name for name in STATUSES}
    bare = "".join(filter(str.isalpha, status.lower())).replace("cancelled", "canceled")
    if bare not in known:
        near = nearest(bare, known)
        hint = f"did you mean {known[near]}?" if near else f"there are {', '.join(STATUSES)}"
        raise ValueError(f"there is no status {status!r}; {hint}")
    return known[bare]


def _has_tag(tags: dict[str, Any], wanted: str) -> bool:
    key, equals, value = wanted.partition("=")
    return key in tags and (not equals or str(tags[key]) == value)

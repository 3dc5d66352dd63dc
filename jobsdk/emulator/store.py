"""What the emulated workspace knows: documents in one SQLite file, safe with the threads of a server."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Document = dict[str, Any]


class Store:
    """Documents of a kind (`codes`, `jobs`, ...), by name and version; those without versions have the version ""."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS documents (number INTEGER PRIMARY KEY, kind TEXT, name TEXT, version TEXT, "
            "created REAL, body TEXT, UNIQUE (kind, name, version))"
        )

    def get(self, kind: str, name: str, version: str = "") -> Document | None:
        with self._lock:
            row = self._connection.execute(
                "SELECT body FROM documents WHERE kind = ? AND name = ? AND version = ?", (kind, name, version)
            ).fetchone()
        return json.loads(row[0]) if row else None

    def put(self, kind: str, name: str, body: Document, version: str = "") -> bool:
        """Keep a document; whether it is a new one."""
        with self._lock:
            is_new = self.get(kind, name, version) is None
            self._connection.execute(
                "INSERT INTO documents (kind, name, version, created, body) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (kind, name, version) DO UPDATE SET body = excluded.body",
                (kind, name, version, time.time(), json.dumps(body)),
            )
        return is_new

    def change(self, kind: str, name: str, edit: Callable[[Document], None], version: str = "") -> Document:
        """Have `edit` change a document, which nobody else does meanwhile; returns it. Raises KeyError."""
        with self._lock:
            found = self.get(kind, name, version)
            if found is None:
                raise KeyError(name)
            edit(found)
            self.put(kind, name, found, version)
        return found

    def list(self, kind: str, name: str | None = None) -> list[Document]:
        """All documents of a kind, or the versions of one name, the newest first."""
        named, values = ("", (kind,)) if name is None else ("AND name = ? ", (kind, name))
        with self._lock:
            rows = self._connection.execute(
                f"SELECT body FROM documents WHERE kind = ? {named}ORDER BY number DESC",  # nosec B608 # text of ours
                values,
            ).fetchall()
        return [json.loads(row[0]) for row in rows]

    def close(self) -> None:
        with self._lock:
            self._connection.close()

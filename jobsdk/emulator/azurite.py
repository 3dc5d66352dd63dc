"""Azurite, the blob store: a program of its own (npm's `azurite`), on a port and with a key of this emulator's."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from jobsdk.emulator.certificates import Certificates
from jobsdk.emulator.settings import Settings
from jobsdk.errors import JobsdkError

_PROGRAM = "azurite-blob"
#: The version that the emulator is tested with.
VERSION = "3.35.0"
_INSTALL = f"npm install -g azurite@{VERSION}, or --azurite PATH"
_START_S = 60.0
_LISTENS = re.compile(rb"successfully listens on https?://127\.0\.0\.1:(\d+)")
# 127.0.0.1 - - [22/Nov/2026:05:11:00 +0000] "PUT /container/name?sig=... HTTP/1.1" 201 -
_REQUEST = re.compile(r'"([A-Z]+) (\S+) HTTP/[\d.]+" (\d+)')

Saw = Callable[[str, str, int], None]


def find(given: str | None = None) -> str:
    """The program's path: `given`, or on PATH. Raises JobsdkError with the command that installs it."""
    path = shutil.which(given or os.environ.get("JOBSDK_AZURITE") or _PROGRAM)
    if path is None:
        raise JobsdkError(f"there is no {given or _PROGRAM} here, which keeps the emulator's blobs. Fix: {_INSTALL}")
    if shutil.which("node") is None:
        raise JobsdkError("there is no node on PATH, which runs Azurite. Fix: install Node.js 18 or newer")
    return path


class Azurite:
    """A running Azurite. It calls `saw(method, path, status)` for each request that it answers."""

    def __init__(self, program: str, folder: Path, settings: Settings, files: Certificates, saw: Saw) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command: Sequence[str] = (
            *(program, "--blobHost", "127.0.0.1", "--blobPort", "0", "--location", str(folder)),
            *("--cert", str(files.chain), "--key", str(files.key), "--disableTelemetry", "--skipApiVersionCheck"),
        )
        environment = {**os.environ, "AZURITE_ACCOUNTS": f"{settings.account}:{settings.account_key}"}
        self._saw = saw
        self._said: list[str] = []
        self._listens = threading.Event()
        self.port = 0
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._listens.wait(_START_S)
        if not self.port:
            self.stop()
            raise JobsdkError(f"Azurite ({program}) did not start: {' '.join(self._said)[-250:] or 'it says nothing'}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = _LISTENS.search(line)
            if found:
                self.port = int(found.group(1))
                self._listens.set()
            request = _REQUEST.search(line.decode(errors="replace"))
            if request:
                self._saw(request.group(1), request.group(2), int(request.group(3)))
            elif not self.port:
                self._said.append(line.decode(errors="replace").strip())
        self._listens.set()

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._reader.join(10)


def _end_with_parent() -> None:
    """In the child: Linux kills it when the emulator is killed."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

"""An emulator in a process of its own, for who wants one for a while: `with started(...) as emulator`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jobsdk.emulator.emulator import RUNNING
from jobsdk.errors import JobsdkError

_START_S = 120.0
_STOP_S = 90.0


class Running(NamedTuple):
    """A running emulator. `environ` is what to set to be its client."""

    pid: int
    port: int
    folder: Path
    environ: dict[str, str]
    control_key: str

    def requests(self) -> list[dict[str, Any]]:
        """What was asked of it since the start or `forget_requests`, in order: dicts with method, host, path (and
        query), status, body (JSON, or None). Connections have the method CONNECT; Azurite reports blobs, a moment
        later."""
        answer: list[dict[str, Any]] = self._ask("GET", "/requests")["requests"]
        return answer

    def forget_requests(self) -> None:
        self._ask("DELETE", "/requests")

    def add_fault(self, **fault: Any) -> None:
        """Have requests meet a fault; see `jobsdk.emulator.faults.Fault`. Raises JobsdkError."""
        self._ask("POST", "/faults", fault)

    def clear_faults(self) -> None:
        self._ask("DELETE", "/faults")

    def set_latency(self, ms: float) -> None:
        """What each round trip takes longer, of connections that are opened from now on."""
        self._ask("PUT", "/latency", {"ms": ms})

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.control_key}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise JobsdkError(json.loads(error.read())["error"]) from None
        except OSError as error:
            raise JobsdkError(f"the emulator in {self.folder} does not answer: {error}") from None


def read(folder: Path) -> Running | None:
    """The emulator that runs in a folder; None if none does."""
    try:
        with open(folder / RUNNING, "rb") as file:
            found = json.loads(file.read())
            running = Running(found["pid"], found["port"], folder, found["environment"], found["control_key"])
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # the kernel frees the lock of an emulator that was killed
    except BlockingIOError:
        return running
    except (OSError, ValueError, KeyError):
        pass
    return None


@contextlib.contextmanager
def started(folder: Path | None = None, options: Sequence[str] = ()) -> Iterator[Running]:
    """Start an emulator with `options` of `jobsdk azure-emulator start`, and stop it at the end, with all that it has
    started; without a folder it has one for the time. Raises JobsdkError, with what the emulator said, if it does not
    start."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jobsdk-azure-emulator-")))
        said = stack.enter_context(tempfile.TemporaryFile())
        command = [sys.executable, "-m", "jobsdk", "azure-emulator", "start", "--folder", str(folder)]
        process = subprocess.Popen(
            [*command, "--until-eof", *options], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        try:
            yield _ready(process, folder, said)
        finally:
            process.stdin.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(process: subprocess.Popen[bytes], folder: Path, said: Any) -> Running:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        running = read(folder)
        if running is not None and running.pid == process.pid:
            return running
        if process.poll() is not None:
            break
        time.sleep(0.05)
    said.seek(0)
    words = said.read().decode(errors="replace").strip() or "it says nothing"
    raise JobsdkError(words.removeprefix("error: ")[-400:])

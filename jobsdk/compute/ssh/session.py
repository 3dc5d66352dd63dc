"""One command that runs on another machine over ssh, with pipes."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import IO

from jobsdk.compute.hosts.host import Answer
from jobsdk.compute.ssh import errors as ssh_errors
from jobsdk.errors import ComputeError


class Session:
    """A command there, with pipes. What it writes to stderr goes to a file: the connection that ssh leaves behind keeps
    it open. `with` ends it."""

    def __init__(self, host: str, argv: Sequence[str]) -> None:
        self.host = host
        self._timer: threading.Timer | None = None
        self._late = ""
        self._err = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the session
        try:
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._err)
        except BaseException:
            self._err.close()
            raise
        assert self.process.stdout is not None
        self.out: IO[bytes] = self.process.stdout

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.process.poll() is None:
            self.process.kill()
        self.close_stdin()
        self.out.close()
        self.process.wait()
        self._err.close()

    def limit(self, seconds: float) -> None:
        """End it after so long; `code` then raises."""

        def end() -> None:
            self._late = f"{self.host} has not answered for {seconds:g} s"
            self.process.kill()

        self._timer = threading.Timer(seconds, end)
        self._timer.daemon = True
        self._timer.start()

    def close_stdin(self) -> None:
        try:
            assert self.process.stdin is not None
            self.process.stdin.close()
        except OSError:
            pass  # it has ended

    def communicate(self, data: bytes, timeout: float) -> bytes:
        """Give it all of its stdin, and take all of its stdout. Raises ComputeError after `timeout` seconds."""
        try:
            return self.process.communicate(data, timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            raise ComputeError(f"{self.host} has not answered for {timeout:g} s") from None

    def answer(self) -> Answer:
        """Exit code and stderr. Raises ComputeError where ssh itself failed."""
        return Answer(self.code(), "", self.err())

    def finish(self) -> bytes:
        """Close its stdin and read its stdout to the end."""
        self.close_stdin()
        return self.out.read()

    def skip_to(self, mark: bytes) -> bool:
        """Read up to the mark; whether it came."""
        seen = b""
        while not seen.endswith(mark):
            byte = self.out.read(1)
            if not byte:
                return False
            seen = (seen + byte)[-len(mark) :]
        return True

    def code(self) -> int:
        """Wait for its end; its exit code. Raises ComputeError where ssh itself failed, or it took too long."""
        code = self.process.wait()
        if self._late:
            raise ComputeError(self._late)
        if code == 255:
            raise ssh_errors.told(self.host, self.err())
        return code

    def check(self) -> None:
        """Raises ComputeError unless it has ended well."""
        code = self.code()
        if code:
            raise ComputeError(f"{self.host}: {Answer(code, '', self.err()).last_words}")

    def err(self) -> str:
        """What it has written to stderr."""
        self._err.seek(0)
        return self._err.read().decode("utf-8", "replace")

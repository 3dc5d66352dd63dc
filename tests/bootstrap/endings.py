"""How a real process ended, as a node tells it to the coordinator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from jobsdk.bootstrap.failures import tracebacks


def record(log: Path, code: int, **more: Any) -> dict[str, Any]:
    """The message of rank 3 on node 1, whose output is in `log`; a negative code is a signal, as subprocess has it."""
    ended = {"exit_code": code if code >= 0 else 128 - code, "signal": None if code >= 0 else -code}
    return {"t": 1.0, "node": 1, "rank": 3, **ended, **tracebacks.last_words(str(log)), **more}


def ending(log: Path, *argv: str, **more: Any) -> dict[str, Any]:
    """Run a command, its output into `log`."""
    with log.open("wb") as file:
        process = subprocess.run(argv, stdout=file, stderr=file, stdin=subprocess.DEVNULL, check=False)
    return record(log, process.returncode, **more)


def python(log: Path, code: str, **more: Any) -> dict[str, Any]:
    return ending(log, sys.executable, "-c", code, **more)


def shell(log: Path, command: str, **more: Any) -> dict[str, Any]:
    return ending(log, "bash", "-c", command, **more)


def said(*lines: str, code: int = 1, signum: int | None = None, **more: Any) -> dict[str, Any]:
    """The message of a rank that said this and no more, without a traceback."""
    words = {"traceback": None, "error": None, "last_lines": list(lines)}
    return {"t": 1.0, "node": 1, "rank": 3, "exit_code": code, "signal": signum, **words, **more}


def raised(error: str, *message: str, code: int = 1, **more: Any) -> dict[str, Any]:
    """The message of a rank that ended by this exception, of one or several lines."""
    traceback = "\n".join(["Traceback (most recent call last):", '  File "train.py", line 7, in <module>',
                           "    main()", error, *message])  # fmt: skip
    return {**said(*traceback.split("\n"), code=code), "traceback": traceback, "error": error, **more}

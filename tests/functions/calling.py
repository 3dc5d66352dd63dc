"""Making a call as a rank of a job does, without the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobsdk.client import outcome
from jobsdk.functions import payload


class Called:
    """A call that was made in a process of its own: its code, what it wrote, and what it left."""

    def __init__(self, folder: Path, python: Sequence[str], cwd: Path, environ: dict[str, str]) -> None:
        result = cwd / "result.log"
        result.unlink(missing_ok=True)
        variables = {"PATH": os.environ["PATH"], "JOBSDK_RESULT": str(result), **environ}
        argv = [*python, str(folder / payload.FOLDER / "call.py")]
        done = subprocess.run(argv, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
        self.code, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr
        self.outcome = outcome.parsed(0, result) if result.exists() else None

    def value(self) -> Any:
        """What the function returned."""
        assert self.code == 0, self.stderr
        assert self.outcome is not None
        assert self.outcome.facts["outcome"] == "returned"
        return outcome.loaded(self.outcome)


def staged(fn: Callable[..., Any], *args: Any, code: Path | None = None, **kwargs: Any) -> Path:
    """The folder that a job with this call would have as its code."""
    return payload.stage(payload.pickled(fn, args, kwargs, code), code)


def called(
    fn: Callable[..., Any],
    *args: Any,
    python: Sequence[str] = (sys.executable,),
    code: Path | None = None,
    environ: dict[str, str] | None = None,
    **kwargs: Any,
) -> Called:
    """Call it in a folder that has the job's code only."""
    folder = staged(fn, *args, code=code, **kwargs)
    return Called(folder, python, folder, environ or {})


def change_facts(folder: Path, **facts: Any) -> None:
    """Let a call have been sent from elsewhere."""
    path = folder / payload.FOLDER / "call.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))

"""Submitting a job to Azure ML: to the local emulator, at the distance of a cloud."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Figures, Row, Table
from jobsdk.emulator.process import Running, started

_CONTENDERS = ("jobsdk", "azure-ai-ml")
_CASES = {
    "new": "new code and data, from the start of the process",
    "unchanged": "submitted again, nothing changed",
    "changed": "one file changed",
}
_LATENCY_MS = 150
_AZURITE = Path(__file__).parents[1] / ".engines/azurite/node_modules/.bin/azurite-blob"
_FILES = 20  # of code


def _azurite() -> str:
    found = shutil.which(_AZURITE) or shutil.which("azurite-blob")
    if found is None:
        raise RuntimeError("Azurite is missing: run scripts/install-engines.sh")
    return found


def _timed(which: str, running: Running) -> Figures:
    with harness.scratch() as folder:
        source = folder / "project/src"
        source.mkdir(parents=True)
        for number in range(_FILES):
            (source / f"module_{number}.py").write_text(f"number = {number}\n")
        program = [sys.executable, harness.PROGRAMS / "azure_submit.py", which, folder / "project"]
        environ = {**os.environ, **running.environ, "BENCHMARK_EMULATOR": str(running.folder)}
        running.forget_requests()
        environ["BENCHMARK_BEGAN"] = repr(time.monotonic())
        # Not harness.run, which waits for all children: the emulator is one.
        done = subprocess.run(program, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{which} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(quick: bool) -> Table:
    options = ["--azurite", _azurite(), "--latency", str(0 if quick else _LATENCY_MS)]
    with harness.scratch() as folder, started(folder, options) as running:
        contenders = {name: functools.partial(_timed, name, running) for name in _CONTENDERS}
        medians = harness.rounds(contenders, 1 if quick else 3)
    rows = [
        Row(f"{words}: {figure}", unit, {name: medians[name][f"{case} {figure}"] for name in _CONTENDERS})
        for case, words in _CASES.items()
        for figure, unit in (("seconds", "s"), ("requests", ""))
    ]
    return Table(
        "Submitting to Azure ML",
        f"`create_or_update` of a job with {_FILES} files of code, a data file and an environment of its own, three "
        f"times from one new process, against `jobsdk azure-emulator` with {_LATENCY_MS} ms for each round trip. "
        "Requests as the emulator counts them, those to the blob store among them.",
        "How long the call takes, and what it asks of the service.",
        rows,
    )

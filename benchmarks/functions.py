"""From a call in Python to the first line of the function, beside PySpark's TorchDistributor and Ray Train."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec
from typing import Any

from benchmarks import harness
from benchmarks.harness import Row, Table

PROGRAM = harness.PROGRAMS / "functions.py"
#: Where, in words, and the library that it needs.
_WHERE = {"here": ("on this machine", "torch"), "spark": ("on Spark", "pyspark"), "ray": ("on Ray", "ray")}


def _measured(where: str, rounds: int) -> dict[str, dict[str, float]]:
    with harness.scratch() as folder:
        harness.run([sys.executable, PROGRAM, where, str(rounds)], folder=folder)
        found: dict[str, dict[str, Any]] = json.loads((folder / "stdout").read_text().splitlines()[-1])
    return found


def measure(quick: bool) -> Table:
    rows = []
    for where, (words, library) in _WHERE.items():
        if (quick and where != "here") or not find_spec(library) or (where == "spark" and not shutil.which("java")):
            continue
        for figure, values in _measured(where, 1 if quick else 5).items():
            rows.append(Row(f"first line of {figure}, {words}", "s", values))
    return Table(
        "From a call in Python to the first line of the function",
        "`TorchDistributor(num_processes=2, use_gpu=False).run(function)` of jobsdk and of PySpark, and "
        "`TorchTrainer(function, scaling_config=ScalingConfig(num_workers=2)).fit()` of jobsdk and of Ray Train, in "
        "one program with the sessions of Spark and Ray open; the clock of the process that comes first counts. On "
        "Spark: a `local-cluster` with two executors and `local_mode=False`, after a first job. Ray Train and jobsdk's "
        "TorchTrainer have joined a gloo group before that line; a bare function has imported nothing.",
        "The wait between two tries in a notebook.",
        rows,
    )

"""The script that prints what a user sees of each failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: In the order of the script: what is shown now.
SHOWN = [
    "all ranks' lines (exit code 0)",
    "rank 3 on node 1 exited with code 42",
    "Canceled",
    "the run continues: `again`",
    "the run continues: `again`",
    "the run continues: `again`",
    "the run continues: `again`",
    "the run continues: `again`",
    "huge: queued: 0/3 nodes are available",
    'violates PodSecurity "restricted:latest"',
    "exceeded quota: q, requested: pods=1",
    "error looking up service account research/nobody",
    "the Secret registry does not exist in namespace jobs",
    "the PersistentVolumeClaim datasets does not exist in namespace jobs",
    'locked: queued: FailedCreate: violates PodSecurity "restricted:latest"',
]


@pytest.mark.slow
@pytest.mark.engine("containers")
def test_every_scenario_shows_what_it_should() -> None:
    argv = [sys.executable, "-m", "scripts.kubernetes_scenarios"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split(" | ")[2] for line in done.stdout.splitlines()[2:]]
    assert len(rows) == len(SHOWN)
    for row, shown in zip(rows, SHOWN, strict=True):
        assert shown in row

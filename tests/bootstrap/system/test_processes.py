"""Ending processes that do what they can to stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from jobsdk.bootstrap.system import processes
from tests.bootstrap.runs import wait_for
from tests.bootstrap.stopping import HOPPING, left_of

ROOT = Path(__file__).resolve().parents[3]

#: Starts processes that hop, waits until each has hopped, ends all, and says how many are left.
ENDS_ALL = """
import os, sys
from jobsdk.bootstrap.system import processes
processes.become_subreaper()
pause, program = sys.argv[1:]
first = {os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-I", "-S", "-c", program, pause]) for _ in range(3)}
while first & set(processes.descendants(os.getpid())):
    pass
processes.kill_descendants()
print(len(processes.descendants(os.getpid())))
"""


def test_processes_that_go_on_in_others_are_caught() -> None:
    argv = [sys.executable, "-c", ENDS_ALL, "0", HOPPING.replace("60", "150")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


#: Each process has started the next one; the clock is one of a process that stands still all the time.
STANDS_STILL = """
import itertools, os, subprocess
from jobsdk.bootstrap.system import processes
processes.become_subreaper()
chain = "setsid sh -c 'setsid sh -c \\"echo up; setsid sleep 600; true\\"; true'; true"
assert subprocess.Popen(["sh", "-c", chain], stdout=subprocess.PIPE).stdout.readline() == b"up\\n"
processes.time.monotonic = itertools.count(step=10.0).__next__
processes.kill_descendants()
print(len(processes.descendants(os.getpid())))
"""


def test_a_machine_that_stands_still_leaves_time_enough_to_end_all() -> None:
    argv = [sys.executable, "-c", STANDS_STILL]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_processes_of_a_run_that_go_on_in_others_are_caught_wherever_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    argv = [sys.executable, "-I", "-S", "-c", HOPPING, "0.02"]
    environment = {**os.environ, "JOBSDK_RUN_DIR": str(folder)}
    started = [subprocess.Popen(argv, env=environment, start_new_session=True) for _ in range(3)]
    wait_for(lambda: all(one.poll() == 0 for one in started))
    assert processes.kill_run(str(folder)) >= 3
    assert left_of(folder, str(folder)) == {}

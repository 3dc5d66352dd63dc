"""From the start of a command to the first line of user code: a bare Popen loop, `jobsdk run`, `torchrun`.

    python benchmarks/launch.py [--processes 8] [--runs 5] [--without-torchrun]

Every contender starts the same script on the same interpreter, in turn (A B C A B C ...), so that a drift of the
machine's speed meets all. The script imports nothing but `time` and writes the clock into a file of its rank's own;
the earliest of them counts. Medians; torch is imported by torchrun alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SCRIPT = """import os, time
now = time.time()
with open(os.path.join(os.environ["FIRST_LINES"], str(os.getpid())), "w") as file:
    file.write(repr(now))
"""
BIN = Path(sys.executable).parent


def bare_loop(script: str, processes: int) -> None:
    ranks = [subprocess.Popen([sys.executable, script]) for _ in range(processes)]
    for rank in ranks:
        rank.wait()


def jobsdk_run(script: str, processes: int) -> None:
    argv = [str(BIN / "jobsdk"), "run", "--processes", str(processes), "--", sys.executable, script]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def torchrun(script: str, processes: int) -> None:
    argv = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={processes}", script]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure(start: Callable[[str, int], None], script: str, processes: int) -> tuple[float, float]:
    """(seconds to the first line, seconds to the end) of one launch."""
    with tempfile.TemporaryDirectory() as lines:
        os.environ["FIRST_LINES"] = lines
        began = time.time()
        start(script, processes)
        ended = time.time()
        clocks = [float(path.read_text()) for path in Path(lines).iterdir()]
    if len(clocks) != processes:
        raise SystemExit(f"{start.__name__}: {len(clocks)} of {processes} ranks wrote their first line")
    return min(clocks) - began, ended - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--without-torchrun", action="store_true")
    options = parser.parse_args()
    contenders = [bare_loop, jobsdk_run] + ([] if options.without_torchrun else [torchrun])
    found: dict[str, list[tuple[float, float]]] = {contender.__name__: [] for contender in contenders}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JOBSDK_HOME"] = folder + "/home"
        script = folder + "/first.py"
        Path(script).write_text(SCRIPT)
        for _ in range(options.runs + 1):  # the first round warms caches and is not counted
            for contender in contenders:
                found[contender.__name__].append(measure(contender, script, options.processes))
    first = {name: statistics.median(line for line, _ in times[1:]) for name, times in found.items()}
    whole = {name: statistics.median(end for _, end in times[1:]) for name, times in found.items()}
    print(f"{options.processes} ranks, median of {options.runs}: seconds to the first line of user code, to the end")
    for name in found:
        over = f"{1000 * (first[name] - first['bare_loop']):+7.0f} ms over the bare loop"
        ratio = f"{first[name] / first['jobsdk_run']:6.1f} x jobsdk run"
        print(f"{name:12} {first[name]:7.3f} {whole[name]:7.3f}  {over}  {ratio}")


if __name__ == "__main__":
    main()

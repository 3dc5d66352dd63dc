"""The table of faults, several times and at random moments: `python -m tests.chaos --rounds 3 --seed 1`.

Ends with 1 where fewer than 95 % of the first lines name the cause, or anything else is not as the table has it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.fault import Fault
from tests.chaos.faults import FAULTS
from tests.chaos.harness import Result, run

_LATEST = 0.5  # seconds after all ranks are up


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Injected faults, at random moments.")
    parser.add_argument("--rounds", type=int, default=3, help="how often each fault is injected")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="makes the delays the same again")
    parser.add_argument("--only", default="", help="rows with this in their names")
    given = parser.parse_args()
    faults = [fault for fault in FAULTS if given.only in fault.name]
    print(f"{len(faults)} faults, {given.rounds} rounds, seed {given.seed}", flush=True)
    chance = random.Random(given.seed)
    named = right = total = 0
    for _ in range(given.rounds):
        for fault in chance.sample(faults, len(faults)):
            result = _once(fault, chance.uniform(0, _LATEST), chance.choice((0.0, 0.0, 0.1)))
            total += 1
            named += result.line_is_right
            right += not result.wrong
            print(f"{'right' if not result.wrong else 'WRONG'}  {fault.name}", flush=True)
            for text in result.wrong:
                print(f"       {text}", flush=True)
    print(f"causes named right: {named}/{total}; all as expected: {right}/{total}")
    return 0 if named >= 0.95 * total else 1


def _once(fault: Fault, delay: float, jitter: float) -> Result:
    with tempfile.TemporaryDirectory(prefix="jobsdk-chaos-", ignore_cleanup_errors=True) as folder:
        try:
            return run(fault, Path(folder) / "job", delay, jitter)
        except Exception as error:  # a row that does not even come to its end
            return Result("", False, [f"{type(error).__name__}: {error}"[:400]], "")


if __name__ == "__main__":
    sys.exit(main())

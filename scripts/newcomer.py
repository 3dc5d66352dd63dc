"""A newcomer's path, timed: a clean clone, the README's first command, a first own job within five further lines.

    python scripts/newcomer.py [--pip-args ARGS]   # with the packages that pip has to fetch: minutes
    python scripts/newcomer.py --here              # the own job only, with this Python's environment

Prints the seconds of each step. The exit code is 1 where a step does not do what it should.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: After the first command, in the clone. No more than five lines.
OWN = """\
. .venv/bin/activate
mkdir mine && cd mine
echo 'import os; print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])' > train.py
jobsdk run --nodes 2 --processes 2 -- python train.py
"""
_RANKS = [f"[rank {rank}] rank {rank} of 4" for rank in range(4)]


def first_command() -> str:
    """The README's first line that is a command."""
    found = re.search(r"^    (\S[^#\n]*)", (ROOT / "README.md").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit("README.md shows no command")
    return found[1].strip()


def timed(title: str, script: str, folder: Path, environ: dict[str, str]) -> str:
    """Run lines of shell, and print how long they took; what they wrote to stdout. Ends the program if they fail."""
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-ec", script], cwd=folder, env=environ, stdout=subprocess.PIPE, text=True, check=False
    )
    print(f"{time.monotonic() - began:8.1f} s  {title}", flush=True)
    if done.returncode:
        raise SystemExit(f"{title}: exit code {done.returncode}")
    return done.stdout


def own_job(script: str, folder: Path, environ: dict[str, str]) -> None:
    lines = [line for line in OWN.splitlines() if line.strip()]
    if len(lines) > 5:
        raise SystemExit(f"the own job takes {len(lines)} lines")
    shown = timed("an own job on 2 nodes x 2 processes", script, folder, environ).splitlines()
    if sorted(shown) != _RANKS:
        raise SystemExit(f"the own job shows {shown}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--here", action="store_true", help="the own job only, in an environment that is there")
    options.add_argument("--pip-args", default="", help="for pip, as PIP_ARGS of the Makefile")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="newcomer-") as name:
        folder = Path(name)
        environ = {**os.environ, "JOBSDK_HOME": f"{name}/home", "PIP_ARGS": chosen.pip_args}
        if chosen.here:
            environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + environ["PATH"]
            own_job(OWN.partition("\n")[2], folder, environ)
            return
        environ.pop("VIRTUAL_ENV", None)
        began = time.monotonic()
        timed("git clone", f"git clone --quiet --no-hardlinks '{ROOT}' clone", folder, environ)
        timed(f"the first command: {first_command()}", first_command(), folder / "clone", environ)
        own_job(OWN, folder / "clone", environ)
        print(f"{time.monotonic() - began:8.1f} s  in all")


if __name__ == "__main__":
    main()

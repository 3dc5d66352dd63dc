"""Runs the benchmarks, prints their tables and writes docs/benchmarks.md."""

from __future__ import annotations

import argparse
import importlib
import os
import time
from pathlib import Path

from benchmarks import harness, page
from benchmarks.harness import Table
from benchmarks.page import NAMES


def measure(name: str, quick: bool) -> Table:
    table: Table = importlib.import_module(f"benchmarks.{name}").measure(quick)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: to see that all works")
    parser.add_argument("--without-peers", action="store_true", help="leave out other launchers, Spark and Ray")
    parser.add_argument("--write", action="store_true", help=f"write what was measured into {page.PATH.name}")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    if options.without_peers:
        os.environ["JOBSDK_BENCH_WITHOUT_PEERS"] = "1"
    tables: dict[str, Table] = {}
    with harness.scratch() as home:
        as_a_user_has_it(home)
        for name in options.names or NAMES:
            began = time.monotonic()
            tables[name] = measure(name, options.quick)
            print(f"\n{tables[name].title} ({name}, {time.monotonic() - began:.0f} s)\n{tables[name]}", flush=True)
    if options.write:
        page.write(tables, options.quick)
        print(f"\nwrote {page.PATH}")


def as_a_user_has_it(home: Path) -> None:
    """The environment of all that is measured: runs of its own, loopback, and no settings that only tests have."""
    os.environ["JOBSDK_HOME"] = str(home / "jobsdk")
    os.environ["XDG_CONFIG_HOME"] = str(home / "config")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"):
        os.environ.pop(name, None)


if __name__ == "__main__":
    main()

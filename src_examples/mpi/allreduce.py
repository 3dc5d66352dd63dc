"""Sums a vector over all processes with MPI, and checks the result: is this one world, and does it compute?"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np
from mpi4py import MPI


def main() -> None:
    parser = argparse.ArgumentParser(description="Sum a vector over all MPI processes.")
    parser.add_argument("--length", type=int, default=100_000, help="numbers in each process's vector")
    args = parser.parse_args()

    world = MPI.COMM_WORLD
    library = MPI.Get_library_version().strip().splitlines()[0].partition(",")[0]
    print(f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}: {' '.join(library.split())}", flush=True)
    expected = int(os.environ["WORLD_SIZE"])
    if world.size != expected:
        sys.exit(f"rank {world.rank} sees an MPI world of {world.size}, the job has {expected} processes")

    mine = np.arange(args.length, dtype=np.int64) * (world.rank + 1)
    total = np.empty_like(mine)
    world.Allreduce(mine, total)
    # 1 + 2 + ... + size
    right = np.arange(args.length, dtype=np.int64) * (world.size * (world.size + 1) // 2)
    if not np.array_equal(total, right):
        sys.exit(f"rank {world.rank} got a wrong sum")
    print(f"rank {world.rank} sum {total.sum()}", flush=True)


if __name__ == "__main__":
    main()

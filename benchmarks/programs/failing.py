"""Ranks of which number 3 exits with code 3 when all have started; the others are busy with something else.

With the argument "stubborn" rank 0 ignores SIGTERM.
"""

import os
import signal
import sys
import time
from pathlib import Path

folder, rank, world_size = Path(os.environ["BENCHMARK_FOLDER"]), os.environ["RANK"], int(os.environ["WORLD_SIZE"])
if rank == "0" and sys.argv[1:] == ["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
(folder / f"started-{rank}").touch()
if rank == "3":
    while len(list(folder.glob("started-*"))) < world_size:
        time.sleep(0.01)
    part = folder / "part"
    part.write_text(repr(time.time()))
    part.rename(folder / "failed")
    sys.exit(3)
time.sleep(3600)

"""What the scripts of the faults import all names of: a rank's part in the play."""

import os
import random
import signal  # noqa: F401
import subprocess  # noqa: F401
import sys  # noqa: F401
import time

FOLDER = os.environ["CHAOS"]
RANK = int(os.environ["RANK"])
RESTART = int(os.environ.get("JOBSDK_RESTART_COUNT", "0"))


def up():
    """Tell that this rank is there."""
    with open(f"{FOLDER}/{RANK}.tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{FOLDER}/{RANK}.tmp", f"{FOLDER}/up-{RESTART}-{RANK}")


def go():
    """Wait until all are there and something may go wrong."""
    up()
    while not os.path.exists(f"{FOLDER}/go"):
        time.sleep(0.01)
    time.sleep(random.random() * float(os.environ["CHAOS_JITTER"]))


def hold():
    """What a rank does to which nothing happens."""
    up()
    time.sleep(60)

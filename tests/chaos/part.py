"""What the scripts of the faults import all names of: a rank's part in the play."""

import atexit
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


def meet(*ranks):
    """When this rank ends, and has said why, it waits until these are as far: none is ended because of another."""

    def wait():
        open(f"{FOLDER}/end-{RANK}", "w").close()
        while not all(os.path.exists(f"{FOLDER}/end-{rank}") for rank in ranks):
            time.sleep(0.01)

    atexit.register(wait)


def hold():
    """What a rank does to which nothing happens."""
    up()
    time.sleep(600)

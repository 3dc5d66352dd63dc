"""The first start kills node 1's raylet, and waits for what comes of it; the next one sees all nodes."""

import os
import signal
import time
from pathlib import Path

import ray

ray.init()
nodes = [node for node in ray.nodes() if node["Alive"]]
if os.environ["JOBSDK_RESTART_COUNT"] == "0":
    own = os.path.dirname(os.environ["RAY_AUTH_TOKEN_PATH"]) + "/n1/"
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if words[0].endswith(b"/raylet") and own.encode() in b"".join(words):
            os.kill(int(entry.parent.name), signal.SIGKILL)
    time.sleep(600)
print(f"{len(nodes)} nodes", flush=True)

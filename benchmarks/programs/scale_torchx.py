"""Compiles one job of RANKS processes, eight on each node, for torchx's local scheduler; writes the figures as JSON."""

import json
import sys
import time

from torchx.components.dist import ddp
from torchx.runner import get_runner


def dry_run(runner, nodes):
    return runner.dryrun(ddp("--epochs", "10", script="train.py", j=f"{nodes}x8"), "local_cwd")


with get_runner() as runner:
    dry_run(runner, 1)
    began = time.monotonic()
    compiled = dry_run(runner, int(sys.argv[1]) // 8)
    seconds = time.monotonic() - began
print(json.dumps({"compile": seconds, "compiled job's size": len(str(compiled))}))

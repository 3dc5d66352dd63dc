"""A training without training: three steps, a checkpoint after the second, and a failure of rank 1's first start."""

import os
import sys
import time

import jobsdk
from jobsdk.train import get_checkpoint, get_context, report

here = get_context()
found = get_checkpoint()
begin = 0
if found is not None:
    with open(f"{found.path}/state-{here.rank}") as file:
        begin = int(file.read()) + 1
print("begins at", begin, "with jobsdk of", os.path.dirname(jobsdk.__file__), flush=True)
for epoch in range(begin, 3):
    kept = None
    if epoch == 1:
        kept = f"state-of-{here.rank}"
        os.makedirs(kept, exist_ok=True)
        with open(f"{kept}/state-{here.rank}", "w") as file:
            file.write(str(epoch))
    report({"loss": 3.0 - epoch, "eval": {"rank": here.rank}, "note": f"epoch {epoch}"}, kept)
    if "FAIL" in os.environ and epoch == 1 and not here.restart_count and here.rank == 1:
        while not os.path.exists(os.path.join(here.storage, "checkpoints/.parts/checkpoint_000000/rank-0.json")):
            time.sleep(0.01)
        sys.exit(3)

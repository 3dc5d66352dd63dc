"""A node of a cluster: finds out which one it is, then lives as `node` says."""

from __future__ import annotations

import json
import os
import sys

from . import detect, events, launchers, node, processes, staging


def run(run_dir: str) -> int:
    """Run the node that the environment describes; the job's exit code, or 78 where the place is not known."""
    run_dir = os.path.abspath(run_dir)
    try:
        place = detect.detect()
        token = bytes.fromhex(os.environ[launchers.TOKEN])
    except (detect.NotDetected, KeyError, ValueError) as error:
        sys.stderr.write("bootstrap: %s\n" % (error if isinstance(error, detect.NotDetected) else "no JOBSDK_TOKEN"))
        return 78
    with open(run_dir + "/plan.json") as file:
        plan = json.load(file)
    io_dir = staging.io_dir(run_dir)
    try:
        staging.stage(
            plan,
            run_dir,
            run_dir + "/cache",
            lambda event, **facts: events.append(run_dir, event, node=place.rank, **facts),
        )
        return node.run(
            plan,
            node.Node(
                rank=place.rank, control_address=place.control_address, control_port=place.control_port, token=token,
                run_dir=run_dir, io_dir=io_dir, working_dir=os.getcwd(), gpus=processes.visible_gpus(os.environ),
            ),
        )  # fmt: skip
    except staging.StagingError as error:
        events.append(run_dir, "failure", node=place.rank, rank=None, exit_code=126, message=str(error))
        sys.stderr.write("bootstrap: %s\n" % error)
        return 126
    finally:
        staging.remove_io_dir(io_dir, run_dir)

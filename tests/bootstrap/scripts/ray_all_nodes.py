"""Sees all nodes of the job's Ray cluster, and has each run a task; exits with $CODE, once the file $UNTIL is there."""

import os
import sys
import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

ray.init()
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
assert len(nodes) == int(os.environ["NODE_COUNT"]), nodes
assert (os.environ["WORLD_SIZE"], os.environ["RANK"]) == ("1", "0")


@ray.remote(num_cpus=1)
def where() -> str:
    assert os.environ["JOBSDK_RUN_DIR"]
    assert "RANK" not in os.environ
    return str(ray.get_runtime_context().get_node_id())


reached = set(ray.get([where.options(scheduling_strategy=On(node, soft=False)).remote() for node in nodes]))
cpus = int(ray.cluster_resources()["CPU"])
print(f"{len(nodes)} nodes, tasks on {len(reached)}, cpus {cpus}", flush=True)
while os.environ.get("UNTIL") and not os.path.exists(os.environ["UNTIL"]):
    time.sleep(0.05)
sys.exit(int(os.environ["CODE"]))
